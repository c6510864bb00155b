"""docs/flask.md is a project: its own tests pass, its worker runs, and an order is there with its tasks or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqueue.client import Client
from tests.support import Sql

from .pages import ROOT
from .project import Project

PLACE = """
from shop.models import Base, engine
from shop.web import create_web

Base.metadata.create_all(engine)
answer = create_web().test_client().post("/orders", json={"email": "ada@example.org"})
engine.dispose()
print(answer.status_code)
"""


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    return Project(ROOT / "docs" / "flask.md", tmp_path, database_url)


def test_its_own_tests_pass(project: Project) -> None:
    assert "2 passed" in project.pytest("test_shop.py")


def test_worker_runs_what_a_view_enqueued(project: Project, client: Client) -> None:
    placed = project.python("-c", PLACE)
    (project.folder / "outbox").mkdir()
    project.python("-m", "pgqueue", "worker", "--app", "shop.tasks:app", "--burst")

    assert placed == "201\n"
    assert {task.action: str(task.status) for task in client.list_tasks()} == {
        "send_receipt": "completed",
        "pack_order": "completed",
    }
    assert [path.name for path in (project.folder / "outbox").iterdir()] == ["1.txt"]


def test_view_that_fails_leaves_neither_order_nor_task(project: Project, client: Client, sql: Sql) -> None:
    line = "            packing = pack_order.enqueue_on(session, number=number)\n"
    project.edit("shop/web.py", line, line + "            raise ZeroDivisionError\n")

    placed = project.python("-c", PLACE)

    assert placed == "500\n"
    assert client.count_tasks() == 0
    assert sql("select count(*) from orders") == [(0,)]


def test_health_of_a_queue_that_is_away_is_503(project: Project) -> None:
    ask = "from shop.web import create_web; print(create_web().test_client().get('/health').status_code)"
    here = project.python("-c", ask)
    project.edit("shop/tasks.py", "App()", "App('host=/x')")

    assert (here, project.python("-c", ask)) == ("200\n", "503\n")
