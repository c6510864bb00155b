"""reschedule: another time, another priority, for what is still pending."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError, TaskNotFound, TransitionRefused
from pgqueue.ids import new_id, tail
from pgqueue.lifecycle import Status
from pgqueue.statements import channel
from tests.support import Sql, connect, eventually, rows, somebody_waits

SOON = datetime(2400, 1, 1, tzinfo=UTC)
PAST = datetime(2001, 1, 1, tzinfo=UTC)


def changes_of(sql: Sql, task_id: UUID) -> list[Any]:
    return [one for (one,) in sql("select changes from pgqueue.task_events where task_id = %s order by id", task_id)]


def test_task_is_due_when_it_is_told(face: Client, sql: Sql) -> None:
    made = face.enqueue("x", priority=2)
    task = face.reschedule(made.id, not_before=SOON, by="ada")
    assert (task.id, task.not_before, task.priority, task.status) == (made.id, SOON, 2, Status.PENDING)
    assert face.claim_batch("default") == []
    (event,) = face.events(made.id)
    assert (event.event, event.by, event.from_status, event.to_status) == (
        "reschedule",
        "ada",
        Status.PENDING,
        Status.PENDING,
    )
    (changes,) = changes_of(sql, made.id)
    assert set(changes) == {"not_before"}
    assert datetime.fromisoformat(changes["not_before"]) == SOON


def test_delay_counts_from_the_servers_now(face: Client) -> None:
    made = face.enqueue("x", delay=86_400)
    task = face.reschedule(made.id, delay=timedelta(hours=1))
    assert timedelta(minutes=59) < task.not_before - task.updated_at <= timedelta(hours=1)


@pytest.mark.parametrize("when", [{"not_before": PAST}, {"delay": 0}])
def test_past_time_becomes_now(face: Client, sql: Sql, when: dict[str, Any]) -> None:
    [(before,)] = sql("select clock_timestamp()")
    made = face.enqueue("x", delay=3600)
    task = face.reschedule(made.id, **when)
    assert before < task.not_before <= task.updated_at
    assert [one.id for one in face.claim_batch("default")] == [made.id]


def test_priority_alone_leaves_the_time(face: Client, sql: Sql) -> None:
    first, second = face.enqueue("x"), face.enqueue("x")
    was = face.get(second.id).not_before
    task = face.reschedule(second.id, priority=9)
    assert (task.priority, task.not_before) == (9, was)
    assert changes_of(sql, second.id) == [{"priority": 9}]
    assert [one.id for one in face.claim_batch("default", limit=2)] == [second.id, first.id]


def test_both_at_once(face: Client, sql: Sql) -> None:
    made = face.enqueue("x")
    task = face.reschedule(made.id, not_before=SOON, priority=-9)
    assert (task.not_before, task.priority) == (SOON, -9)
    (changes,) = changes_of(sql, made.id)
    assert set(changes) == {"not_before", "priority"}


def test_priority_that_it_has_changes_nothing(face: Client, sql: Sql) -> None:
    made = face.enqueue("x", priority=3)
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    assert face.reschedule(made.id, priority=3).priority == 3
    assert sql("select t::text, xmin::text from pgqueue.tasks t") == before
    assert face.events(made.id) == []


def test_gates_stay_shut(face: Client, database: Database) -> None:
    with database.begin() as connection:
        gated = rows.insert(connection, rows.row(waiting_on=1, requires=["stopped"]))
    task = face.reschedule(gated, delay=0, priority=9)
    assert (task.waiting_on, task.requires) == (1, ("stopped",))
    assert face.claim_batch("default") == []


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PENDING])
def test_task_that_is_not_pending_is_refused_and_says_what_it_is(
    face: Client, database: Database, sql: Sql, status: Status
) -> None:
    with database.begin() as connection:
        task_id = rows.insert(connection, rows.row(status))
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    with pytest.raises(TransitionRefused) as caught:
        face.reschedule(task_id, priority=5)
    error = caught.value
    assert (error.task_id, error.status, error.event) == (task_id, status, None)
    assert f"task {tail(task_id)} is {status}: only a pending task can be rescheduled" in str(error)
    assert sql("select t::text, xmin::text from pgqueue.tasks t") == before
    assert face.events(task_id) == []


def test_unknown_id_is_refused(face: Client) -> None:
    missing = new_id()
    with pytest.raises(TaskNotFound) as caught:
        face.reschedule(missing, priority=1)
    assert caught.value.task_id == missing


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        pytest.param({}, "not_before", id="nothing"),
        pytest.param({"delay": 1, "not_before": SOON}, "delay", id="both times"),
        pytest.param({"delay": -1}, "delay", id="negative"),
        pytest.param({"delay": timedelta(days=-1)}, "delay", id="negative timedelta"),
        pytest.param({"delay": float("nan")}, "delay", id="nan"),
        pytest.param({"delay": 1e12}, "delay", id="too long"),
        pytest.param({"not_before": SOON.replace(tzinfo=None)}, "not_before", id="naive"),
        pytest.param({"not_before": datetime(9999, 1, 1, tzinfo=UTC)}, "not_before", id="too late"),
        pytest.param({"not_before": "tomorrow"}, "not_before", id="text"),
        pytest.param({"priority": 10}, "priority", id="too high"),
        pytest.param({"priority": True}, "priority", id="bool"),
        pytest.param({"priority": 1, "delay": -1}, "delay", id="one of two"),
    ],
)
def test_bad_input_is_refused_before_the_task_is_looked_at(untouched: Client, bad: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        untouched.reschedule(new_id(), **bad)
    assert caught.value.field == field


def test_reschedule_hints_to_the_queue(face: Client, database_url: str) -> None:
    made = face.enqueue("x", queue="mail", delay=3600)
    with connect(database_url) as listening:
        listening.execute(f'listen "{channel("pgqueue")}"')
        face.reschedule(made.id, delay=0)
        assert [note.payload for note in listening.notifies(timeout=30, stop_after=1)] == ["mail"]


def test_task_that_is_claimed_at_that_moment_is_refused(
    client: Client, database: Database, database_url: str, sql: Sql
) -> None:
    made = client.enqueue("x", agent="a")
    answers: list[Any] = []

    def reschedule() -> None:
        try:
            answers.append(Client(database).reschedule(made.id, priority=9))
        except TransitionRefused as error:
            answers.append(error.status)

    with connect(database_url) as claiming:
        claiming.execute("begin")
        assert client.on(claiming).claim("a")
        thread = threading.Thread(target=reschedule, daemon=True)
        thread.start()
        eventually(lambda: somebody_waits(sql))
        claiming.execute("commit")
    thread.join(30)
    assert answers == [Status.RUNNING]
    assert client.get(made.id).priority == 0
