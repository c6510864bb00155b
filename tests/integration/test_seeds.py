"""What both seeds pin, and what goes wrong in them: each hole of docs/seeds.md, held shut.

"agenttask" is the queue of ssmcloud-backend, "task" that of go-taskqueue. What another file pins is not repeated here;
docs/seeds.md names it.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from pgqueue.client import Client
from pgqueue.config import DEFAULTS
from pgqueue.database import Database
from pgqueue.errors import LeaseNotHeld, TransitionRefused
from pgqueue.ids import new_id
from pgqueue.keys import workflow_dedupe_key
from pgqueue.lifecycle import FINAL, TERMINAL, Status, can_transition
from pgqueue.options import Enqueued
from pgqueue.statements import channel
from pgqueue.store import LONG_AGO, Store
from pgqueue.task import Claimed, Gated
from tests.support import Sql, connect, eventually

ENDINGS = ("complete", "bury", "fail", "expire", "acknowledge", "cancel")
"""Every way in which a task ends."""


def hold(client: Client, agent: str = "a", action: str = "noop", **options: Any) -> Claimed:
    made = client.enqueue(action, {"a": 1}, agent=agent, **options)
    held = client.claim(agent, owner="me")
    assert held is not None
    assert held.id == made.id
    return held


def expire(sql: Sql, task_id: UUID) -> None:
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 s' where id = %s", task_id)


def finish(client: Client, sql: Sql, ending: str, held: Claimed | UUID) -> None:
    """End a task in that way. Every one but "complete" is a bad end."""
    if isinstance(held, UUID):
        assert ending == "cancel"
        client.cancel(held)
    elif ending == "complete":
        client.complete(held)
    elif ending == "bury":
        client.bury(held, "no such host")
    elif ending == "fail":
        client.fail(held, "boom")
    elif ending == "expire":
        expire(sql, held.id)
        client.reap()
    else:
        client.cancel(held.id)
        client.acknowledge_cancel(held)


def begun(client: Client, ending: str, agent: str = "parent") -> Claimed | UUID:
    """A task that can end in that way."""
    if ending == "cancel":
        return client.enqueue("parent", agent=agent).id
    return hold(client, agent, "parent", max_attempts=1)


def id_of(held: Claimed | UUID) -> UUID:
    return held if isinstance(held, UUID) else held.id


def task_in(client: Client, status: Status, agent: str = "a", **options: Any) -> UUID:
    """A task that came to that status as tasks do."""
    if status is Status.PENDING:
        return client.enqueue("noop", agent=agent, **options).id
    held = hold(client, agent, **options)
    if status is Status.COMPLETED:
        client.complete(held)
    elif status is Status.DEAD:
        client.bury(held, "no such host")
    elif status is Status.CANCELLED:
        client.cancel(held.id)
        client.acknowledge_cancel(held)
    return held.id


def next_of(client: Client, agent: str) -> UUID | None:
    """The id of the agent's next task, which runs then; None where there is none."""
    held = client.claim(agent)
    return None if held is None else held.id


# -- values


def test_id_has_36_characters_is_unique_and_sorts_by_creation() -> None:
    made = [str(new_id()) for _ in range(1000)]
    assert {len(one) for one in made} == {36}
    assert len(set(made)) == 1000
    assert made == sorted(made)


def test_statuses_are_five_in_the_order_of_the_seeds() -> None:
    assert [str(status) for status in Status] == ["pending", "running", "completed", "dead", "cancelled"]
    assert {str(status) for status in TERMINAL} == {"completed", "dead", "cancelled"}
    # dead is an end, and yet a person leads out of it.
    assert {str(status) for status in FINAL} == {"completed", "cancelled"}


@pytest.mark.parametrize("status", Status)
def test_no_status_leads_to_itself_or_to_an_unknown_one(status: Status) -> None:
    unknown = cast("Status", "parked")
    assert not can_transition(status, status)
    assert not can_transition(status, unknown)
    assert not can_transition(unknown, status)


def test_name_of_no_status_is_refused() -> None:
    with pytest.raises(ValueError, match="parked"):
        Status("parked")


def test_defaults_are_the_seeds_where_they_agree_with_each_other() -> None:
    assert DEFAULTS.lease == timedelta(seconds=60)
    assert DEFAULTS.max_attempts == 3
    assert DEFAULTS.retention == timedelta(days=7)
    assert DEFAULTS.orphan_grace == timedelta(minutes=5)


def test_lease_lasts_sixty_seconds_unless_told_otherwise(face: Client, sql: Sql) -> None:
    hold(face)
    [(lasts,)] = sql("select lease_expires_at - started_at from pgqueue.tasks")
    assert timedelta(seconds=59) < lasts < timedelta(seconds=61)


# -- what the claim filter leaves alone


def test_older_task_that_waits_holds_up_no_younger_one(face: Client) -> None:
    """A gated, a conditional, a delayed and a backing-off task stand in front of it; none of them is taken."""
    backing_off = hold(face)
    face.fail(backing_off, "boom")
    face.enqueue("gated", agent="a", depends_on=[new_id()])
    face.enqueue("conditional", agent="a", requires=["stopped"])
    face.enqueue("later", agent="a", delay=3600)
    due = face.enqueue("due", agent="a")
    assert next_of(face, "a") == due.id


def test_condition_holds_a_task_back_only_while_nobody_offers_it(face: Client) -> None:
    """agenttask: `requiresServerStopped` is looked at only while the server runs."""
    made = face.enqueue("sync", agent="a", requires=["server-stopped"])
    assert face.claim("a") is None
    held = face.claim("a", offers=["server-stopped"])
    assert held is not None
    assert held.id == made.id


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PENDING])
def test_claim_takes_nothing_but_pending_tasks(face: Client, sql: Sql, status: Status) -> None:
    task_id = task_in(face, status)
    if status is Status.RUNNING:
        expire(sql, task_id)
    assert face.claim("a") is None
    assert face.claim_batch(limit=10) == []
    assert face.get(task_id).status is status


def test_expired_task_that_was_to_be_cancelled_hides_no_work(face: Client, sql: Sql) -> None:
    """task: the claim that meets one cancels it and answers "nothing due", whatever else is due."""
    face.enqueue("noop")
    (held,) = face.claim_batch()
    face.cancel(held.id)
    expire(sql, held.id)
    due = face.enqueue("noop")
    assert [one.id for one in face.claim_batch()] == [due.id]


def test_twenty_tasks_and_four_claimers_and_each_task_once(client: Client, database: Database) -> None:
    made = {client.enqueue("noop", n).id for n in range(20)}
    taken: list[UUID] = []

    def work() -> None:
        mine = Client(database)
        while held := mine.claim_batch(limit=1):
            mine.complete(held[0])
            taken.append(held[0].id)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # One that looked away while the others had the rest locked has ended early.
    work()
    assert len(taken) == 20
    assert set(taken) == made


# -- the way through a life


def test_whole_life_is_journalled_in_order(face: Client, sql: Sql) -> None:
    """task pins enqueued, claimed, failed, claimed, failed, dead-lettered, and enqueued (rescue)."""
    face.set_journal("full")
    held = hold(face, max_attempts=2)
    face.fail(held, "first", delay=0)
    again = face.claim("a")
    assert again is not None
    face.fail(again, "second")
    face.retry(held.id, by="ann")
    assert [(e.event, e.from_status, e.to_status, e.detail) for e in face.events(held.id)] == [
        ("enqueue", None, "pending", None),
        ("claim", "pending", "running", None),
        ("fail", "running", "pending", "first"),
        ("claim", "pending", "running", None),
        ("fail", "running", "dead", "second"),
        ("revive", "dead", "pending", None),
    ]
    audit = face.audit()
    assert audit.clean
    assert audit.tasks == 1


def test_holder_that_only_ever_crashes_is_bounded_by_the_attempts(face: Client, sql: Sql) -> None:
    """task counts an attempt at the failure: a worker that dies each time is never counted, and the task never dead."""
    made = face.enqueue("crash", agent="a", max_attempts=3)
    crashes = 0
    while next_of(face, "a") is not None:
        crashes += 1
        assert crashes < 10
        expire(sql, made.id)
        face.reap()
        sql("update pgqueue.tasks set not_before = now() where status = 'pending'")
    assert crashes == 3
    assert face.get(made.id).status is Status.DEAD


def test_every_expiry_gives_the_task_back_and_is_journalled(face: Client, sql: Sql) -> None:
    """task marks an orphan in its journal, once per task for ever, and leaves it running."""
    made = face.enqueue("crash", agent="a", max_attempts=9)
    for _ in range(2):
        assert next_of(face, "a") == made.id
        expire(sql, made.id)
        face.reap()
        assert face.get(made.id).status is Status.PENDING
        sql("update pgqueue.tasks set not_before = now()")
    assert [(e.event, e.attempt) for e in face.events(made.id)] == [("expire", 1), ("expire", 2)]


def test_renewal_that_races_the_reaper_wins(client: Client, sql: Sql, database_url: str) -> None:
    held = hold(client)
    expire(sql, held.id)
    with connect(database_url) as renewing:
        renewing.execute("begin")
        client.on(renewing).renew(held)
        assert client.reap() == []
        renewing.execute("commit")
    assert client.reap() == []
    assert client.complete(held).status is Status.COMPLETED


@pytest.mark.parametrize("settle", ["release", "snooze", "fail", "bury"])
def test_task_that_was_asked_to_stop_never_comes_back(face: Client, settle: str) -> None:
    """agenttask: a release forgets the request, and task's Fail does; the task is claimed again."""
    held = hold(face)
    face.cancel(held.id)
    more = {"release": (), "snooze": (0,), "fail": ("boom",), "bury": ("no",)}[settle]
    getattr(face, settle)(held, *more)
    assert face.get(held.id).status is Status.CANCELLED
    assert face.claim("a") is None


@pytest.mark.parametrize("write", ["complete", "fail", "bury", "release", "renew", "report_progress", "acknowledge"])
def test_parked_task_is_changed_by_no_call_of_its_last_holder(face: Client, sql: Sql, write: str) -> None:
    held = hold(face)
    face.snooze(held, 3600)
    before = sql("select t::text, xmin::text from pgqueue.tasks t"), sql("select count(*) from pgqueue.task_events")
    calls: dict[str, Callable[[], object]] = {
        "complete": lambda: face.complete(held, 1),
        "fail": lambda: face.fail(held, "boom"),
        "bury": lambda: face.bury(held, "no"),
        "release": lambda: face.release(held),
        "renew": lambda: face.renew(held),
        "report_progress": lambda: face.report_progress(held, 5),
        "acknowledge": lambda: face.acknowledge_cancel(held),
    }
    # A fail or a release cannot be told from the snooze sent twice: that is a success, and changes nothing either.
    with contextlib.suppress(LeaseNotHeld) if write in ("fail", "release") else pytest.raises(LeaseNotHeld):
        calls[write]()
    after = sql("select t::text, xmin::text from pgqueue.tasks t"), sql("select count(*) from pgqueue.task_events")
    assert after == before
    assert face.claim("a") is None


def test_completion_clears_the_error_of_an_earlier_attempt(face: Client) -> None:
    held = hold(face)
    face.fail(held, "boom", delay=0)
    again = face.claim("a")
    assert again is not None
    face.complete(again)
    task = face.get(held.id)
    assert (task.status, task.last_error) == (Status.COMPLETED, None)


@pytest.mark.parametrize("settle", ["fail", "bury"])
def test_death_and_retry_leave_the_task_its_own_budget(face: Client, settle: str) -> None:
    """task: a permanent failure overwrites the budget with what was used, a rescue with 3."""
    held = hold(face, max_attempts=1)
    getattr(face, settle)(held, "no")
    assert (face.get(held.id).attempts, face.get(held.id).max_attempts) == (1, 1)
    task = face.retry(held.id)
    assert (task.attempts, task.max_attempts) == (0, 1)


@contextlib.contextmanager
def times_sent(database: Database) -> Iterator[list[datetime]]:
    """Every datetime that is bound to a statement."""
    sent: list[datetime] = []

    def collect(value: object) -> None:
        if isinstance(value, datetime):
            sent.append(value)
        elif isinstance(value, dict):
            collect(list(value.values()))
        elif isinstance(value, list | tuple):
            for one in value:
                collect(one)

    def listen(*args: Any) -> None:
        collect(args[3])

    sa.event.listen(database.engine, "before_cursor_execute", listen)
    yield sent
    sa.event.remove(database.engine, "before_cursor_execute", listen)


def test_no_clock_but_the_servers_decides(client: Client, database: Database, sql: Sql) -> None:
    """agenttask writes due, lease and backoff by the clock of whichever replica is asked."""
    with times_sent(database) as sent:
        held = hold(client, max_attempts=2, timeout=5)
        client.renew(held)
        client.report_progress(held, 5)
        client.fail(held, "boom")
        client.reschedule(held.id, delay=0)
        again = client.claim("a")
        assert again is not None
        expire(sql, held.id)
        client.reap()
        client.retry(held.id)
        other = client.claim("a")
        assert other is not None
        client.snooze(other, 5)
        client.set_gate(held.id, depends_on=[new_id()])
        client.sweep()
        client.enqueue("later", delay=60)
        client.claim_batch(limit=10)
        client.cancel(held.id)
        client.prune(retention=0)
    # Floors of searches: how far back they look, here all the way.
    assert set(sent) <= {LONG_AGO}


# -- dedupe


def test_enqueue_whose_keys_holder_ends_just_then_makes_a_task(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """agenttask: the index says "taken", the look-up then finds nobody, and the caller gets an error."""
    first = client.enqueue("x", dedupe_key="k")
    look = Store._existing

    def late(store: Store, connection: Connection, row: dict[str, Any]) -> UUID | None:
        if client.get(first.id).is_active:
            client.cancel(first.id)
        return look(store, connection, row)

    monkeypatch.setattr(Store, "_existing", late)
    second = client.enqueue("x", dedupe_key="k")
    assert second.created
    assert second.id != first.id
    assert [client.get(one.id).status for one in (first, second)] == [Status.CANCELLED, Status.PENDING]


@pytest.mark.parametrize("key_is_held", [False, True])
def test_id_that_is_taken_is_no_dedupe_hit(face: Client, key_is_held: bool) -> None:
    """agenttask takes it for one: it returns the key's holder, which is another task, or an error."""
    taken = face.enqueue("x", id=new_id(), dedupe_key="one")
    if key_is_held:
        face.enqueue("x", dedupe_key="other")
    assert face.enqueue("x", id=taken.id, dedupe_key="other") == Enqueued(taken.id, created=False)
    assert face.count_tasks() == 1 + key_is_held


@pytest.mark.parametrize("status", Status)
def test_key_for_ever_is_used_once_whatever_became_of_its_task(face: Client, status: Status) -> None:
    """task's DedupKey; with agenttask's scope, so that each agent has its own keys."""
    first = task_in(face, status, dedupe_key="k", dedupe="forever")
    assert face.enqueue("noop", agent="a", dedupe_key="k", dedupe="forever") == Enqueued(first, created=False)
    assert face.count_tasks() == 1
    assert face.get(first).status is status
    assert face.enqueue("noop", agent="b", dedupe_key="k", dedupe="forever").created


def test_key_for_ever_outlives_pruning(face: Client) -> None:
    first = task_in(face, Status.COMPLETED, dedupe_key="k", dedupe="forever")
    assert face.prune(retention=0).tasks == 0
    assert face.enqueue("noop", agent="a", dedupe_key="k", dedupe="forever") == Enqueued(first, created=False)


def test_key_that_is_in_use_is_free_after_the_end_and_its_past_can_be_looked_up(face: Client) -> None:
    """agenttask's way to run a workflow's step once: look for the key first, whatever became of its task."""
    key = workflow_dedupe_key("w-1", 0)
    first = task_in(face, Status.COMPLETED, dedupe_key=key)
    found = face.find_by_dedupe_key(key, agent="a")
    assert found is not None
    assert (found.id, found.status) == (first, Status.COMPLETED)
    assert face.enqueue("noop", agent="a", dedupe_key=key).created


# -- children and their parents


def test_child_starts_when_the_last_of_its_parents_has_completed(face: Client) -> None:
    one, other = hold(face, "p1"), hold(face, "p2")
    # A parent that is named twice counts once; in task it fails the enqueue.
    child = face.enqueue("child", agent="c", depends_on=[one.id, other.id, one.id])
    assert face.get(child.id).waiting_on == 2
    face.complete(one)
    assert face.claim("c") is None
    face.complete(other)
    assert next_of(face, "c") == child.id


def test_parents_are_told_with_what_became_of_them(face: Client) -> None:
    done, dead = hold(face, "p1", "sum"), hold(face, "p2", "sum", max_attempts=1)
    absent = new_id()
    child = face.enqueue("report", depends_on=[done.id, dead.id, absent], on_parent_failure="run")
    face.complete(done, {"files": 3})
    face.fail(dead, "no such folder")
    assert [(p.id, p.action, p.status, p.result, p.last_error) for p in face.parents(child.id)] == [
        (done.id, "sum", Status.COMPLETED, {"files": 3}, None),
        (dead.id, "sum", Status.DEAD, None, "no such folder"),
        (absent, None, None, None, None),
    ]


@pytest.mark.parametrize("ending", ENDINGS[1:])
def test_bad_end_of_a_parent_cancels_all_who_wait_for_it_however_far_below(face: Client, sql: Sql, ending: str) -> None:
    """agenttask cancels one level and leaves the next waiting; in task a child waits for ever."""
    parent = begun(face, ending)
    chain = [id_of(parent)]
    for n in range(5):
        chain.append(face.enqueue("child", agent=f"c{n}", depends_on=[chain[-1]]).id)
    bystander = face.enqueue("child", agent="b", depends_on=[new_id()])
    finish(face, sql, ending, parent)
    assert face.get(bystander.id).status is Status.PENDING
    # With no sweep between: all in the transaction of that end.
    for above, below in itertools.pairwise(chain):
        task = face.get(below)
        assert (task.status, task.finished_at is not None) == (Status.CANCELLED, True)
        assert str(above) in str(task.last_error)
        assert [e.event for e in face.events(below)] == ["cascade"]


@pytest.mark.parametrize("dies", ["stop", "sync"])
def test_recovery_runs_wherever_the_chain_breaks(face: Client, dies: str) -> None:
    """stop, sync, start: agenttask's start stays behind a cancelled sync for seven days where the stop dies."""
    stop = hold(face, action="stop")
    sync = face.enqueue("sync", agent="a", depends_on=[stop.id])
    start = face.enqueue("start", agent="a", depends_on=[sync.id], on_parent_failure="run")
    if dies == "stop":
        face.bury(stop, "no answer")
        assert face.get(sync.id).status is Status.CANCELLED
    else:
        face.complete(stop)
        held = face.claim("a")
        assert held is not None
        face.bury(held, "no space")
    assert next_of(face, "a") == start.id


def test_cascade_is_whole_or_not_at_all(client: Client, database_url: str) -> None:
    """agenttask writes the parent, then its children; a crash in between leaves some of them waiting."""
    parent = hold(client, "p")
    child = client.enqueue("child", depends_on=[parent.id])
    recovery = client.enqueue("start", depends_on=[parent.id], on_parent_failure="run")
    with connect(database_url) as crashing:
        crashing.execute("begin")
        client.on(crashing).bury(parent, "no")
        crashing.execute("rollback")
    assert [client.get(one).waiting_on for one in (child.id, recovery.id)] == [1, 1]
    assert client.get(parent.id).status is Status.RUNNING
    client.bury(parent, "no")
    assert client.get(child.id).status is Status.CANCELLED
    assert client.get(recovery.id).waiting_on == 0


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("mode", ["cancel", "run"])
def test_child_that_comes_after_its_parents_end_is_not_stranded(face: Client, sql: Sql, ending: str, mode: Any) -> None:
    """agenttask: it waits for a row that is there and will never end again; the sweep passes it over."""
    parent = begun(face, ending)
    finish(face, sql, ending, parent)
    child = face.enqueue("child", agent="c", depends_on=[id_of(parent)], on_parent_failure=mode)
    grandchild = face.enqueue("child", agent="g", depends_on=[child.id])
    _lands(face, child.id, grandchild.id, starts=ending == "complete" or mode == "run")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("first", ["parent", "child"])
def test_child_that_comes_during_its_parents_end_is_not_stranded(
    client: Client, sql: Sql, database_url: str, ending: str, first: str
) -> None:
    """Neither transaction sees the other's rows, whichever commits first."""
    parent = begun(client, ending)
    children: list[Enqueued] = []

    def enqueue(joined: Client) -> None:
        children.append(joined.enqueue("child", agent="c", depends_on=[id_of(parent)]))

    with connect(database_url) as open_transaction:
        open_transaction.execute("begin")
        joined = client.on(open_transaction)
        if first == "parent":
            finish(joined, sql, ending, parent)
            enqueue(client)
        else:
            enqueue(joined)
            finish(client, sql, ending, parent)
        open_transaction.execute("commit")
    grandchild = client.enqueue("child", agent="g", depends_on=[children[0].id])
    client.sweep()
    _lands(client, children[0].id, grandchild.id, starts=ending == "complete")


def _lands(client: Client, child: UUID, grandchild: UUID, *, starts: bool) -> None:
    if starts:
        assert next_of(client, "c") == child
        assert client.get(grandchild).status is Status.PENDING
    else:
        assert client.get(child).status is Status.CANCELLED
        assert client.get(grandchild).status is Status.CANCELLED
    assert client.claim("g") is None


def test_retry_of_a_parent_revives_no_child(face: Client) -> None:
    """As in agenttask: they were cancelled, and a cancelled task never runs again."""
    parent = hold(face, "p", max_attempts=1)
    child = face.enqueue("child", agent="c", depends_on=[parent.id])
    face.fail(parent, "boom")
    face.retry(parent.id)
    assert face.get(child.id).status is Status.CANCELLED


def test_parent_that_never_appears_holds_its_child_for_the_grace_alone(face: Client, sql: Sql) -> None:
    """task refuses such an enqueue; agenttask lets go of the child, and of one action alone not without a condition."""
    child = face.enqueue("sync", agent="c", depends_on=[new_id()], requires=["server-stopped"])
    [(look_at, in_the_grace)] = sql(
        "select look_at, look_at - created_at between interval '4 min' and interval '6 min'"
        " from pgqueue.task_dependencies, pgqueue.tasks"
    )
    assert in_the_grace
    # Every write of the child begins agenttask's grace again.
    face.replace_pending_payload("sync", {"n": 2}, agent="c")
    face.reschedule(child.id, priority=3)
    assert sql("select look_at from pgqueue.task_dependencies") == [(look_at,)]
    assert face.sweep() == []
    sql("update pgqueue.task_dependencies set look_at = now()")
    assert [str(swept.fate) for swept in face.sweep()] == ["let_go"]
    assert face.claim("c") is None
    assert getattr(face.claim("c", offers=["server-stopped"]), "id", None) == child.id
    assert [e.event for e in face.events(child.id)] == ["replace", "reschedule", "let_go"]


def test_sweep_of_a_child_that_objects_does_the_others(client: Client, sql: Sql) -> None:
    """agenttask: the first error ends the sweep, and the rest waits for the next one."""
    children = [client.enqueue("child", agent=f"c{n}", depends_on=[new_id()]).id for n in range(3)]
    sql("update pgqueue.task_dependencies set look_at = now()")
    sql(
        "create function public.object() returns trigger language plpgsql as"
        " $$ begin raise exception 'not this one'; end $$"
    )
    sql(
        "create trigger object before update on pgqueue.tasks for each row when (old.agent = 'c1')"
        " execute function public.object()"
    )
    assert {swept.child for swept in client.sweep()} == {children[0], children[2]}
    sql("drop trigger object on pgqueue.tasks")
    sql("update pgqueue.task_dependencies set look_at = now() where lifted_at is null")
    assert [swept.child for swept in client.sweep()] == [children[1]]


# -- gates, and what agenttask's planner rests on


@pytest.mark.parametrize("status", [*Status, None])
def test_gate_that_was_not_set_says_what_the_task_is_instead(face: Client, sql: Sql, status: Status | None) -> None:
    """agenttask answers false for a task that runs right now, has ended, or never was."""
    task_id = new_id() if status is None else task_in(face, status)
    before = sql("select t::text, xmin::text from pgqueue.tasks t")
    answer = face.set_gate(task_id, depends_on=[new_id()], requires=["stopped"])
    assert answer == Gated(task_id, status)
    assert bool(answer) == (status is Status.PENDING)
    if status is not Status.PENDING:
        assert sql("select t::text, xmin::text from pgqueue.tasks t") == before
        assert sql("select 1 from pgqueue.task_dependencies") == []


def test_gates_are_set_as_a_set(face: Client) -> None:
    """To escalate a deferred sync into a chain must clear its condition, or the chain's own stop is waited for."""
    sync = face.enqueue("sync", agent="a", requires=["server-stopped"])
    stop = face.enqueue("stop", agent="a")
    assert face.set_gate(sync.id, depends_on=[stop.id])
    task = face.get(sync.id)
    assert (task.requires, task.waiting_on) == ((), 1)
    held = face.claim("a")
    assert held is not None
    assert held.id == stop.id
    face.complete(held)
    assert next_of(face, "a") == sync.id


def test_gate_first_and_enqueue_second_never_runs_them_backwards(face: Client) -> None:
    """A pending start, older than the sync, goes behind it before the sync exists."""
    start = face.enqueue("start", agent="a")
    sync_id = new_id()
    assert face.set_gate(start.id, depends_on=[sync_id], on_parent_failure="run")
    assert face.claim("a") is None
    face.enqueue("sync", agent="a", id=sync_id)
    held = face.claim("a")
    assert held is not None
    assert held.id == sync_id
    face.complete(held)
    assert next_of(face, "a") == start.id


def test_gate_on_a_task_that_was_claimed_meanwhile_is_a_lost_race(face: Client) -> None:
    """False means RUNNING: whoever sees it enqueues nothing, and plans again."""
    start = hold(face, action="start")
    answer = face.set_gate(start.id, depends_on=[new_id()])
    assert (bool(answer), answer.status) == (False, Status.RUNNING)
    assert face.has_active("start", agent="a")
    assert face.find_pending("start", agent="a") is None
    assert face.complete(start).status is Status.COMPLETED


def test_gate_of_nothing_lets_a_stranded_task_go(client: Client, database_url: str) -> None:
    """The insert of the parent failed; and who waits is told at once, which agenttask leaves to its next tick."""
    start = client.enqueue("start", agent="a")
    client.set_gate(start.id, depends_on=[new_id()], requires=["stopped"])
    assert client.claim("a") is None
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        assert client.set_gate(start.id)
        assert eventually(lambda: [n.payload for n in listener.notifies(timeout=0.05)]) == ["default"]
    assert next_of(client, "a") == start.id


@pytest.mark.parametrize("opened_by", ["parent", "gate"])
def test_task_that_waited_stands_where_it_could_first_be_claimed(face: Client, opened_by: str) -> None:
    """In agenttask it keeps the place of its creation, in front of all that came while it waited."""
    parent = hold(face, "p")
    waited = face.enqueue("child", agent="a", depends_on=[parent.id])
    came_meanwhile = face.enqueue("noop", agent="a")
    if opened_by == "parent":
        face.complete(parent)
    else:
        face.set_gate(waited.id)
    assert next_of(face, "a") == came_meanwhile.id


# -- looking


FILTERS: list[dict[str, Any]] = [
    {},
    *({"status": status} for status in Status),
    {"status": ["dead", "pending"]},
    {"queue": "mail"},
    {"action": "noop"},
    {"agent": "a"},
    {"account": "acme"},
    {"key": "k"},
    {"error_contains": "such"},
    {"queue": "mail", "status": "pending"},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_count_equals_the_listing_under_every_filter(face: Client, filters: dict[str, Any]) -> None:
    for n, status in enumerate(Status):
        task_in(face, status, agent=f"a{n}")
    face.enqueue("send", queue="mail", account="acme", dedupe_key="k", agent="a")
    assert face.count_tasks(**filters) == len(face.list_tasks(limit=100, **filters)) > 0


def test_since_includes_its_own_moment(face: Client) -> None:
    made = face.get(face.enqueue("noop").id)
    assert face.count_tasks(since=made.created_at) == 1
    assert [task.id for task in face.list_tasks(since=made.created_at)] == [made.id]
    assert face.count_tasks(since=made.created_at + timedelta(microseconds=1)) == 0


def test_only_what_has_ended_is_pruned(face: Client) -> None:
    made = {status: task_in(face, status, agent=f"a{n}") for n, status in enumerate(Status)}
    assert face.prune(retention=0).tasks == 2
    left = {task.id for task in face.list_tasks()}
    assert left == {made[Status.PENDING], made[Status.RUNNING], made[Status.DEAD]}


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PENDING])
def test_priority_of_what_is_not_pending_is_not_changed(face: Client, status: Status) -> None:
    task_id = task_in(face, status)
    with pytest.raises(TransitionRefused) as caught:
        face.reschedule(task_id, priority=5)
    assert caught.value.status is status
