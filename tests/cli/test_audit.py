"""`audit`, `db journal`, and `events` of a full journal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from pgqueue.client import Client
from pgqueue.ids import new_id
from pgqueue.journal import FIELDS
from pgqueue.options import NewTask

from ..support import Sql, connect
from .running import Program


def plain(text: str) -> list[str]:
    """What a terminal shows, without its colours, line by line."""
    return re.sub("\x1b\\[[0-9;]*m", "", text).splitlines()


@pytest.fixture
def full(client: Client, sql: Sql) -> Iterator[Client]:
    client.set_journal("full")
    yield client
    client.set_journal("failures")


@pytest.fixture
def tampered(full: Client, database_url: str) -> tuple[UUID, UUID]:
    """A task of another priority than its journal says, and one whose events are gone."""
    drifted, bare = full.enqueue("work", priority=2).id, full.enqueue("work").id
    with connect(database_url) as connection:
        connection.execute("set session_replication_role = replica")
        connection.execute("update pgqueue.tasks set priority = 7 where id = %s", [drifted])
        connection.execute("delete from pgqueue.task_events where task_id = %s", [bare])
    return drifted, bare


def test_audit_of_a_journal_of_failures_says_how_to_switch_it(program: Program) -> None:
    refused = program("audit")
    assert (refused.code, refused.out) == (1, "")
    assert refused.complaint.endswith("make it full with `pgqueue db journal full`")


def test_clean_audit_ends_in_0_and_prints_no_line(program: Program, full: Client) -> None:
    full.enqueue("work")
    done = program("audit")
    assert (done.code, done.out) == (0, "")
    assert done.err.startswith("no findings in 1 task with 1 events since ")
    assert "known from the journal: status 1, attempts 1, " in done.err


def test_findings_are_lines_and_end_in_1(program: Program, tampered: tuple[UUID, UUID]) -> None:
    drifted, bare = map(str, tampered)
    done = program("audit")
    assert done.code == 1
    assert done.rows == [[bare, "journal", "it has no events", "none"], [drifted, "priority", "2", "7"]]
    assert done.err.startswith("2 findings in 2 tasks with 1 events since ")


def test_audit_as_json_ends_in_a_summary(program: Program, tampered: tuple[UUID, UUID]) -> None:
    drifted, bare = map(str, tampered)
    done = program("audit", "--json")
    *lines, summary = done.objects

    assert done.code == 1
    assert lines == [
        {"task_id": bare, "field": "journal", "journal": "it has no events", "row": None, "event_id": None},
        {"task_id": drifted, "field": "priority", "journal": 2, "row": 7, "event_id": None},
    ]
    assert summary.pop("since")
    assert summary == {"tasks": 2, "events": 1, "findings": 2, "covered": dict.fromkeys(FIELDS, 1)}
    assert done.err == ""


def test_audit_of_one_task(program: Program, tampered: tuple[UUID, UUID]) -> None:
    drifted, bare = map(str, tampered)
    assert [row[0] for row in program("audit", "--task", drifted[-12:]).rows] == [drifted]
    assert [row[0] for row in program("audit", "--task", bare).rows] == [bare]
    assert program("audit", "--task", str(new_id())).code == 0
    assert program("audit", "--task", "ffffffff").code == 1
    assert program("audit", "--task", "nonsense").code == 2


def test_event_of_a_task_that_is_gone_is_found_by_its_whole_id(program: Program, full: Client, sql: Sql) -> None:
    task_id = full.enqueue("work").id
    sql("delete from pgqueue.tasks")
    done = program("audit", "--task", str(task_id))
    assert (done.code, done.rows[0][2]) == (1, "the task is not there; its last event is enqueue")


def test_audit_goes_over_many_pages(program: Program, full: Client, sql: Sql) -> None:
    full.enqueue_many(NewTask("work", n, {}) for n in range(5_300))
    sql("update pgqueue.tasks set priority = 7")
    done = program("audit")
    assert (done.code, len(done.rows), len({row[0] for row in done.rows})) == (1, 5_300, 5_300)
    assert done.err.startswith("5,300 findings in 5,300 tasks with 5,300 events")


def test_terminal_shows_the_first_findings_and_counts_the_rest(program: Program, full: Client, sql: Sql) -> None:
    full.enqueue_many(NewTask("work", n, {}) for n in range(230))
    sql("update pgqueue.tasks set priority = 7")
    done = program.on_terminal("audit", columns=60)
    head, *lines = plain(done.out)
    assert done.code == 1
    assert head.split() == ["TASK", "FIELD", "JOURNAL", "ROW"]
    assert {tuple(line.split()[1:]) for line in lines} == {("priority", "0", "7")}
    assert len(lines) == 200
    assert "and 30 more: pipe the output" in done.err


def test_journal_is_switched_and_says_what_it_is(program: Program) -> None:
    assert program("db", "journal").out == "failures\n"
    assert program("db", "journal", "full").out == "full\n"
    assert program("db", "journal", "--json").objects == [{"journal": "full"}]
    assert program("audit").code == 0
    assert program("db", "journal", "failures").out == "failures\n"
    assert program("audit").code == 1
    assert program("db", "journal", "loud").code == 2


def test_events_of_a_full_journal(program: Program, full: Client) -> None:
    made = full.enqueue("work", None, priority=3).id
    [held] = full.claim_batch(owner="me")
    full.fail(held, "ValueError: no such address")

    first, *others = program("events", str(made), "--json").objects
    assert first["changes"] == {"priority": 3, "max_attempts": 3, "dedupe_key": None}
    assert [(one["event"], one["changes"]) for one in others] == [("claim", None), ("fail", None)]
    assert program("events", str(made)).rows[0][-1] == "priority 3, max_attempts 3"


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (100, ["AT", "EVENT", "FROM", "TO", "TRY", "BY", "DETAIL"]),
        (60, ["AT", "EVENT", "TO", "TRY", "DETAIL"]),
        (50, ["AT", "EVENT", "TRY", "DETAIL"]),
        (30, ["EVENT", "DETAIL"]),
    ],
)
def test_events_keep_their_detail_on_a_narrow_terminal(
    program: Program, client: Client, columns: int, shown: list[str]
) -> None:
    made = client.enqueue("work").id
    [held] = client.claim_batch(owner="me")
    client.fail(held, "ValueError: no such address")

    head, line = plain(program.on_terminal("events", str(made), columns=columns).out)
    assert head.split() == shown
    assert "ValueErr" in line
    assert len(line) <= columns
