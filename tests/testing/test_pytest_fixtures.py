"""The fixtures, as a user's own test run meets them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import Sql

ROOT = Path(__file__).resolve().parents[2]

SHOP = """
from pgqueue import App
app = App()
not_an_app = 3

@app.task(queue="mail")
def send(to: str) -> str:
    log.enqueue(line=f"sent to {to}")
    return to

@app.task
async def log(line: str) -> None:
    await note.aenqueue(line=line)

@app.task
def note(line: str) -> None: ...
"""
TESTS = """
from pgqueue.testing import assert_enqueued, drain, enqueued
from shop import app, log, note, send

def test_one(pgqueue_app):
    assert pgqueue_app is app
    send.enqueue(to="a")
    assert_enqueued(send, to="a")
    assert [ran.action for ran in drain(app, raise_errors=True)] == ["send", "log", "note"]
    assert_enqueued(note, 1, line="sent to a")

def test_two_begins_with_nothing(pgqueue_app, pgqueue_connection):
    assert enqueued(pgqueue_app) == []
    send.enqueue_on(pgqueue_connection, to="b")
    assert_enqueued(send, 1)
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path, database_url: str) -> Run:
    """`run(ini=…, conftest=…)`: pytest over a user's folder."""

    def run(
        ini: str = "pgqueue_app = shop:app", conftest: str = "", tests: str = TESTS
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "shop.py").write_text(SHOP)
        (tmp_path / "test_shop.py").write_text(tests)
        (tmp_path / "conftest.py").write_text(f'pytest_plugins = ["pgqueue.testing.pytest"]\n{conftest}')
        (tmp_path / "pytest.ini").write_text(f"[pytest]\npythonpath = .\nfilterwarnings = error\n{ini}\n")
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"],
            cwd=tmp_path,
            env={**os.environ, "PGQUEUE_DATABASE_URL": database_url, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=100,
        )

    return run


def test_app_is_in_a_transaction_that_is_rolled_back(run: Run, sql: Sql) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


CONFTEST = """
import psycopg, pytest, os
from shop import app

@pytest.fixture
def pgqueue_declared():
    return app

@pytest.fixture
def pgqueue_connection():
    with psycopg.connect(os.environ["PGQUEUE_DATABASE_URL"]) as connection:
        yield connection
        connection.rollback()
"""


def test_app_and_connection_may_be_the_users_own(run: Run, sql: Sql) -> None:
    done = run(ini="", conftest=CONFTEST)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_without_an_app_it_says_what_to_set(run: Run) -> None:
    done = run(ini="")
    assert done.returncode == 1
    assert 'which App? Set the ini option pgqueue_app = "module:name"' in done.stdout


def test_what_is_no_app_is_named(run: Run) -> None:
    done = run(ini="pgqueue_app = shop:not_an_app")
    assert "shop:not_an_app is a int, not a pgqueue.App" in done.stdout


def test_testing_without_the_fixtures_imports_no_pytest() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sys, pgqueue.testing; print(sorted(m for m in sys.modules if 'pytest' in m))"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n", done.stderr
