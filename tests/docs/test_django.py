"""docs/django.md is a project: its own tests pass, its worker runs, and an order is there with its tasks or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqueue.client import Client
from tests.support import Sql

from .pages import ROOT
from .project import Project

PLACE = """
import sys
import shop.worker
from django.core.management import call_command
from django.test import Client

call_command("migrate", run_syncdb=True, verbosity=0)
print(Client().post("/orders", {"email": "ada@example.org"}, content_type="application/json").content.decode())
"""
MANAGE = """
from django.db import connection
from django.test import TransactionTestCase

from shop.models import Order
from shop.tasks import app, pack_order


class OnADatabaseOfItsOwn(TransactionTestCase):
    def test_order_is_packed(self):
        assert connection.settings_dict["NAME"].startswith("test_")
        order = Order.objects.create(email="ada@example.org")
        pack_order.enqueue(number=order.pk)

        assert app.run_worker(queues=["warehouse"], burst=True) == 0

        order.refresh_from_db()
        assert order.packed == 1
        app.client.close()
"""


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    return Project(ROOT / "docs" / "django.md", tmp_path, database_url, DJANGO_SETTINGS_MODULE="shop.settings")


def test_its_own_tests_pass(project: Project) -> None:
    assert "4 passed" in project.pytest("test_shop.py")


def test_worker_runs_what_a_view_enqueued(project: Project, client: Client) -> None:
    project.python("-c", PLACE)
    (project.folder / "outbox").mkdir()

    project.python("-m", "pgqueue", "worker", "--app", "shop.worker:app", "--burst")

    assert {task.action: str(task.status) for task in client.list_tasks()} == {
        "send_receipt": "completed",
        "pack_order": "completed",
    }
    assert [path.name for path in (project.folder / "outbox").iterdir()] == ["1.txt"]


def test_view_that_fails_leaves_neither_order_nor_task(project: Project, client: Client, sql: Sql) -> None:
    line = "        packing = pack_order.enqueue_on(connection.connection, number=order.pk)\n"
    project.edit("shop/urls.py", line, line + "        raise ZeroDivisionError\n")

    project.python("-c", PLACE, code=1)

    assert client.count_tasks() == 0
    assert sql("select count(*) from shop_order") == [(0,)]


def test_runner_of_the_page_brings_the_queue_to_djangos_test_database(project: Project, sql: Sql) -> None:
    project.write("shop/tests.py", MANAGE)
    project.edit("shop/settings.py", "USE_TZ = True\n", 'USE_TZ = True\nTEST_RUNNER = "shop.runner.Runner"\n')

    project.python("-m", "django", "test", "shop", "--noinput")

    assert sql("select count(*) from pgqueue.tasks") == [(0,)]
