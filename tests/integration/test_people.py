"""cancel, retry, dismiss, evict: what people do; and reap, which does it for holders that are gone."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue.backoff import backoff_for
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError, KeyHeld, LeaseNotHeld, Refused, TaskNotFound, TransitionRefused
from pgqueue.ids import new_id, tail
from pgqueue.lifecycle import Event, Status
from pgqueue.statements import channel
from pgqueue.store import Reaped, Store
from pgqueue.task import Claimed
from tests.support import Sql, connect, eventually, somebody_waits


def hold(client: Client, agent: str = "a", **options: Any) -> Claimed:
    client.enqueue("noop", {"a": 1}, agent=agent, **options)
    held = client.claim(agent, owner="me")
    assert held is not None
    return held


def task_in(client: Client, status: Status, **options: Any) -> UUID:
    """A task that came to that status as tasks do."""
    if status is Status.PENDING:
        return client.enqueue("noop", agent="a", **options).id
    held = hold(client, **options)
    if status is Status.COMPLETED:
        client.complete(held)
    elif status is Status.DEAD:
        client.bury(held, "no such host")
    elif status is Status.CANCELLED:
        client.cancel(held.id)
        client.acknowledge_cancel(held)
    return held.id


def expire(sql: Sql, *ids: UUID) -> None:
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s' where id = any(%s)", list(ids))


VERBS = {
    "cancel": (Event.CANCEL, {Status.PENDING, Status.RUNNING}),
    "retry": (Event.REVIVE, {Status.DEAD}),
    "dismiss": (Event.DISMISS, {Status.DEAD}),
    "evict": (Event.EVICT, {Status.RUNNING}),
}
UNFIT = [
    pytest.param(verb, event, status, id=f"{verb}-{status}")
    for verb, (event, fit) in VERBS.items()
    for status in Status
    if status not in fit
]


@pytest.mark.parametrize(("verb", "event", "status"), UNFIT)
def test_verb_on_a_task_in_another_status_is_refused_and_says_which(
    face: Client, sql: Sql, verb: str, event: Event, status: Status
) -> None:
    task_id = task_in(face, status)
    before = sql("select t::text, xmin::text from pgqueue.tasks t"), sql("select count(*) from pgqueue.task_events")
    with pytest.raises(TransitionRefused) as caught:
        getattr(face, verb)(task_id)
    error = caught.value
    assert (error.task_id, error.status, error.event) == (task_id, status, event)
    assert f"is {status}" in str(error)
    assert tail(task_id) in str(error)
    assert f"pgqueue show {task_id}" in str(error)
    assert isinstance(error, Refused)
    assert (
        sql("select t::text, xmin::text from pgqueue.tasks t"),
        sql("select count(*) from pgqueue.task_events"),
    ) == before


@pytest.mark.parametrize("verb", VERBS)
def test_verb_on_an_unknown_id_is_refused(face: Client, verb: str) -> None:
    unknown = new_id()
    with pytest.raises(TaskNotFound, match=str(unknown)) as caught:
        getattr(face, verb)(unknown)
    assert caught.value.task_id == unknown
    assert isinstance(caught.value, LookupError)


# -- cancel


def test_cancel_of_a_pending_task_ends_it_at_once(face: Client) -> None:
    task_id = task_in(face, Status.PENDING)
    assert face.cancel(task_id, by="ann") is Status.CANCELLED
    task = face.get(task_id)
    assert (task.status, task.attempts, task.finished_at is not None) == (Status.CANCELLED, 0, True)
    assert face.claim("a") is None
    assert [(e.event, e.by, e.to_status) for e in face.events(task_id)] == [("cancel", "ann", Status.CANCELLED)]


def test_cancel_of_a_running_task_asks_its_holder(face: Client) -> None:
    held = hold(face)
    assert face.cancel(held.id, by="ann") is Status.RUNNING
    task = face.get(held.id)
    assert (task.status, task.cancel_requested, task.lease_owner) == (Status.RUNNING, True, "me")
    assert [(e.event, e.by) for e in face.events(held.id)] == [("request_cancel", "ann")]


def test_cancel_asked_twice_is_fine(face: Client) -> None:
    held = hold(face)
    assert [face.cancel(held.id), face.cancel(held.id)] == [Status.RUNNING, Status.RUNNING]
    assert face.get(held.id).cancel_requested


def test_cancel_frees_the_key(face: Client) -> None:
    task_id = task_in(face, Status.PENDING, dedupe_key="k")
    face.cancel(task_id)
    assert face.enqueue("x", agent="a", dedupe_key="k").created


def test_cancel_while_another_claims_decides_after_the_claim(client: Client, database: Database, sql: Sql) -> None:
    task_id = task_in(client, Status.PENDING)
    answers: list[Status] = []
    with database.begin() as connection:
        assert client.on(connection).claim("a") is not None
        other = threading.Thread(target=lambda: answers.append(client.cancel(task_id)))
        other.start()
        eventually(lambda: somebody_waits(sql))
        assert answers == []
    other.join(30)
    assert answers == [Status.RUNNING]
    assert client.get(task_id).cancel_requested


# -- retry and dismiss


def test_retry_gives_a_dead_task_a_fresh_budget(face: Client) -> None:
    held = hold(face, max_attempts=1)
    face.fail(held, "boom")
    task = face.retry(held.id, by="ann")
    assert task == face.get(held.id)
    assert (task.status, task.attempts, task.fence, task.last_error) == (Status.PENDING, 0, 1, None)
    assert task.finished_at is None
    again = face.claim("a")
    assert again is not None
    assert (again.id, again.attempt, again.fence) == (held.id, 1, 2)
    assert [(e.event, e.by) for e in face.events(held.id)] == [("fail", "me"), ("revive", "ann")]


def test_retry_of_a_cancelled_before_dead_task_clears_the_request(face: Client, sql: Sql) -> None:
    task_id = task_in(face, Status.DEAD)
    sql("update pgqueue.tasks set cancel_requested = true")
    assert not face.retry(task_id).cancel_requested


def test_retry_stands_at_the_end_of_its_line(face: Client) -> None:
    dead = task_in(face, Status.DEAD)
    waiting = face.enqueue("noop", agent="a").id
    face.retry(dead)
    first = face.claim("a")
    assert first is not None
    assert first.id == waiting


def test_retry_hints_to_the_queue(face: Client, database_url: str) -> None:
    dead = task_in(face, Status.DEAD, queue="default")
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        face.retry(dead)
        assert eventually(lambda: [n.payload for n in listener.notifies(timeout=0.05)]) == ["default"]


def test_retry_while_a_twin_holds_its_key_names_the_twin(face: Client) -> None:
    dead = task_in(face, Status.DEAD, dedupe_key="k")
    twin = face.enqueue("noop", agent="a", dedupe_key="k").id
    with pytest.raises(KeyHeld) as caught:
        face.retry(dead)
    assert (caught.value.task_id, caught.value.holder) == (dead, twin)
    assert str(twin) in str(caught.value)
    assert "'k'" in str(caught.value)
    assert face.get(dead).status is Status.DEAD
    face.cancel(twin)
    assert face.retry(dead).status is Status.PENDING


def test_retry_of_a_key_of_no_agent_looks_at_that_lane_alone(face: Client) -> None:
    face.enqueue("noop", agent="b", dedupe_key="k")
    made = face.enqueue("noop", dedupe_key="k")
    (held,) = (c for c in face.claim_batch(limit=10) if c.id == made.id)
    face.bury(held, "no")
    assert face.retry(made.id).status is Status.PENDING


def test_retry_that_races_a_twin_is_refused_by_the_index_and_says_so(
    client: Client, database: Database, sql: Sql
) -> None:
    dead = task_in(client, Status.DEAD, dedupe_key="k")
    caught: list[BaseException] = []

    def retry() -> None:
        try:
            client.retry(dead)
        except Refused as error:
            caught.append(error)

    with database.begin() as connection:
        # Not committed yet, so the retry does not see it, and then waits for it in the unique index.
        twin = client.on(connection).enqueue("noop", agent="a", dedupe_key="k").id
        other = threading.Thread(target=retry)
        other.start()
        eventually(lambda: somebody_waits(sql))
    other.join(30)
    assert [getattr(error, "holder", None) for error in caught] == [twin]
    assert client.get(dead).status is Status.DEAD


def test_retry_by_two_people_at_once_revives_once(client: Client, database: Database, sql: Sql) -> None:
    dead = task_in(client, Status.DEAD)
    caught: list[TransitionRefused] = []

    def retry() -> None:
        try:
            client.retry(dead)
        except TransitionRefused as error:
            caught.append(error)

    with database.begin() as connection:
        client.on(connection).retry(dead)
        other = threading.Thread(target=retry)
        other.start()
        eventually(lambda: somebody_waits(sql))
    other.join(30)
    assert [error.status for error in caught] == [Status.PENDING]


def test_dismiss_closes_a_dead_task(face: Client) -> None:
    dead = task_in(face, Status.DEAD)
    face.dismiss(dead, by="ann")
    task = face.get(dead)
    assert (task.status, task.last_error) == (Status.CANCELLED, "no such host")
    assert [(e.event, e.by) for e in face.events(dead)] == [("bury", "me"), ("dismiss", "ann")]


# -- evict


def test_evict_takes_the_task_from_its_holder(face: Client) -> None:
    held = hold(face)
    assert face.evict(held.id, by="ann") is Status.PENDING
    task = face.get(held.id)
    assert (task.attempts, task.fence, task.not_before) == (0, 1, held.not_before)
    with pytest.raises(LeaseNotHeld):
        face.complete(held)
    assert [(e.event, e.by, e.attempt) for e in face.events(held.id)] == [("evict", "ann", 1)]


def test_evict_after_a_cancel_request_ends_cancelled(face: Client) -> None:
    held = hold(face)
    face.cancel(held.id)
    assert face.evict(held.id) is Status.CANCELLED


# -- reap


def test_reap_for_the_first_time_gives_the_task_back_in_its_place(face: Client, sql: Sql) -> None:
    held = hold(face)
    expire(sql, held.id)
    assert face.reap() == [Reaped(held.id, Status.PENDING, "me", "a", "default")]
    task = face.get(held.id)
    assert (task.attempts, task.fence, task.not_before) == (1, 1, held.not_before)
    assert task.last_error == "lease expired: me stopped renewing (attempt 1 of 3)"
    assert [(e.event, e.by, e.to_status, e.attempt) for e in face.events(held.id)] == [
        ("expire", "me", Status.PENDING, 1)
    ]
    again = face.claim("a")
    assert again is not None
    assert (again.attempt, again.fence) == (2, 2)


def test_reap_for_the_second_time_waits_the_first_backoff(face: Client, sql: Sql) -> None:
    held = hold(face)
    expire(sql, held.id)
    face.reap()
    face.claim("a")
    expire(sql, held.id)
    face.reap()
    task = face.get(held.id)
    assert task.attempts == 2
    assert abs(task.not_before - task.updated_at - backoff_for(1)) < timedelta(seconds=2)
    assert face.claim("a") is None


def test_reap_with_no_attempt_left_ends_dead(face: Client, sql: Sql) -> None:
    held = hold(face, max_attempts=1)
    expire(sql, held.id)
    assert [r.status for r in face.reap()] == [Status.DEAD]
    assert "attempt 1 of 1" in str(face.get(held.id).last_error)


def test_reap_of_a_cancelled_task_ends_cancelled_before_dead(face: Client, sql: Sql) -> None:
    held = hold(face, max_attempts=1)
    face.cancel(held.id)
    expire(sql, held.id)
    assert [r.status for r in face.reap()] == [Status.CANCELLED]


def test_reap_leaves_leases_that_hold(face: Client) -> None:
    held = hold(face)
    assert face.reap() == []
    assert face.complete(held).status is Status.COMPLETED


def test_reap_frees_the_agent(face: Client, sql: Sql) -> None:
    held = hold(face, max_attempts=1)
    waiting = face.enqueue("noop", agent="a").id
    expire(sql, held.id)
    face.reap()
    again = face.claim("a")
    assert again is not None
    assert again.id == waiting


def test_reap_takes_the_longest_expired_first_up_to_the_limit(face: Client, sql: Sql) -> None:
    held = [hold(face, f"a{n}") for n in range(3)]
    for n, one in enumerate(held):
        sql(
            "update pgqueue.tasks set lease_expires_at = now() - make_interval(hours => %s) where id = %s",
            n + 1,
            one.id,
        )
    assert {r.id for r in face.reap(limit=2)} == {held[2].id, held[1].id}
    assert [r.id for r in face.reap(limit=2)] == [held[0].id]


def test_reap_skips_a_row_whose_holder_writes_just_now(client: Client, sql: Sql, database_url: str) -> None:
    held = hold(client)
    expire(sql, held.id)
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [held.id])
        assert client.reap() == []
    assert [r.id for r in client.reap()] == [held.id]


def test_reap_of_a_row_that_objects_does_the_others(client: Client, sql: Sql) -> None:
    held = [hold(client, f"a{n}") for n in range(3)]
    expire(sql, *(h.id for h in held))
    sql(
        "create function public.object() returns trigger language plpgsql as"
        " $$ begin raise exception 'not this one'; end $$"
    )
    sql(
        "create trigger object before update on pgqueue.tasks for each row when (old.agent = 'a1')"
        " execute function public.object()"
    )
    assert {r.id for r in client.reap()} == {held[0].id, held[2].id}
    sql("drop trigger object on pgqueue.tasks")
    assert [r.id for r in client.reap()] == [held[1].id]


def test_reap_waits_until_the_server_has_been_up_for_a_while(face: Client, sql: Sql) -> None:
    held = hold(face)
    expire(sql, held.id)
    assert face.reap(settled=timedelta(days=3000)) == []
    assert [r.id for r in face.reap(settled=0)] == [held.id]


def test_reap_hints_to_the_queues_of_what_it_gave_back(face: Client, sql: Sql, database_url: str) -> None:
    one = hold(face, "a0", max_attempts=1)
    two = hold(face, "a1")
    expire(sql, one.id, two.id)
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        face.reap()
        assert eventually(lambda: [n.payload for n in listener.notifies(timeout=0.05)]) == ["default"]


@pytest.mark.parametrize("bad", [{"limit": 0}, {"limit": 1001}, {"settled": -1}])
def test_reap_with_a_bad_option_is_refused(untouched: Client, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(bad))):
        untouched.reap(**bad)


def test_earliest_expiry_says_when_the_next_lease_ends(client: Client, database: Database) -> None:
    store = Store("pgqueue")
    with database.begin() as connection:
        assert store.earliest_expiry(connection)[:2] == (None, None)
    client.enqueue("noop", agent="later")
    client.claim("later", lease=7200)
    held = hold(client)
    with database.begin() as connection:
        wait, earliest = store.earliest_expiry(connection)[:2]
    assert wait is not None
    assert 0 < wait <= 60
    assert earliest == held.lease.deadline
