"""docs/exactly-once.md: each recipe raises, then is killed, before its commit, then killed after it; it pays once."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from pgqueue.client import Client
from tests.support import Sql, eventually

from .pages import ROOT, blocks
from .project import Project

PAGE = ROOT / "docs" / "exactly-once.md"
SETTINGS = next(block.text for block in blocks(ROOT / "docs" / "django.md", "python") if "settings.py" in block.text)
CRASH = """
import os
import signal

def at(moment):
    how, _, when = os.environ["CRASH"].partition(" ")
    if when == moment:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise ZeroDivisionError
"""
RECIPES = ("with_session", "with_async_session", "with_psycopg", "with_async_psycopg", "with_django", "and_then")


@pytest.fixture
def project(tmp_path: Path, database_url: str, sql: Sql) -> Project:
    sql("create table accounts (name text primary key, cents integer not null)")
    sql("insert into accounts values ('ada', 0)")
    variables = {"DJANGO_SETTINGS_MODULE": "shop.settings", "METERS_URL": database_url}
    project = Project(PAGE, tmp_path, database_url, **variables)
    project.write("shop/settings.py", SETTINGS)
    project.write("shop/crash.py", CRASH)
    return project


def work(project: Project, recipe: str, crash: str = "", *, code: int = 0) -> None:
    project.variables["CRASH"] = crash
    project.python("-m", "pgqueue", "worker", "--app", f"shop.{recipe}:app", "--burst", code=code)


def again(client: Client, sql: Sql) -> None:
    """What time would bring: the lease of a killed worker ends, and the backoff too."""
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s' where status = 'running'")
    # A killed worker's transaction holds its rows until the server notices.
    eventually(lambda: client.reap() is not None and not client.count_tasks(status="running"))
    sql("update pgqueue.tasks set not_before = now() where status = 'pending'")


@pytest.mark.parametrize("recipe", RECIPES)
def test_rows_and_completion_stand_or_fall_together(project: Project, client: Client, sql: Sql, recipe: str) -> None:
    text = (project.folder / "shop" / f"{recipe}.py").read_text()
    text, found = re.subn(
        r"^( +)((?:await )?ctx\.a?complete\(.*\))\n\Z",
        r"\1\2\n\1crash.at('before')\n    crash.at('after')\n",
        text,
        flags=re.MULTILINE,
    )
    assert found == 1
    project.write(f"shop/{recipe}.py", "from . import crash\n" + text)
    paid = client.enqueue("pay", {"account": "ada", "cents": 5}, max_attempts=3).id
    seen = []

    for crash, code in (("raise before", 0), ("kill before", -signal.SIGKILL), ("kill after", -signal.SIGKILL)):
        try:
            work(project, recipe, crash, code=code)
        except AssertionError as error:
            error.add_note(f"{crash}: {client.get(paid)}")
            raise
        [(cents,)] = sql("select cents from accounts")
        task = client.get(paid)
        seen.append((crash, cents, str(task.status), task.attempts))
        again(client, sql)
    if recipe == "and_then":
        thanks = [str(task.status) for task in client.list_tasks() if task.action == "thank"]
        assert thanks == ["pending"]

    assert seen == [
        ("raise before", 0, "pending", 1),
        ("kill before", 0, "running", 2),
        ("kill after", 5, "completed", 3),
    ]


def test_exception_after_the_commit_changes_nothing(project: Project, client: Client, sql: Sql) -> None:
    file = project.folder / "shop" / "with_session.py"
    file.write_text(file.read_text() + "    raise ZeroDivisionError\n")
    paid = client.enqueue("pay", {"account": "ada", "cents": 5}).id

    work(project, "with_session")

    assert client.get(paid).status == "completed"
    assert sql("select cents from accounts") == [(5,)]


def test_forgotten_commit_is_a_failed_attempt_that_says_so(project: Project, client: Client, sql: Sql) -> None:
    paid = client.enqueue("pay", {"account": "ada", "cents": 5}).id

    work(project, "forgotten")

    task = client.get(paid)
    said = re.findall(r'says?o?.*?: "(.*?)"|has failed: "(.*?)"', PAGE.read_text())
    assert (str(task.status), task.attempts) == ("pending", 1)
    assert task.last_error is not None
    assert "".join(said[0]) in task.last_error
    assert sql("select cents from accounts") == [(0,)]


def test_fence_refuses_a_holder_that_was_overtaken(project: Project, client: Client, sql: Sql) -> None:
    sql("create table meters (task uuid primary key, reading integer not null, fence integer not null)")
    on_time = client.enqueue("set_meter", {"reading": 42}).id
    overtaken = client.enqueue("set_meter", {"reading": 7}).id
    sql("insert into meters values (%s, 8, 9)", overtaken)

    work(project, "with_fence")

    assert client.get(on_time).status == "completed"
    assert client.get(overtaken).status == "dead"
    assert sorted(sql("select reading, fence from meters")) == [(8, 9), (42, 1)]
