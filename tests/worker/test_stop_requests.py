"""Cancelled, timed out, the lease lost: what a running handler hears, and what becomes of its task."""

from __future__ import annotations

import asyncio
import threading
import time
from uuid import UUID

import pytest

from pgqueue import App, Context, Interrupted, Status

from ..support import Sql, connect, eventually
from .conftest import Burst, Start, became

LEASE = 0.6
"""The shortest that leaves a busy machine the time to renew it; requests are heard at renewals, each third of it."""


def held_for(app: App, task_id: UUID) -> float:
    """From the start of the execution to the end of its lease, in seconds: more than a lease where it was renewed."""
    task = app.client.get(task_id)
    assert task.lease_expires_at is not None
    assert task.started_at is not None
    return (task.lease_expires_at - task.started_at).total_seconds()


def declare(app: App, kind: str, heard: list[str], *, timeout: float | None = None) -> threading.Event:
    """An action `work` that goes on until it is asked to stop, and notes how it heard of it; set once it has begun."""
    begun = threading.Event()
    if kind == "async":

        @app.task(name="work", timeout=timeout)
        async def awork(ctx: Context) -> None:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                heard.append(f"cancelled {ctx.cancelled}")
                raise
    elif kind == "check":

        @app.task(name="work", timeout=timeout)
        def work(ctx: Context) -> None:
            begun.set()
            ends = time.monotonic() + 60
            while time.monotonic() < ends:
                try:
                    ctx.check()
                except Interrupted:
                    heard.append(f"cancelled {ctx.cancelled}")
                    raise
                time.sleep(0.005)
    else:

        @app.task(name="work", timeout=timeout)
        def swork(ctx: Context) -> None:
            begun.set()
            try:
                ctx.sleep(60)
            except Interrupted:
                heard.append(f"cancelled {ctx.cancelled}")
                raise

    return begun


KINDS = ["async", "check", "sleep"]


@pytest.mark.parametrize("kind", KINDS)
def test_cancel_of_a_running_handler_ends_cancelled(app: App, start: Start, kind: str) -> None:
    heard: list[str] = []
    begun = declare(app, kind, heard)
    made = app.action("work").enqueue()
    start(lease=LEASE)
    assert begun.wait(30)
    assert app.client.cancel(made.id, by="me") is Status.RUNNING
    task = became(app, made.id, Status.CANCELLED)
    assert heard == ["cancelled True"]
    assert task.last_error is None


@pytest.mark.parametrize("kind", ["async", "def"])
def test_return_under_a_cancel_request_completes(app: App, start: Start, kind: str) -> None:
    begun = threading.Event()

    if kind == "async":

        @app.task(name="work")
        async def awork() -> str:
            begun.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return "finished the last step"
            return "never asked"
    else:

        @app.task(name="work")
        def work(ctx: Context) -> str:
            begun.set()
            eventually(lambda: ctx.cancelled)
            return "finished the last step"

    made = app.action("work").enqueue()
    start(lease=LEASE)
    assert begun.wait(30)
    app.client.cancel(made.id)
    assert became(app, made.id, Status.COMPLETED).result_text == '"finished the last step"'


def test_failure_under_a_cancel_request_ends_cancelled_and_never_runs_again(app: App, start: Start) -> None:
    begun = threading.Event()

    @app.task
    def work(ctx: Context) -> None:
        begun.set()
        eventually(lambda: ctx.cancelled)
        raise OSError("could not tidy up")

    made = work.enqueue()
    start(lease=LEASE)
    assert begun.wait(30)
    app.client.cancel(made.id)
    assert "could not tidy up" in str(became(app, made.id, Status.CANCELLED).last_error)


@pytest.mark.parametrize("kind", KINDS)
def test_timeout_fails_the_attempt_and_says_how_long_it_was(app: App, start: Start, kind: str) -> None:
    heard: list[str] = []
    declare(app, kind, heard, timeout=0.05)
    made = app.action("work").using(max_attempts=1).enqueue()
    start()
    task = became(app, made.id, Status.DEAD)
    assert heard == ["cancelled True"]
    assert task.last_error == "timed out after 50ms"


def test_timeout_of_the_task_goes_before_the_actions(app: App, start: Start) -> None:
    declare(app, "async", [], timeout=3600)
    made = app.action("work").using(max_attempts=1, timeout=0.05).enqueue()
    start()
    assert became(app, made.id, Status.DEAD).last_error == "timed out after 50ms"


def test_return_after_the_timeout_completes(app: App, burst: Burst) -> None:
    @app.task(timeout=0.01)
    def late(ctx: Context) -> str:
        eventually(lambda: ctx.cancelled)
        return "done all the same"

    made = late.enqueue()
    burst()
    assert app.client.get(made.id).status is Status.COMPLETED


def test_thread_that_ignores_its_timeout_ends_the_worker_which_fails_only_that_task(
    app: App, start: Start, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    others = threading.Event()

    @app.task(timeout=0.05, max_attempts=5)
    def deaf() -> None:
        gate.wait(60)

    @app.task
    def other() -> None:
        others.wait(30)

    stuck, beside = deaf.enqueue(), other.enqueue()
    worker = start(cancel_grace=0)
    became(app, stuck.id, Status.RUNNING)
    became(app, beside.id, Status.RUNNING)
    eventually(lambda: "did not stop within" in caplog.text)
    assert app.client.get(stuck.id).status is Status.RUNNING, "nobody may run it beside the thread that still does"
    others.set()
    assert worker.join() == 70
    task = app.client.get(stuck.id)
    assert (task.status, task.attempts) == (Status.PENDING, 1)
    assert "timed out after 50ms" in str(task.last_error)
    assert "did not stop" in str(task.last_error)
    assert app.client.get(beside.id).status is Status.COMPLETED


# -- leases


@pytest.mark.parametrize("kind", KINDS)
def test_lease_that_is_lost_is_told_and_the_outcome_not_recorded(
    app: App, start: Start, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []
    begun = declare(app, kind, heard)
    made = app.action("work").enqueue()
    start(lease=LEASE)
    assert begun.wait(30)
    # Evicted and taken by somebody else, in one transaction: this worker cannot claim it again.
    with app.database.begin() as connection:
        client = app.client.on(connection)
        assert client.evict(made.id, by="me") is Status.PENDING
        (mine,) = client.claim_batch("default", limit=1, owner="somebody-else")
    eventually(lambda: heard)
    task = app.client.get(made.id)
    assert (task.status, task.lease_owner, task.attempts) == (Status.RUNNING, "somebody-else", 1)
    eventually(lambda: "is not yours any more: somebody-else holds it since" in caplog.text)
    app.client.complete(mine, "theirs")
    assert became(app, made.id, Status.COMPLETED).result_text == '"theirs"'


def test_completion_without_the_lease_is_refused_and_logged(
    app: App, start: Start, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work() -> str:
        gate.wait(30)
        return "mine"

    made = work.enqueue()
    worker = start()
    became(app, made.id, Status.RUNNING)
    with app.database.begin() as connection:
        app.client.on(connection).evict(made.id)
        app.client.on(connection).claim_batch(limit=1, owner="somebody-else")
    gate.set()
    eventually(lambda: "complete refused: the lease on task" in caplog.text)
    assert app.client.get(made.id).lease_owner == "somebody-else"
    eventually(lambda: len(worker.worker._held) == 0)


def test_task_that_comes_back_to_the_worker_that_lost_it_is_kept_apart_from_the_lost_run(
    app: App, start: Start, sql: Sql
) -> None:
    """The lost run must hear of it, and its end must not be taken for the end of the run that holds the lease."""
    first_runs, first_heard, second_may_end, second_runs = (threading.Event() for _ in range(4))

    @app.task
    def work(ctx: Context) -> str:
        if ctx.fence == 1:
            first_runs.set()
            eventually(lambda: ctx.cancelled)
            first_heard.set()
            return "the lost one"
        second_runs.set()
        second_may_end.wait(30)
        return "the one that counts"

    made = work.enqueue()
    worker = start(lease=LEASE, concurrency=5)
    assert first_runs.wait(30)
    app.client.evict(made.id)
    assert second_runs.wait(30)
    assert first_heard.wait(30)
    eventually(lambda: len(worker.worker._held) == 1)
    # Held still: its lease is renewed, again and again.
    eventually(lambda: held_for(app, made.id) > 4 * LEASE)
    second_may_end.set()
    task = became(app, made.id, Status.COMPLETED)
    assert (task.result_text, task.fence) == ('"the one that counts"', 2)


@pytest.mark.parametrize("kind", ["def", "async", "a blocked loop"])
def test_renewals_keep_a_task_alive_beyond_its_lease(app: App, start: Start, kind: str) -> None:
    """It goes on until its lease has been moved on by four times its length, with reapers looking all the time."""

    def outlive(ctx: Context) -> bool:
        return held_for(app, ctx.id) > 4 * LEASE

    if kind == "def":

        @app.task(name="work")
        def work(ctx: Context) -> None:
            eventually(lambda: outlive(ctx))
    elif kind == "async":

        @app.task(name="work")
        async def awork(ctx: Context) -> None:
            await asyncio.to_thread(eventually, lambda: outlive(ctx))
    else:

        @app.task(name="work")
        async def bwork(ctx: Context) -> None:
            eventually(lambda: outlive(ctx))

    made = app.action("work").enqueue()
    start(lease=LEASE, maintenance=0.05)
    task = became(app, made.id, Status.COMPLETED)
    assert (task.attempts, task.fence, task.last_error) == (1, 1, None)


def test_lock_on_the_row_holds_up_its_own_renewal_and_no_other(app: App, start: Start, database_url: str) -> None:
    gates = {name: threading.Event() for name in ("locked", "free")}

    @app.task
    def work(name: str) -> str:
        gates[name].wait(30)
        return name

    locked, free = work.enqueue(name="locked"), work.enqueue(name="free")
    start(lease=LEASE)
    became(app, locked.id, Status.RUNNING)
    before = became(app, free.id, Status.RUNNING).lease_expires_at
    assert before is not None
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [locked.id])
        eventually(lambda: (at := app.client.get(free.id).lease_expires_at) is not None and at > before)
        for event in gates.values():
            event.set()
        # The settle of the free one does not wait for the locked one's either.
        became(app, free.id, Status.COMPLETED)
        assert app.client.get(locked.id).status is Status.RUNNING
        other.execute("rollback")
    task = became(app, locked.id, Status.COMPLETED)
    assert (task.result_text, task.attempts) == ('"locked"', 1)


def test_settle_of_a_row_that_others_lock_waits_in_line_for_it(
    app: App, start: Start, sql: Sql, database_url: str, gate: threading.Event
) -> None:
    """Whoever only skips locked rows never gets through where lockers take turns: it must ask for the row and wait."""

    @app.task
    def work() -> None:
        gate.wait(30)

    made = work.enqueue()
    start()
    became(app, made.id, Status.RUNNING)
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [made.id])
        gate.set()
        waiting = """select pid from pg_stat_activity
                     where %s = any(pg_blocking_pids(pid)) and application_name = 'pgqueue worker'"""
        eventually(lambda: sql(waiting, other.info.backend_pid))
        other.execute("rollback")
    became(app, made.id, Status.COMPLETED)


def test_row_that_cannot_be_written_stops_no_other(
    app: App, start: Start, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's trigger refuses one completion out of a batch: the others count, and that one fails and says why."""
    sql("""create function refuse() returns trigger language plpgsql as
           $$ begin raise exception 'the auditor says no'; end $$""")
    sql("""create trigger refuse before update on pgqueue.tasks for each row
           when (new.status = 'completed' and new.action = 'poisoned') execute function refuse()""")

    @app.task(max_attempts=1)
    async def poisoned() -> None: ...

    @app.task
    async def fine(n: int) -> None: ...

    app.client.enqueue_many([fine.new(n=1), poisoned.new(), fine.new(n=2), poisoned.new(), fine.new(n=3)])
    monkeypatch.setattr("pgqueue.worker.settle._POISONED_AGAIN", 0.01)
    start()
    eventually(lambda: (stats := app.client.stats())["completed"] == 3 and stats["dead"] == 2)
    for (error,) in sql("select last_error from pgqueue.tasks where action = 'poisoned'"):
        assert "its outcome could not be written" in error
        assert "the auditor says no" in error
