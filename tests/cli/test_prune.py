"""`prune`."""

from __future__ import annotations

from typing import Any

import pytest

from pgqueue import Pruned
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.lifecycle import Status

from ..support import Sql, rows
from .running import Program

KEYS = ["tasks", "events", "edges", "oldest", "newest", "dry_run"]


@pytest.fixture
def finished(database: Database, sql: Sql) -> None:
    """Of each terminal status one task of 8 and one of 100 days ago, and one whose key is used up for ever."""
    with database.begin() as connection:
        for status in (Status.COMPLETED, Status.CANCELLED, Status.DEAD):
            for days in (8, 100):
                task_id = rows.insert(connection, rows.row(status, payload={"days": days}))
                connection.exec_driver_sql(
                    "insert into pgqueue.task_events (task_id, event, to_status) values (%s, 'fail', 'dead')",
                    (task_id,),
                )
        rows.insert(connection, rows.row(Status.COMPLETED, payload={"days": 9}, dedupe_key="k", dedupe_forever=True))
    sql("update pgqueue.tasks set finished_at = clock_timestamp() - make_interval(days => (payload ->> 'days')::int)")


def count(sql: Sql) -> int:
    return int(sql("select count(*) from pgqueue.tasks")[0][0])


@pytest.mark.usefixtures("finished")
def test_prune_deletes_what_finished_a_week_ago_and_says_what(program: Program, sql: Sql) -> None:
    [(oldest, newest)] = sql(
        "select min(finished_at), max(finished_at) from pgqueue.tasks where status <> 'dead' and not dedupe_forever"
    )

    ran = program("prune")

    assert (ran.code, ran.err) == (0, "")
    assert ran.rows == [
        ["tasks", "4"],
        ["events", "4"],
        ["edges", "0"],
        ["oldest", oldest.isoformat()],
        ["newest", newest.isoformat()],
        ["dry_run", "no"],
    ]
    assert count(sql) == 3


@pytest.mark.usefixtures("finished")
@pytest.mark.parametrize(
    ("words", "tasks"),
    [
        ((), 4),
        (("--older-than", "30d"), 2),
        (("--older-than", "0s"), 4),
        (("--older-than", "365d"), 0),
        (("--dead-older-than", "90d"), 5),
        (("--older-than", "365d", "--dead-older-than", "0s"), 2),
        (("--forever",), 5),
        (("--forever", "--dead-older-than", "0s"), 7),
    ],
)
def test_dry_run_says_what_the_same_line_then_deletes(
    program: Program, sql: Sql, words: tuple[str, ...], tasks: int
) -> None:
    [foretold] = program("prune", *words, "--dry-run", "--json").objects
    assert count(sql) == 7
    [done] = program("prune", *words, "--json").objects

    assert list(done) == KEYS
    assert foretold == done | {"dry_run": True}
    assert done["tasks"] == tasks
    assert count(sql) == 7 - tasks


@pytest.mark.usefixtures("finished")
def test_dry_run_says_so(program: Program) -> None:
    assert program("prune", "--dry-run").err == "nothing was deleted: this was a dry run\n"


def test_prune_of_nothing(program: Program, client: Client) -> None:
    client.enqueue("send")

    ran = program("prune")

    assert (ran.code, ran.err) == (0, "nothing is that old\n")
    assert ran.rows[0] == ["tasks", "0"]
    assert ran.rows[3] == ["oldest", ""]


def test_prune_goes_on_until_nothing_is_left(program: Program, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, status, finished_at)"
        " select gen_random_uuid(), 'q', 'send', 'completed', now() - interval '8 days' from generate_series(1, 2500)"
    )

    assert program("prune").rows[0] == ["tasks", "2500"]
    assert count(sql) == 0


@pytest.mark.parametrize("given", ["-1", "-1d", "7x", "", "4000d"])
def test_prune_of_no_duration_is_a_usage_error(program: Program, given: str) -> None:
    ran = program("prune", f"--older-than={given}")

    assert (ran.code, ran.out) == (2, "")
    assert "older_than" in ran.complaint


def test_prune_on_a_terminal(program: Program) -> None:
    ran = program.on_terminal("prune", "--dry-run")

    assert ran.code == 0
    assert ran.out.splitlines()[0] == "tasks    0"


@pytest.mark.usefixtures("finished")
def test_interrupted_prune_says_what_is_gone(program: Program, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    prune = Client.prune
    batches: list[Pruned] = []

    def interrupted(self: Client, **options: Any) -> Pruned:
        if batches:
            raise KeyboardInterrupt
        batches.append(prune(self, **options, limit=3))
        return batches[0]

    before = count(sql)
    monkeypatch.setattr(Client, "prune", interrupted)
    ran = program("prune")
    assert ran.code == 130
    assert count(sql) == before - 3
    assert "interrupted: 3 tasks and 3 events are gone; run it again to go on" in ran.err
