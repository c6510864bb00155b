"""What a holder writes: renew, report, complete, fail, bury, release, snooze, acknowledge; and when it may no more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from pgqueue.backoff import backoff_for
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import DatabaseError, InputError, LeaseNotHeld, PayloadError, PgqueueError, TransitionRefused
from pgqueue.ids import tail
from pgqueue.lifecycle import Event, Status
from pgqueue.store import Settlement, Store
from pgqueue.task import Claimed, Lease, Settled
from tests.support import Sql, connect, eventually, somebody_waits

Write = Callable[[Client, Claimed], Settled]

WRITES: dict[str, tuple[Write, Status]] = {
    "complete": (lambda client, held: client.complete(held, {"n": 1}), Status.COMPLETED),
    "fail": (lambda client, held: client.fail(held, "boom"), Status.PENDING),
    "bury": (lambda client, held: client.bury(held, "no"), Status.DEAD),
    "release": (lambda client, held: client.release(held), Status.PENDING),
    "snooze": (lambda client, held: client.snooze(held, 60), Status.PENDING),
}
ALL_WRITES = list(WRITES)


def hold(client: Client, agent: str = "a", **options: Any) -> Claimed:
    client.enqueue("noop", {"a": 1}, agent=agent, **options)
    held = client.claim(agent, owner="me")
    assert held is not None
    return held


def about(value: timedelta) -> Any:
    return pytest.approx(value, abs=timedelta(seconds=5))


def test_complete_ends_the_task_with_its_result(face: Client) -> None:
    held = hold(face)
    assert face.complete(held, {"sum": [1, 2.5, None, "é"]}) == Settled(held.id, Status.COMPLETED, 1)
    task = face.get(held.id)
    assert (task.status, task.result, task.progress) == (Status.COMPLETED, {"sum": [1, 2.5, None, "é"]}, 100)
    assert (task.lease_owner, task.lease_expires_at, task.last_error) == (None, None, None)
    assert task.finished_at is not None


def test_complete_without_a_result_stores_none(face: Client, sql: Sql) -> None:
    face.complete(hold(face))
    assert sql("select result is null from pgqueue.tasks") == [(True,)]


def test_complete_takes_a_lease_as_well_as_a_claimed_task(face: Client) -> None:
    assert face.complete(hold(face).lease).status is Status.COMPLETED


def test_complete_wins_over_a_cancel_request(face: Client) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert face.complete(held, 1).status is Status.COMPLETED


@pytest.mark.parametrize("result", [float("nan"), {1: 2}, "\x00", object(), "x" * (1024 * 1024)])
def test_complete_with_a_result_that_is_no_json_is_refused_and_the_lease_kept(face: Client, result: Any) -> None:
    held = hold(face)
    with pytest.raises(PayloadError):
        face.complete(held, result)
    assert face.get(held.id).status is Status.RUNNING
    assert face.fail(held, "no result").status is Status.PENDING


def test_fail_puts_the_task_back_behind_its_backoff(face: Client) -> None:
    held = hold(face)
    assert face.fail(held, "boom") == Settled(held.id, Status.PENDING, 1)
    task = face.get(held.id)
    assert (task.status, task.last_error, task.attempts) == (Status.PENDING, "boom", 1)
    assert task.not_before - task.updated_at == about(backoff_for(1))


def test_fail_waits_longer_each_time(face: Client, sql: Sql) -> None:
    held = hold(face, max_attempts=5)
    for n in (1, 2, 3):
        face.fail(held, f"boom {n}")
        task = face.get(held.id)
        assert abs(task.not_before - task.updated_at - backoff_for(n)) < timedelta(seconds=2)
        sql("update pgqueue.tasks set not_before = now()")
        again = face.claim("a")
        assert again is not None
        held = again
    assert held.attempt == 4


@pytest.mark.parametrize(("delay", "wait"), [(0, 0), (1.5, 1.5), (timedelta(hours=2), 7200)])
def test_fail_with_a_delay_waits_that_instead(face: Client, delay: Any, wait: float) -> None:
    held = hold(face)
    face.fail(held, "429", delay=delay)
    task = face.get(held.id)
    assert task.not_before - task.updated_at == pytest.approx(timedelta(seconds=wait), abs=timedelta(seconds=1))


def test_fail_with_no_attempt_left_ends_dead(face: Client) -> None:
    held = hold(face, max_attempts=1)
    assert face.fail(held, "boom") == Settled(held.id, Status.DEAD, 1)
    task = face.get(held.id)
    assert (task.last_error, task.finished_at is not None) == ("boom", True)


def test_fail_after_a_cancel_request_ends_cancelled(face: Client) -> None:
    held = hold(face, max_attempts=1)
    face.cancel(held.id)
    assert face.fail(held, "boom").status is Status.CANCELLED


def test_fail_with_an_error_that_no_column_takes_writes_a_clean_one(face: Client) -> None:
    held = hold(face)
    face.fail(held, "a\x00b\ud800" + "é" * 100_000)
    error = face.get(held.id).last_error
    assert error is not None
    assert error.startswith("a")
    assert len(error.encode()) <= 64 * 1024


def test_bury_ends_dead_whatever_attempts_are_left(face: Client) -> None:
    held = hold(face, max_attempts=10)
    assert face.bury(held, "no such host") == Settled(held.id, Status.DEAD, 1)
    assert face.get(held.id).last_error == "no such host"


def test_release_gives_the_attempt_back_and_keeps_the_place(face: Client) -> None:
    held = hold(face)
    assert face.release(held) == Settled(held.id, Status.PENDING, 0)
    task = face.get(held.id)
    assert (task.not_before, task.attempts, task.fence) == (held.not_before, 0, 1)


def test_release_of_a_middle_task_comes_before_what_became_due_after_it(face: Client) -> None:
    first = hold(face)
    later = face.enqueue("noop", agent="a")
    face.release(first)
    again = face.claim("a")
    assert again is not None
    assert again.id == first.id != later.id


def test_snooze_gives_the_attempt_back_and_waits(face: Client) -> None:
    held = hold(face)
    assert face.snooze(held, timedelta(minutes=10)) == Settled(held.id, Status.PENDING, 0)
    task = face.get(held.id)
    assert task.not_before - task.updated_at == about(timedelta(minutes=10))


@pytest.mark.parametrize("delay", [-1, float("nan"), "5", None, timedelta(days=-1)])
def test_snooze_with_a_bad_delay_is_refused_and_the_lease_kept(face: Client, delay: Any) -> None:
    held = hold(face)
    with pytest.raises(InputError, match="delay"):
        face.snooze(held, delay)
    assert face.renew(held).id == held.id


@pytest.mark.parametrize("write", ["bury", "release", "snooze"])
def test_settle_after_a_cancel_request_ends_cancelled(face: Client, write: str) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert WRITES[write][0](face, held).status is Status.CANCELLED
    assert face.get(held.id).finished_at is not None


def test_acknowledge_cancel_ends_the_task(face: Client) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert face.acknowledge_cancel(held) == Settled(held.id, Status.CANCELLED, 1)


def test_acknowledge_cancel_that_nobody_asked_for_is_refused(face: Client) -> None:
    held = hold(face)
    with pytest.raises(TransitionRefused, match="nobody asked") as caught:
        face.acknowledge_cancel(held)
    assert (caught.value.task_id, caught.value.status) == (held.id, Status.RUNNING)
    assert caught.value.event is Event.ACKNOWLEDGE
    assert face.get(held.id).status is Status.RUNNING


@pytest.mark.parametrize("write", ALL_WRITES)
def test_settle_sent_twice_recognises_its_first_success(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    settle, target = WRITES[write]
    first = settle(face, held)
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    assert settle(face, held) == first
    assert first.status is target
    assert sql("select t::text, xmin::text from pgqueue.tasks t") == before
    assert sql("select max(n) from (select count(*) n from pgqueue.task_events group by event) x")[0][0] in (None, 1)


def test_acknowledge_sent_twice_recognises_its_first_success(face: Client) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert face.acknowledge_cancel(held) == face.acknowledge_cancel(held)


@pytest.mark.parametrize("write", ALL_WRITES)
def test_settle_after_another_kind_of_settle_is_refused(face: Client, sql: Sql, write: str) -> None:
    other = "complete" if write != "complete" else "fail"
    held = hold(face)
    WRITES[write][0](face, held)
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    with pytest.raises(LeaseNotHeld) as caught:
        WRITES[other][0](face, held)
    assert caught.value.status is WRITES[write][1]
    assert sql("select t::text, xmin::text from pgqueue.tasks t") == before


@pytest.mark.parametrize("write", [*ALL_WRITES, "renew", "report_progress", "acknowledge_cancel"])
def test_settle_by_a_holder_whose_task_another_holds_names_that_one(face: Client, sql: Sql, write: str) -> None:
    late = hold(face)
    face.evict(late.id)
    new = face.claim("a", owner="web-2:4711")
    assert new is not None
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    with pytest.raises(LeaseNotHeld, match="web-2:4711") as caught:
        attempt(face, write, late)
    error = caught.value
    assert (error.task_id, error.status, error.owner) == (late.id, Status.RUNNING, "web-2:4711")
    assert error.since == face.get(late.id).started_at
    assert tail(late.id) in str(error)
    assert "stop the work" in str(error)
    assert sql("select t::text, xmin::text from pgqueue.tasks t") == before
    assert face.complete(new).status is Status.COMPLETED


def attempt(client: Client, write: str, held: Claimed) -> object:
    if write == "renew":
        return client.renew(held)
    if write == "report_progress":
        return client.report_progress(held, 5)
    if write == "acknowledge_cancel":
        return client.acknowledge_cancel(held)
    return WRITES[write][0](client, held)


@pytest.mark.parametrize("write", ["complete", "renew", "report_progress"])
def test_settle_with_a_wrong_token_is_refused(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    forged = Claimed(Lease(held.id, uuid4(), held.fence, "a", "default", held.lease.deadline), *parts(held))
    with pytest.raises(LeaseNotHeld, match="me holds it since"):
        attempt(face, write, forged)
    assert sql("select status, progress from pgqueue.tasks") == [("running", 0)]


def parts(held: Claimed) -> tuple[Any, ...]:
    return tuple(getattr(held, name) for name in Claimed.__struct_fields__ if name != "lease")


@pytest.mark.parametrize("write", ["complete", "renew", "report_progress"])
def test_settle_of_a_task_that_is_gone_says_so(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    sql("delete from pgqueue.tasks")
    with pytest.raises(LeaseNotHeld, match="gone") as caught:
        attempt(face, write, held)
    assert caught.value.status is None


def test_settle_beside_a_holder_that_never_said_since_when_says_what_it_can(face: Client, sql: Sql) -> None:
    held = hold(face)
    sql("update pgqueue.tasks set lease_token = gen_random_uuid(), lease_owner = 'by hand', started_at = null")
    with pytest.raises(LeaseNotHeld, match="by hand holds it since"):
        face.complete(held)


@pytest.mark.parametrize("write", ["release", "snooze"])
def test_attempt_of_a_row_that_counted_none_is_not_given_back(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    sql("update pgqueue.tasks set attempts = 0")
    assert WRITES[write][0](face, held).attempts == 0


@pytest.mark.parametrize("write", [*ALL_WRITES, "renew", "report_progress"])
def test_settle_after_expiry_and_before_the_reaper_is_accepted(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 hour'")
    attempt(face, write, held)
    assert face.reap() == [] or write == "report_progress"


@pytest.mark.parametrize("write", [*ALL_WRITES, "renew", "report_progress"])
def test_settle_after_the_reaper_is_refused(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 hour'")
    assert [r.id for r in face.reap()] == [held.id]
    with pytest.raises(LeaseNotHeld, match="it is pending since") as caught:
        attempt(face, write, held)
    assert (caught.value.status, caught.value.owner) == (Status.PENDING, None)


def test_renew_extends_the_lease_from_the_servers_now(face: Client, sql: Sql) -> None:
    held = hold(face)
    renewed = face.renew(held, lease=600)
    assert renewed.deadline == face.get(held.id).lease_expires_at
    assert not renewed.cancel_requested
    assert sql("select lease_expires_at - updated_at > interval '599 s' from pgqueue.tasks") == [(True,)]


def test_renew_learns_of_a_cancel_request(face: Client) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert face.renew(held).cancel_requested


@pytest.mark.parametrize("lease", [0, -1, 8 * 86_400, "60"])
def test_renew_with_a_bad_lease_is_refused(face: Client, lease: Any) -> None:
    with pytest.raises(InputError, match="lease"):
        face.renew(hold(face), lease=lease)


def test_report_progress_writes_percent_and_message(face: Client) -> None:
    held = hold(face)
    face.report_progress(held, 40, "half\x00way")
    task = face.get(held.id)
    assert task.progress == 40
    assert task.message is not None
    assert task.message.startswith("half")
    face.report_progress(held, 41)
    assert (face.get(held.id).progress, face.get(held.id).message) == (41, task.message)


def test_report_progress_cuts_a_long_message(face: Client) -> None:
    held = hold(face)
    face.report_progress(held, 0, "é" * 5000)
    message = face.get(held.id).message
    assert message is not None
    assert 0 < len(message.encode()) <= 4096


@pytest.mark.parametrize("percent", [-1, 101, 5.0, "5", True])
def test_report_progress_out_of_range_is_refused(face: Client, percent: Any) -> None:
    with pytest.raises(InputError, match="percent"):
        face.report_progress(hold(face), percent)


# -- rows that somebody has locked


def test_settle_many_of_a_locked_row_answers_none_and_does_the_rest(
    client: Client, database: Database, database_url: str
) -> None:
    locked, free, lost = hold(client, "a"), hold(client, "b"), hold(client, "c")
    client.evict(lost.id)
    store = Store("pgqueue")
    settlements = [Settlement(Event.COMPLETE, held.lease, "1") for held in (locked, free, lost)]
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [locked.id])
        with database.begin() as connection:
            done = store.settle_many(connection, settlements)
    assert done[locked.id] is None
    assert done[free.id] == Settled(free.id, Status.COMPLETED, 1)
    assert isinstance(done[lost.id], LeaseNotHeld)
    with database.begin() as connection:
        again = store.settle_many(connection, settlements[:1], skip_locked=False)
    assert again == {locked.id: Settled(locked.id, Status.COMPLETED, 1)}


def test_settle_many_takes_several_kinds_of_events_at_once(client: Client, database: Database) -> None:
    held = [hold(client, f"a{n}") for n in range(5)]
    events = [Event.FAIL, Event.COMPLETE, Event.RELEASE, Event.BURY, Event.SNOOZE]
    settlements = [
        Settlement(event, h.lease, "1" if event is Event.COMPLETE else None, timedelta(seconds=9))
        for event, h in zip(events, held, strict=True)
    ]
    with database.begin() as connection:
        done = Store("pgqueue").settle_many(connection, settlements)
    assert [s.status for h in held if isinstance(s := done[h.id], Settled)] == [
        Status.PENDING,
        Status.COMPLETED,
        Status.PENDING,
        Status.DEAD,
        Status.PENDING,
    ]


def test_renew_many_of_a_locked_row_answers_none(client: Client, database: Database, database_url: str) -> None:
    locked, free, lost = hold(client, "a"), hold(client, "b"), hold(client, "c")
    client.complete(lost)
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [locked.id])
        with database.begin() as connection:
            leases = [h.lease for h in (locked, free, lost)]
            done = Store("pgqueue").renew_many(connection, leases, lease=timedelta(seconds=60))
    renewed = done[free.id]
    assert done[locked.id] is None
    assert renewed is not None
    assert not isinstance(renewed, LeaseNotHeld)
    assert renewed.id == free.id
    assert isinstance(done[lost.id], LeaseNotHeld)


def test_report_many_of_a_locked_row_leaves_it_out(client: Client, database: Database, database_url: str) -> None:
    locked, free = hold(client, "a"), hold(client, "b")
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [locked.id])
        with database.begin() as connection:
            reports = [(locked.lease, 10, None), (free.lease, 20, "m")]
            assert Store("pgqueue").report_many(connection, reports) == {free.id}
    assert (client.get(free.id).progress, client.get(locked.id).progress) == (20, 0)


@pytest.mark.parametrize("write", ["complete", "renew"])
def test_settle_of_a_row_that_is_locked_for_a_moment_waits_for_it(
    client: Client, database_url: str, sql: Sql, write: str
) -> None:
    held = hold(client)
    answers: list[object] = []
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [held.id])
        waiting = threading.Thread(target=lambda: answers.append(attempt(client, write, held)))
        waiting.start()
        eventually(lambda: somebody_waits(sql))
        assert answers == []
    waiting.join(30)
    assert len(answers) == 1


def test_settle_of_a_row_that_stays_locked_is_answered_within_the_lock_timeout(
    client: Client, database: Database, database_url: str
) -> None:
    held = hold(client)
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [held.id])
        with pytest.raises(DatabaseError, match="try again") as caught, database.begin() as connection:  # noqa: PT012
            connection.exec_driver_sql("set local lock_timeout = '50ms'")
            Store("pgqueue").complete(connection, held)
    assert "\n" not in str(caught.value)
    assert client.complete(held).status is Status.COMPLETED


def test_settle_beside_a_foreign_key_on_the_row_is_still_answered(client: Client, database_url: str) -> None:
    held = hold(client)
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for key share", [held.id])
        assert client.renew(held).id == held.id


def test_lease_not_held_of_a_finished_task_says_what_it_became_and_when(face: Client) -> None:
    held = hold(face)
    face.complete(held)
    with pytest.raises(LeaseNotHeld) as caught:
        face.renew(held)
    since = caught.value.since
    assert caught.value.status is Status.COMPLETED
    assert since is not None
    assert abs(since - datetime.now(UTC)) < timedelta(hours=1)
    assert f"it is completed since {since:%Y-%m-%d %H:%M:%S}Z" in str(caught.value)
    assert isinstance(caught.value, PgqueueError)
