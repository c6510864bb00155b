"""The full journal: for each move exactly one event, whoever writes it; and the switch."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pgqueue import migrate
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import DatabaseError, InputError
from pgqueue.ids import new_id
from pgqueue.journal import Entry
from pgqueue.lifecycle import MOVES, Event, Guard, Move, Status
from pgqueue.options import NewTask
from pgqueue.task import Claimed, TaskEvent
from tests.support import Sql, connect, eventually, somebody_waits

BY = "ops@host"
HOLDER = "holder"
TRIGGERS = "select tgname::text from pg_trigger where tgname like '%_are_journalled' order by 1"

# Who writes what in the default journal; the triggers of the full one add the rest.
BY_THE_TRIGGERS: frozenset[tuple[Event, Status]] = frozenset(
    {
        (Event.CLAIM, Status.RUNNING),
        (Event.COMPLETE, Status.COMPLETED),
        (Event.SNOOZE, Status.PENDING),
    }
)


@pytest.fixture
def full(client: Client, sql: Sql) -> Iterator[Client]:
    """A client over a full journal."""
    client.set_journal("full")
    yield client
    client.set_journal("failures")


def made(client: Client, **options: Any) -> UUID:
    return client.enqueue("work", None, **options).id


def claimed(client: Client, task_id: UUID) -> Claimed:
    [held] = client.claim_batch(owner=HOLDER)
    assert held.id == task_id
    return held


def prepared(client: Client, move: Move) -> tuple[UUID, Claimed | None]:
    """A task for which the guard holds, in the status that the event leads out of."""
    task_id = made(client, max_attempts=1 if move.guard is Guard.EXHAUSTED else 3)
    held = None
    if move.source in (Status.RUNNING, Status.DEAD):
        held = claimed(client, task_id)
    if move.source is Status.DEAD:
        assert held is not None
        client.bury(held, "no")
    if move.guard is Guard.CANCEL_REQUESTED:
        client.cancel(task_id)
    return task_id, held


def expire(client: Client, sql: Sql, task_id: UUID) -> None:
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s' where id = %s", task_id)
    assert [found.id for found in client.reap()] == [task_id]


def cascade(client: Client, sql: Sql, task_id: UUID) -> None:
    parent = made(client, queue="elsewhere")
    assert client.set_gate(task_id, depends_on=[parent])
    sql("delete from pgqueue.task_events where event = 'gate'")
    client.cancel(parent)


APPLY: dict[Event, Callable[[Client, Sql, UUID, Any], object]] = {
    Event.CLAIM: lambda client, sql, task_id, held: claimed(client, task_id),
    Event.COMPLETE: lambda client, sql, task_id, held: client.complete(held, {"n": 1}),
    Event.FAIL: lambda client, sql, task_id, held: client.fail(held, "boom"),
    Event.BURY: lambda client, sql, task_id, held: client.bury(held, "boom"),
    Event.RELEASE: lambda client, sql, task_id, held: client.release(held),
    Event.SNOOZE: lambda client, sql, task_id, held: client.snooze(held, 0),
    Event.EVICT: lambda client, sql, task_id, held: client.evict(task_id, by=BY),
    Event.EXPIRE: lambda client, sql, task_id, held: expire(client, sql, task_id),
    Event.CANCEL: lambda client, sql, task_id, held: client.cancel(task_id, by=BY),
    Event.REQUEST_CANCEL: lambda client, sql, task_id, held: client.cancel(task_id, by=BY),
    Event.ACKNOWLEDGE: lambda client, sql, task_id, held: client.acknowledge_cancel(held),
    Event.CASCADE: lambda client, sql, task_id, held: cascade(client, sql, task_id),
    Event.REVIVE: lambda client, sql, task_id, held: client.retry(task_id, by=BY),
    Event.DISMISS: lambda client, sql, task_id, held: client.dismiss(task_id, by=BY),
}
WHO: dict[Event, str] = dict.fromkeys(Event, HOLDER) | dict.fromkeys(
    (Event.EVICT, Event.CANCEL, Event.REQUEST_CANCEL, Event.REVIVE, Event.DISMISS), BY
)


def move_name(move: Move) -> str:
    return f"{move.event}-{move.guard}".replace(" ", "-")


def events_of(client: Client, sql: Sql, move: Move) -> tuple[UUID, list[TaskEvent]]:
    task_id, held = prepared(client, move)
    known = {event.id for event in client.events(task_id)}
    APPLY[move.event](client, sql, task_id, held)
    assert client.get(task_id).status is move.target
    return task_id, [event for event in client.events(task_id) if event.id not in known]


@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_every_move_is_one_event_of_the_full_journal(full: Client, sql: Sql, move: Move) -> None:
    task_id, [event] = events_of(full, sql, move)

    assert (event.event, event.from_status, event.to_status) == (move.event, move.source, move.target)
    assert (event.attempt, event.fence) == ((0, 0) if move.event in (Event.CANCEL, Event.CASCADE) else (1, 1))
    assert event.by == (None if move.event is Event.CASCADE else WHO[move.event])
    found = full.audit(task_id=task_id)
    assert (found.drifts, found.gaps) == ([], [])
    assert set(found.covered.values()) == {1}


@pytest.mark.parametrize("move", MOVES, ids=move_name)
def test_default_journal_leaves_out_what_the_row_tells(client: Client, sql: Sql, move: Move) -> None:
    _, events = events_of(client, sql, move)

    expected = [] if (move.event, move.target) in BY_THE_TRIGGERS else [move.event]
    assert [event.event for event in events] == expected


def test_page_says_what_is_written_when() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "journal.md"
    rows = re.findall(r"^\| `(\w+)` \| (.*?) ?\| (yes) \|", page.read_text(), re.MULTILINE)
    written = {
        event: {move.target for move in MOVES if move.event == event}
        - {status for e, status in BY_THE_TRIGGERS if e == event}
        for event in Event
    }

    assert [event for event, _, _ in rows] == [
        Entry.ENQUEUE,
        *Event,
        Entry.GATE,
        Entry.LET_GO,
        Entry.RESCHEDULE,
        Entry.REPLACE,
    ]
    assert {event: said for event, said, _ in rows if event in written} == {
        event: "if it cancels" if event is Event.SNOOZE else "yes" if targets else ""
        for event, targets in written.items()
    }


def test_enqueue_is_an_event_with_what_may_change_later(full: Client) -> None:
    task_id = made(full, priority=4, max_attempts=7, dedupe_key="k")
    [event] = full.events(task_id)

    assert (event.event, event.from_status, event.to_status, event.attempt, event.fence) == (
        "enqueue",
        None,
        Status.PENDING,
        0,
        0,
    )
    assert event.changes == {"priority": 4, "max_attempts": 7, "dedupe_key": "k"}


def test_default_journal_knows_no_enqueue(client: Client) -> None:
    assert client.events(made(client)) == []


def test_batches_are_journalled_whole(full: Client, sql: Sql) -> None:
    count = 1_000
    full.enqueue_many(NewTask("work", n, {}) for n in range(count))
    held = full.claim_batch(limit=count, owner=HOLDER)
    with full.database.begin() as connection:
        full.store.settle_many(connection, [])
    for one in held[:3]:
        full.complete(one)

    assert dict(sql("select event, count(*) from pgqueue.task_events group by 1")) == {
        "enqueue": count,
        "claim": count,
        "complete": 3,
    }


def test_rows_of_other_programs_are_journalled_too(full: Client, sql: Sql, database_url: str) -> None:
    ids = [new_id() for _ in range(3)]
    sql("insert into pgqueue.tasks (id, queue, action) values (%s, 'default', 'work')", ids[0])
    sql(
        "insert into pgqueue.tasks (id, queue, action, status, attempts, fence, finished_at)"
        " values (%s, 'default', 'work', 'dead', 2, 3, now())",
        ids[1],
    )
    with (
        connect(database_url) as connection,
        connection.cursor().copy("copy pgqueue.tasks (id, queue, action) from stdin") as copy,
    ):
        copy.write_row((ids[2], "default", "work"))

    for task_id in ids:
        assert [event.event for event in full.events(task_id)] == ["enqueue"]
    assert full.audit().clean


def test_adopting_is_no_event(full: Client) -> None:
    task_id = made(full, dedupe_key="k")
    assert made(full, dedupe_key="k") == task_id
    assert [event.event for event in full.events(task_id)] == ["enqueue"]


def test_renewing_and_reporting_are_no_events(full: Client) -> None:
    held = claimed(full, made(full))
    full.renew(held)
    full.report_progress(held, 50, "half")
    assert [event.event for event in full.events(held.id)] == ["enqueue", "claim"]


def test_what_is_rolled_back_was_never_journalled(full: Client, database: Database, sql: Sql) -> None:
    with database.engine.connect() as connection:
        full.on(connection).enqueue("work")
        connection.rollback()
    assert sql("select count(*) from pgqueue.task_events") == [(0,)]


def test_producer_who_may_only_insert_is_journalled(full: Client, sql: Sql, database_url: str) -> None:
    sql("drop role if exists journal_producer")
    sql("create role journal_producer")
    sql("grant usage on schema pgqueue to journal_producer")
    sql("grant insert on pgqueue.tasks to journal_producer")
    with connect(database_url) as connection:
        connection.execute("set role journal_producer")
        connection.execute("insert into pgqueue.tasks (id, queue, action) values (%s, 'default', 'w')", [new_id()])
    assert sql("select event from pgqueue.task_events") == [("enqueue",)]
    sql("drop owned by journal_producer")
    sql("drop role journal_producer")


def test_plan_of_a_single_move_does_not_pair_all_with_all(full: Client, sql: Sql, database_url: str) -> None:
    # A session that has moved one task keeps that plan: with a nested loop 10,000 tasks are 100,000,000 pairs.
    sql("alter table pgqueue.tasks set (autovacuum_enabled = off)")
    move = (
        "update pgqueue.tasks set status = 'running', attempts = attempts + 1, fence = fence + 1,"
        " lease_token = gen_random_uuid(), lease_owner = 'raw', lease_expires_at = now() + interval '1 h'"
        " where status = 'pending' and id in (select id from pgqueue.tasks where status = 'pending' limit %s)"
    )
    fill = (
        "insert into pgqueue.tasks (id, queue, action) select gen_random_uuid(), 'q', 'w' from generate_series(1, %s)"
    )
    with connect(database_url) as connection:
        connection.execute(fill, [10_001])
        connection.execute(move, [1])
        connection.execute("set statement_timeout = '20s'")
        connection.execute(move, [10_000])
    assert sql("select count(*) from pgqueue.task_events where event = 'claim'") == [(10_001,)]


# -- the switch


def test_journal_says_what_it_holds(face: Client, sql: Sql) -> None:
    assert face.journal() == "failures"
    face.set_journal("full")
    assert face.journal() == "full"
    face.set_journal("failures")
    assert face.journal() == "failures"
    assert sql("select full_since from pgqueue.meta") == [(None,)]


def test_full_twice_keeps_its_beginning(full: Client, sql: Sql) -> None:
    [began] = sql("select full_since from pgqueue.meta")
    full.set_journal("full")
    assert sql("select full_since from pgqueue.meta") == [began]
    assert began[0] is not None


@pytest.mark.parametrize("mode", ["FULL", "", None, "off"])
def test_unknown_mode_is_refused(untouched: Client, mode: Any) -> None:
    with pytest.raises(InputError, match="give one of: failures, full"):
        untouched.set_journal(mode)


def test_switch_gives_up_on_an_open_writer_and_names_it(client: Client, database: Database, sql: Sql) -> None:
    with database.begin() as writer:
        client.on(writer).enqueue("work")
        pid = writer.exec_driver_sql("select pg_backend_pid()").scalar_one()
        with pytest.raises(DatabaseError) as refused, database.begin(lock_timeout=timedelta(seconds=0.1)) as ours:
            client.on(ours).set_journal("full")
    assert f"pid {pid} (" in str(refused.value)
    assert str(refused.value).endswith("run `pgqueue db journal full` again")
    assert sql("select journal, full_since from pgqueue.meta") == [("failures", None)]
    assert sql(TRIGGERS) == []


def test_readers_do_not_keep_the_journal_from_becoming_full(client: Client, database: Database) -> None:
    with database.begin() as reader:
        client.on(reader).list_tasks()
        client.set_journal("full")
        switched = pytest.raises(DatabaseError, match="run `pgqueue db journal failures` again")
        with switched, database.begin(lock_timeout=timedelta(seconds=0.1)) as ours:
            client.on(ours).set_journal("failures")
    client.set_journal("failures")


def test_triggers_are_there_while_the_journal_is_full(client: Client, sql: Sql) -> None:
    for _ in range(2):
        assert sql(TRIGGERS) == []
        client.set_journal("full")
        assert sql(TRIGGERS) == [("enqueues_are_journalled",), ("moves_are_journalled",)]
        client.set_journal("failures")
    assert sql(TRIGGERS) == []


def test_transaction_that_began_before_is_journalled_from_the_switch_on(client: Client, database: Database) -> None:
    """Whatever it sees of the rows: a trigger is not a matter of snapshots."""
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as old:
        old.exec_driver_sql("select count(*) from pgqueue.meta")
        client.set_journal("full")
        made = client.on(old).enqueue("work").id
        old.commit()
    assert [event.event for event in client.events(made)] == ["enqueue"]
    assert client.audit().clean
    client.set_journal("failures")


def test_role_that_does_not_own_the_tables_may_not_switch(client: Client, database: Database, sql: Sql) -> None:
    sql("drop role if exists journal_reader")
    sql("create role journal_reader")
    sql("grant usage on schema pgqueue to journal_reader")
    sql("grant select, insert, update, delete on all tables in schema pgqueue to journal_reader")
    with database.begin() as ours:
        ours.exec_driver_sql("set local role journal_reader")
        with pytest.raises(DatabaseError, match="the database role may not do that"):
            client.on(ours).set_journal("full")
    assert client.journal() == "failures"
    sql("drop owned by journal_reader")
    sql("drop role journal_reader")


def test_switch_waits_for_writers_and_counts_from_behind_them(client: Client, database: Database, sql: Sql) -> None:
    switching = threading.Thread(target=client.set_journal, args=("full",))
    with database.begin() as writer:
        before = client.on(writer).enqueue("work").id
        switching.start()
        eventually(lambda: somebody_waits(sql))
    switching.join(30)
    assert not switching.is_alive()
    after = made(client)

    assert [event.event for event in client.events(before)] == []
    assert [event.event for event in client.events(after)] == ["enqueue"]
    found = client.audit()
    assert (found.clean, found.tasks, found.covered["priority"]) == (True, 2, 1)
    client.set_journal("failures")


def test_downgrade_of_a_full_journal_leaves_nothing_of_it(client: Client, database: Database, sql: Sql) -> None:
    client.set_journal("full")
    migrate.downgrade(database, "0001")
    assert sql(TRIGGERS) == []
    migrate.upgrade(database)
    assert (client.journal(), sql(TRIGGERS)) == ("failures", [])
    client.set_journal("full")
    assert client.audit().clean
