"""The audit: silent after real lives, and loud about each kind of tampering."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError, JournalOff, PgqueueError
from pgqueue.ids import new_id
from pgqueue.journal import FIELDS, Audit
from pgqueue.options import NewTask
from pgqueue.task import Claimed
from tests.support import Sql, connect


@pytest.fixture
def full(face: Client, sql: Sql) -> Iterator[Client]:
    """Each face of the client, over a full journal."""
    face.set_journal("full")
    yield face
    face.set_journal("failures")


@pytest.fixture
def unseen(database_url: str) -> Iterator[Callable[..., Any]]:
    """`unseen(text, *params)`: as somebody writes whom no trigger sees."""
    with connect(database_url) as connection:
        connection.execute("set session_replication_role = replica")

        def run(text: str, *params: object) -> int:
            return connection.execute(text, params or None).rowcount

        yield run


def hold(client: Client, **options: Any) -> Claimed:
    client.enqueue("work", None, queue="lives", **options)
    [held] = client.claim_batch("lives")
    return held


def live(client: Client, sql: Sql) -> None:
    """Lives with every verb in them."""
    client.complete(hold(client))
    client.report_progress(held := hold(client), 10)
    client.renew(held)
    client.fail(held, "boom", delay=0)
    [held] = client.claim_batch("lives")
    client.release(held)
    [held] = client.claim_batch("lives")
    client.snooze(held, 0)
    [held] = client.claim_batch("lives")
    client.evict(held.id)
    [held] = client.claim_batch("lives")
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s' where id = %s", held.id)
    client.reap()
    client.reschedule(held.id, delay=0)
    [held] = client.claim_batch("lives")
    client.bury(held, "no")
    client.retry(held.id)
    [held] = client.claim_batch("lives")
    client.bury(held, "no")
    client.dismiss(held.id)
    for settle in (client.release, lambda one: client.fail(one, "x"), lambda one: client.snooze(one, 9)):
        held = hold(client)
        client.cancel(held.id)
        settle(held)
    client.cancel((held := hold(client)).id)
    client.acknowledge_cancel(held)
    client.cancel((held := hold(client)).id)
    client.complete(held)
    client.enqueue("work", dedupe_key="k", queue="later", priority=3, delay=60)
    adopted = client.enqueue("work", dedupe_key="k", queue="later")
    client.reschedule(adopted.id, priority=-2, delay=30)
    client.cancel(adopted.id)
    parents = [client.enqueue("work", queue="lives").id for _ in range(2)]
    child = client.enqueue("work", queue="later", depends_on=parents).id
    grandchild = client.enqueue("work", queue="later", depends_on=[child]).id
    client.set_gate(grandchild, depends_on=[child, parents[0]], requires=["spare"])
    for held in client.claim_batch("lives", limit=2):
        client.complete(held)
    client.cancel(child)
    orphan = client.enqueue("work", queue="later", depends_on=[new_id()]).id
    sql("update pgqueue.task_dependencies set look_at = now() where child_id = %s", orphan)
    client.sweep()
    client.enqueue("work", {"n": 1}, queue="later", agent="a")
    client.replace_pending_payload("work", {"n": 2}, agent="a")


def found(audit: Audit) -> list[tuple[Any, ...]]:
    return [(one.task_id, one.field, one.journal, one.row) for one in audit.drifts] + [
        (one.task_id, "journal", one.why) for one in audit.gaps
    ]


def test_lives_with_every_verb_leave_no_drift(full: Client, sql: Sql) -> None:
    live(full, sql)
    audit = full.audit()

    assert found(audit) == []
    [(tasks, events)] = sql("select (select count(*) from pgqueue.tasks), count(*) from pgqueue.task_events")
    assert (audit.tasks, audit.events, audit.next) == (tasks, events, None)
    assert dict(audit.covered) == dict.fromkeys(FIELDS, tasks)
    assert audit.clean


def test_sweep_that_lets_go_and_cancels_at_once_tells_both_in_order(
    client: Client, database: Database, sql: Sql
) -> None:
    client.set_journal("full")
    client.bury(parent := hold(client), "no")
    with database.begin() as connection:
        child = client.on(connection).enqueue("work", queue="later", depends_on=[parent.id, new_id()]).id
    sql("update pgqueue.task_dependencies set look_at = now()")
    client.sweep()

    assert client.get(child).status == "cancelled"
    assert found(client.audit()) == []
    client.set_journal("failures")


def test_busy_queue_is_no_drift(client: Client, sql: Sql) -> None:
    """Rows and events are read as of one moment, whatever moves meanwhile."""
    client.set_journal("full")
    client.enqueue_many(NewTask("work", n, {"max_attempts": 1000}) for n in range(200))
    stop = threading.Event()
    broken: list[BaseException] = []

    ways: list[Callable[[Claimed], object]] = [
        client.release,
        lambda one: client.fail(one, "x", delay=0),
        lambda one: client.snooze(one, 0),
        lambda one: client.evict(one.id),
    ]

    def churn(seed: int) -> None:
        dice = random.Random(seed)
        try:
            while not stop.is_set():
                for held in client.claim_batch(limit=10):
                    dice.choice(ways)(held)
        except PgqueueError as error:
            broken.append(error)

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    seen: set[int] = set()
    try:
        while len(seen) < 5:
            audit = client.audit()
            assert found(audit) == []
            seen.add(audit.events)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert broken == []
    assert client.audit().clean
    client.set_journal("failures")


# -- what it must find: by whom, and how it shows; `{task}` and `{last}`, `{first}` are the task's and its events' ids

EDITS: dict[str, tuple[str, list[str]]] = {
    "status": (
        """update pgqueue.tasks set status = 'completed', finished_at = now(), lease_owner = null,
            lease_expires_at = null where id = '{task}'""",
        ["status"],
    ),
    "attempts": ("update pgqueue.tasks set attempts = 1 where id = '{task}'", ["attempts"]),
    "fence": ("update pgqueue.tasks set fence = 9 where id = '{task}'", ["fence"]),
    "priority": ("update pgqueue.tasks set priority = 9 where id = '{task}'", ["priority"]),
    "max_attempts": ("update pgqueue.tasks set max_attempts = 9 where id = '{task}'", ["max_attempts"]),
    "dedupe_key": ("update pgqueue.tasks set dedupe_key = 'other' where id = '{task}'", ["dedupe_key"]),
    "key taken off": ("update pgqueue.tasks set dedupe_key = null where id = '{task}'", ["dedupe_key"]),
    "cancel_requested": ("update pgqueue.tasks set cancel_requested = true where id = '{task}'", ["cancel_requested"]),
    "edge lifted": ("update pgqueue.task_dependencies set lifted_at = now()", ["waiting_on"]),
    "edge deleted": ("delete from pgqueue.task_dependencies", ["waiting_on"]),
    "row deleted": ("delete from pgqueue.tasks where id = '{task}'", ["journal"]),
    "row inserted": (
        "insert into pgqueue.tasks (id, queue, action) values (gen_random_uuid(), 'default', 'work')",
        ["journal"],
    ),
    "last event deleted": ("delete from pgqueue.task_events where id = {last}", ["status", "attempts", "fence"]),
    "event within deleted": ("delete from pgqueue.task_events where id = {last} - 1", ["journal"]),
    "first event deleted": ("delete from pgqueue.task_events where id = {first}", ["journal"]),
    "all events deleted": ("delete from pgqueue.task_events where task_id = '{task}'", ["journal"]),
    "to_status edited": ("update pgqueue.task_events set to_status = 'dead' where id = {last}", ["status", "journal"]),
    "from_status edited": ("update pgqueue.task_events set from_status = 'dead' where id = {last}", ["journal"]),
    "attempt edited": ("update pgqueue.task_events set attempt = 7 where id = {last}", ["attempts", "journal"]),
    "fence edited": ("update pgqueue.task_events set fence = 7 where id = {last}", ["fence", "journal"]),
    "event renamed": ("update pgqueue.task_events set event = 'fail' where id = {last}", ["journal"]),
    "changes edited": (
        "update pgqueue.task_events set changes = jsonb_set(changes, '{{priority}}', '5') where id = {first}",
        ["priority"],
    ),
}


@pytest.mark.parametrize("edit", EDITS)
def test_tampering_is_found(full: Client, unseen: Callable[..., Any], edit: str) -> None:
    held = hold(full, dedupe_key="k", max_attempts=5)
    full.fail(held, "boom", delay=0)
    [held] = full.claim_batch("lives")
    full.enqueue("work", queue="later", depends_on=[held.id])
    others = [full.enqueue("other", queue="later").id for _ in range(3)]
    assert full.audit().clean

    text, shows = EDITS[edit]
    ids = [event.id for event in full.events(held.id)]
    assert unseen(text.format(task=held.id, first=ids[0], last=ids[-1])) >= 1

    lines = found(full.audit())
    assert {field for _, field, *_ in lines} == set(shows)
    assert len({task_id for task_id, *_ in lines}) == 1
    assert not {task_id for task_id, *_ in lines} & set(others)


def test_drift_tells_both_values(full: Client, unseen: Callable[..., Any]) -> None:
    task_id = full.enqueue("work", priority=2).id
    unseen("update pgqueue.tasks set priority = 7, dedupe_key = 'k' where id = %s", task_id)
    assert found(full.audit()) == [(task_id, "priority", 2, 7), (task_id, "dedupe_key", None, "k")]


@pytest.mark.parametrize(
    "change",
    [
        "status = 'dead', finished_at = now()",
        "status = 'running', lease_token = id, lease_owner = 'me', lease_expires_at = now()",
        "status = 'completed', finished_at = now()",
        "status = 'running', lease_token = id, lease_owner = 'me', lease_expires_at = now(), fence = 2, attempts = 1",
    ],
)
def test_hand_written_move_is_not_journalled_and_so_found(full: Client, sql: Sql, change: str) -> None:
    task_id = full.enqueue("work").id
    sql(f"update pgqueue.tasks set {change} where id = %s", task_id)
    assert (task_id, "status") in [line[:2] for line in found(full.audit())]


# -- what it covers


def test_audit_of_a_journal_of_failures_is_refused_with_the_way_out(face: Client) -> None:
    with pytest.raises(JournalOff) as refused:
        face.audit()
    assert str(refused.value).endswith("make it full with `pgqueue db journal full`")
    assert refused.value.task_id is None


def test_older_tasks_are_covered_as_far_as_their_events_tell(client: Client, sql: Sql) -> None:
    idle = client.enqueue("work", queue="later", priority=1).id
    running = hold(client, priority=1)
    client.fail(old := hold(client), "boom")  # of before: says nothing about what came later
    client.set_journal("full")
    client.release(running)

    audit = client.audit()
    assert found(audit) == []
    assert (audit.tasks, audit.events) == (3, 1)
    assert dict(audit.covered) == dict.fromkeys(FIELDS, 0) | dict.fromkeys(
        ("status", "attempts", "fence", "cancel_requested"), 1
    )
    sql("update pgqueue.tasks set priority = 9, fence = 8 where id = any (%s)", [idle, running.id, old.id])
    assert found(client.audit()) == [(running.id, "fence", 1, 8)]
    client.set_journal("failures")


def test_journal_that_was_off_in_between_is_read_from_its_new_beginning(client: Client, sql: Sql) -> None:
    client.set_journal("full")
    held = hold(client)
    client.set_journal("failures")
    client.complete(held)
    client.set_journal("full")

    audit = client.audit()
    assert (found(audit), audit.tasks, audit.events) == ([], 1, 0)
    client.set_journal("failures")


def test_pruned_task_leaves_no_gap(full: Client, sql: Sql) -> None:
    held = hold(full)
    full.complete(held)
    sql("update pgqueue.tasks set finished_at = now() - interval '30 days'")
    assert full.prune().tasks == 1
    assert (full.audit().clean, full.audit().tasks) == (True, 0)


def test_empty_queue_is_clean(full: Client) -> None:
    audit = full.audit()
    assert (audit.clean, audit.tasks, audit.events, audit.next) == (True, 0, 0, None)


def test_one_task_alone(full: Client, unseen: Callable[..., Any]) -> None:
    ids = [full.enqueue("work").id for _ in range(3)]
    unseen("update pgqueue.tasks set priority = 7")

    assert found(full.audit(task_id=ids[1])) == [(ids[1], "priority", 0, 7)]
    assert full.audit(task_id=new_id()).tasks == 0


def test_pages_add_up_to_the_whole(full: Client, unseen: Callable[..., Any]) -> None:
    full.enqueue_many(NewTask("work", n, {}) for n in range(1_203))
    unseen("update pgqueue.tasks set priority = 7 where random() < 0.1")
    unseen("delete from pgqueue.tasks where random() < 0.1")
    whole = full.audit()

    pages: list[Audit] = []
    while not pages or pages[-1].next is not None:
        pages.append(full.audit(after=pages[-1].next if pages else None, limit=250))
    total = pages[0]
    for page in pages[1:]:
        total += page
    assert len(pages) >= 4
    assert sorted(found(total), key=str) == sorted(found(whole), key=str)
    assert found(whole)
    assert (total.tasks, total.events, total.covered) == (whole.tasks, whole.events, whole.covered)


@pytest.mark.parametrize("limit", [0, -1, 1_000_001, True, "9"])
def test_limit_is_checked(untouched: Client, limit: Any) -> None:
    with pytest.raises(InputError, match="limit"):
        untouched.audit(limit=limit)


def test_last_id_there_can_be_is_no_place_to_go_on_from(full: Client) -> None:
    full.enqueue("work")
    assert full.audit(after=UUID(int=2**128 - 1)).tasks == 0


def test_odd_changes_fail_no_audit(full: Client, sql: Sql) -> None:
    task_id = full.enqueue("work").id
    sql("update pgqueue.task_events set changes = '[1, {\"priority\": 3}]' where task_id = %s", task_id)
    assert found(full.audit()) == []
    assert full.events(task_id)[0].changes == [1, {"priority": 3}]


def test_numbers_that_python_cannot_read_do_not_hide_the_other_events(client: Client, sql: Sql) -> None:
    task_id = client.enqueue("work").id
    client.cancel(task_id)
    with pytest.raises(psycopg.Error):
        sql("update pgqueue.task_events set changes = '[NaN]'")
    sql("update pgqueue.task_events set changes = ('[' || repeat('9', 5000) || ']')::jsonb")
    [event] = client.events(task_id)
    assert event.event == "cancel"
    assert str(event.changes).startswith("[99")


def test_number_that_no_int_can_be_read_from_is_drift_and_no_error(client: Client, sql: Sql) -> None:
    client.set_journal("full")
    task_id = client.enqueue("act").id
    sql(
        "insert into pgqueue.task_events (task_id, event, from_status, to_status, changes)"
        " values (%s, 'reschedule', 'pending', 'pending', ('{\"priority\": ' || repeat('9', 5000) || '}')::jsonb)",
        task_id,
    )
    found = client.audit()
    assert [(one.field, one.row) for one in found.drifts] == [("priority", 0)]
    client.set_journal("failures")
