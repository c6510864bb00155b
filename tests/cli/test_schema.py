"""`db upgrade|downgrade|current|check|sql` and `migrate`; and what other commands say of a schema that does not fit."""

import shlex
from collections.abc import Callable
from uuid import UUID

import pytest

from pgqueue.migrate import head

from ..support import Sql, connect
from .running import Program


@pytest.fixture
def empty(empty_database_url: str) -> Program:
    """The program over a database with nothing in it."""
    return Program(empty_database_url)


@pytest.mark.parametrize("words", [("db", "upgrade"), ("migrate",)])
def test_upgrade_makes_the_schema_once(empty: Program, words: tuple[str, ...]) -> None:
    first = empty(*words)
    assert (first.code, first.out) == (0, f"{head()}\n")
    assert "was at none" in first.err

    second = empty(*words)
    assert (second.code, second.out) == (0, f"{head()}\n")
    assert "nothing to do" in second.err
    assert empty("stats").code == 0


def test_upgrade_as_json(empty: Program) -> None:
    assert empty("db", "upgrade", "--json").objects == [{"before": None, "after": head()}]
    assert empty("--json", "migrate").objects == [{"before": head(), "after": head()}]


def test_upgrade_into_another_schema(empty: Program) -> None:
    assert empty("db", "upgrade", "--schema", "queue_two").code == 0
    assert empty("stats", "--schema", "queue_two").code == 0
    assert empty("stats", env={"PGQUEUE_SCHEMA": "queue_two"}).code == 0
    assert empty("stats").code == 4


def test_next_command_leads_to_the_tables_that_were_named(empty: Program, lost: Program) -> None:
    url = str(empty.url)
    named = f"--database-url {shlex.quote(url)} --schema queue_two"

    missing = lost("stats", "--database-url", url, "--schema", "queue_two")
    assert (missing.code, f"run `pgqueue db upgrade {named}`" in missing.complaint) == (4, True)
    line = missing.complaint.rpartition("`pgqueue ")[2].rstrip("`")
    assert lost(*shlex.split(line)).code == 0
    made = lost("enqueue", "send", *shlex.split(named)).out.strip()
    refused = lost("retry", made, *shlex.split(named))
    assert (refused.code, f"see `pgqueue show {made} {named}`" in refused.complaint) == (1, True)


def test_current(empty: Program, program: Program) -> None:
    assert (empty("db", "current").code, empty("db", "current").out) == (0, "none\n")
    assert f"this program brings {head()}" in empty("db", "current").err
    assert (program("db", "current").out, program("db", "current").err) == (f"{head()}\n", "")
    assert empty("db", "--json", "current").objects == [{"revision": None, "head": head()}]


def test_check(empty: Program, program: Program, sql: Sql) -> None:
    assert program("db", "check").code == 0
    assert program("db", "check", "--json").objects == [{"revision": head(), "fits": True}]
    missing = empty("db", "check")
    assert missing.code == 4
    assert "run `pgqueue db upgrade`" in missing.complaint

    sql("alter table pgqueue.tasks add column surplus int")
    drifted = program("db", "check")
    assert drifted.code == 4
    assert "surplus" in drifted.complaint


def test_downgrade_wants_a_yes(program: Program, dead: Callable[..., UUID]) -> None:
    dead()

    ran = program("db", "downgrade", "base")
    assert (ran.code, ran.out) == (2, "")
    assert "say --yes" in ran.complaint
    assert program("stats", "--json").objects[0]["total"] == 1

    assert program("db", "downgrade", "base", "--yes").out == "none\n"
    assert program("stats").code == 4
    assert program("db", "upgrade").code == 0


def test_downgrade_asks_on_a_terminal(program: Program) -> None:
    no = program.on_terminal("db", "downgrade", "base", answer="n\n")
    assert no.code == 1
    assert "Drop what stands above revision base" in no.err
    assert program("db", "current").out == f"{head()}\n"

    yes = program.on_terminal("db", "downgrade", "base", answer="y\n")
    assert yes.code == 0
    assert program("db", "current").out == "none\n"


@pytest.mark.parametrize("words", [("upgrade", "9999"), ("downgrade", "9999", "--yes"), ("sql", "nonsense")])
def test_unknown_revision_is_a_usage_error(program: Program, words: tuple[str, ...]) -> None:
    ran = program("db", *words)

    assert (ran.code, ran.out) == (2, "")
    assert "unknown revision" in ran.complaint


def test_sql_needs_no_database_and_makes_the_schema(lost: Program, empty_database_url: str) -> None:
    script = lost("db", "sql")
    assert script.code == 0
    assert "create schema if not exists pgqueue" in script.out.lower()

    with connect(empty_database_url) as connection:
        connection.execute(script.out.encode())
    assert Program(empty_database_url)("db", "check").code == 0


def test_sql_for_another_schema(lost: Program) -> None:
    out = lost("db", "sql", "--schema", "queue_two").out

    assert "queue_two.tasks" in out
    assert "pgqueue.tasks" not in out
    assert lost("db", "sql", "--schema", "Two").code == 2


# -- what does not fit


def test_missing_schema(empty: Program) -> None:
    for words in (("list",), ("stats",), ("enqueue", "send"), ("retry", "d8dd91"), ("reap",)):
        ran = empty(*words)
        assert (ran.code, ran.out) == (4, "")
        assert "run `pgqueue db upgrade`" in ran.complaint


def test_older_schema(program: Program, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '0000'")

    ran = program("list")

    assert (ran.code, ran.out) == (4, "")
    assert "is at revision 0000" in ran.complaint
    assert "run `pgqueue db upgrade`" in ran.complaint


def test_newer_schema_serves_whom_it_says(program: Program, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '9999'")
    assert program("list").code == 0
    assert program("db", "check").code == 4

    sql("update pgqueue.meta set oldest_program = '99.0'")
    ran = program("list")
    assert (ran.code, ran.out) == (4, "")
    assert "upgrade the program" in ran.complaint
    newer = program("db", "upgrade")
    assert newer.code == 4
    assert "does not know" in newer.complaint
