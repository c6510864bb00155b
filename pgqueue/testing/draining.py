"""Run everything that is due, in this thread, without a worker."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from ..context import Context, Stop
from ..edges import Fate
from ..errors import InputError, LeaseNotHeld, PayloadError, UnknownAction
from ..lifecycle import Event, Status
from ..store import Settlement, Store
from ..worker.calls import Calls, unknown_action
from ..worker.lifespan import Opened
from ..worker.running import Running
from .joining import in_transaction

if TYPE_CHECKING:
    from ..app import App
    from ..client import Client
    from ..guest import AnyConnection
    from ..task import Claimed

__all__ = ["Ran", "drain"]

_LEASE = timedelta(hours=1)
"""Nobody renews it, and somebody may be in a debugger."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ran:
    """One execution: of which task and action, which attempt, and what the task became by it.

    value: what the handler returned. error: what it raised, if it did; PayloadError: the row does not fit it;
    UnknownAction: nobody here runs it, and it was given back. detail: the failure as the row has it.
    """

    id: UUID
    action: str
    attempt: int
    status: Status
    value: object = None
    error: BaseException | None = None
    detail: str | None = dataclasses.field(default=None, repr=False)


def drain(
    app: App,
    *,
    connection: AnyConnection | None = None,
    offers: Iterable[str] = (),
    raise_errors: bool = False,
    limit: int = 1000,
) -> list[Ran]:
    """Run every task that is due, and what those enqueue, one after another in this thread; then return.

    connection: run them in this transaction (see `in_transaction`); None: in transactions of the app's own, or in those
        of the `in_transaction` around this. offers: conditions that hold here.
    raise_errors: raise what the first failing handler raised, after its failure is in the row.
    limit: AssertionError when more than so many would run: a handler that enqueues itself has no end.

    Returns what ran, in order: whichever queue's first task has been due the longest, then as a worker takes them. A
    task that backs off, snoozes or is planned for later is not due; `client.reschedule(id, delay=0)` makes it so.

    Handlers run with middleware and in one opening of the app's lifespan, `async def` on an event loop of the drain's
    own. Timeouts and `isolation` do not count, nobody renews and nothing is retried at once. InputError on a thread
    whose event loop runs: `await asyncio.to_thread(drain, app)`.
    """
    if asyncio._get_running_loop() is not None:
        raise InputError("an event loop runs in this thread; drain from another: await asyncio.to_thread(drain, app)")
    with ExitStack() as stack:
        if connection is not None:
            stack.enter_context(in_transaction(app, connection))
        runner = stack.enter_context(asyncio.Runner())
        stack.callback(lambda: runner.run(app.aclose()))
        opened = Opened(app)
        runner.run(opened.enter())
        stack.callback(lambda: runner.run(opened.leave()))
        draining = _Draining(app, runner, opened, tuple(offers))
        ran: list[Ran] = []
        while (task := draining.next()) is not None:
            if len(ran) >= limit:
                app.client.release(task)
                raise AssertionError(
                    f"{limit:,} tasks have run and more are due, the next of {task.action!r}: does a handler enqueue"
                    " without end? Else pass drain(limit=…)"
                )
            ran.append(draining.run(task))
            if raise_errors:
                _raise(ran[-1])
    return ran


def _raise(ran: Ran) -> None:
    if ran.error is not None:
        raise ran.error
    if ran.detail is not None:
        raise AssertionError(f"{ran.action}: {ran.detail}")


class _Draining:
    def __init__(self, app: App, runner: asyncio.Runner, opened: Opened, offers: tuple[str, ...]) -> None:
        self._app = app
        self._client: Client = app.client
        self._runner = runner
        self._opened = opened
        self._offers = offers
        self._joined = self._client._caller is not None

    def next(self) -> Claimed | None:
        """Claim the next task, looking at edges that were left over where none is due."""
        while True:
            if self._joined:
                self._client._run(_bring_due)
            queues = self._client._run(_due_queues)
            if queues:
                claimed = self._client.claim_batch(queues, limit=1, lease=_LEASE, offers=self._offers)
                if claimed:
                    return claimed[0]
            if all(edge.fate is Fate.LATER for edge in self._client.sweep()):
                return None

    def run(self, claimed: Claimed) -> Ran:
        run = Running(claimed, self._app.names.get(claimed.action))
        calls = _Calls(self._context)
        if self._joined:
            self._client._run(_mark)
        settlement: Settlement | None
        if run.action is None:
            settlement = unknown_action(run)
            calls.error = UnknownAction(
                f"unknown action {claimed.action!r}: import the module that declares it", action=claimed.action
            )
        elif run.action.is_async:
            settlement = self._runner.run(calls.acall(run))
        else:
            settlement = calls.call(run)
        if self._joined:
            self._client._run(_mend)
        assert settlement is not None  # noqa: S101 - None is for a lost lease, and nobody said so to this run
        status = self._settle(settlement)
        failed = settlement.event in (Event.FAIL, Event.BURY) and status is not Status.COMPLETED
        return Ran(
            id=claimed.id,
            action=claimed.action,
            attempt=claimed.attempt,
            status=status,
            value=calls.value,
            error=calls.error,
            detail=settlement.detail if failed else None,
        )

    def _settle(self, settlement: Settlement) -> Status:
        task_id = settlement.lease.task_id
        answer = self._client._run(Store.settle_many, [settlement], skip_locked=False)[task_id]
        if answer is None:
            raise AssertionError(f"the outcome of task {task_id} could not be written: somebody has its row locked")
        if isinstance(answer, LeaseNotHeld) and answer.status is None:
            raise answer
        # Not held any more: it completed itself, or somebody has taken it from this run.
        return answer.status or Status.PENDING

    def _context(self, run: Running, stop: Stop, deadline: datetime | None) -> Context:
        def progress(percent: int, message: str | None) -> None:
            self._client.report_progress(run.claimed, percent, message)

        return Context(
            run.claimed,
            stop=stop,
            client=self._client,
            async_client=lambda: self._app.async_client,
            progress=progress,
            deadline=deadline,
            state=self._opened.state,
        )


class _Calls(Calls):
    """Calls as a worker does, and remembers what came of one."""

    value: object = None
    error: BaseException | None = None

    def raised(self, run: Running, error: BaseException) -> Settlement | None:
        if not isinstance(error, Exception | SystemExit | asyncio.CancelledError):
            # Ctrl-C, or a test framework's own, such as pytest.fail in a handler: not the handler's outcome.
            raise error
        self.error = error
        return super().raised(run, error)

    def _returned(self, run: Running, value: object) -> Settlement | None:
        self.value = value
        return super()._returned(run, value)

    def _misfit(self, run: Running, error: PayloadError) -> Settlement:
        self.error = error
        return super()._misfit(run, error)


# -- in SQL; each is a verb as the clients run them


def _bring_due(store: Store, connection: Connection) -> None:
    """In one long transaction now() stands still, and what it enqueues is due after that: by the clock it is due."""
    t = store.sql.tasks.c
    connection.execute(
        sa.update(store.sql.tasks)
        .where(t.status == Status.PENDING.value, t.not_before > sa.func.now())
        .where(t.not_before <= sa.func.clock_timestamp())
        .values(not_before=sa.func.now())
    )


def _due_queues(store: Store, connection: Connection) -> list[str]:
    """The queues that have something due; the one whose first task has been due the longest leads."""
    t = store.sql.tasks.c
    first: Any = sa.func.min(t.not_before)
    query = sa.select(t.queue).where(t.status == Status.PENDING.value, t.not_before <= sa.func.now())
    return list(connection.execute(query.group_by(t.queue).order_by(first, t.queue)).scalars())


def _mark(store: Store, connection: Connection) -> None:
    connection.execute(sa.text("savepoint pgqueue_drain"))


def _mend(store: Store, connection: Connection) -> None:
    """Where a handler's SQL failed in this transaction, go back to before it, so that its outcome can be written.

    Where all is well the savepoint stays: releasing it would release what a session has set since.
    """
    try:
        connection.execute(sa.text("select 1"))
    except DBAPIError:
        connection.execute(sa.text("rollback to savepoint pgqueue_drain"))
