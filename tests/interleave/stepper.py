"""Run two verbs beside each other, one statement at a time, in an order that the caller chooses.

A step is one statement, or the COMMIT with what is deferred to it. A side stands still before each of its steps until
it is released. Statements that only append to the journal, hint, or set a savepoint belong to the step before them:
nothing reads what they write and nobody waits for it, so their place among the other side's steps changes nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import heapq
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from pgqueue.database import Database
from pgqueue.errors import PgqueueError
from tests.support import Sql
from tests.support.waiting import PATIENCE

__all__ = ["WAITS", "Deadlock", "Run", "Stage", "orders"]

Verb = Callable[[Connection], str]
"""A verb as it is to be stepped: it runs in a transaction of its own, and says in a few words what it answered."""

COMMIT = "commit"
WAITS = " (waits)"
"""What the steps end in, as `Run` tells them, that had to wait for the other side."""

_COMMUTES = (
    "insert into pgqueue.task_events",
    "select case when pg_try_advisory_xact_lock",
    "savepoint",
    "release savepoint",
)
_UNASKED = ("40P01", "55P03", "57014", "uniq_running_per_agent")
"""What no verb may meet here, not even where it would go on: a deadlock, a lock's or a statement's timeout; the index
that keeps an agent from running two tasks (claims are to see for themselves, under the agent's lock).
"""


class Deadlock(AssertionError):
    """Each side waits for the other."""


class _Given_up(BaseException):  # noqa: N801
    """Ends a side whose run was given up."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One order, as it was run.

    trace: which side was released, step by step: 0 or 1. free: at each of these points, the sides that could have been.
    answers: of each side, what it said. steps: what each release let go, for people.
    """

    trace: tuple[int, ...]
    free: tuple[frozenset[int], ...]
    answers: tuple[str, str]
    steps: tuple[str, ...]


class _Side:
    """One verb in a thread of its own, which stands still before each step."""

    def __init__(self, name: str, database: Database, verb: Verb) -> None:
        self.name = name
        self.answer = ""
        self.step = ""
        self.pid = 0
        self.done = False
        self.blocked = False
        self._given_up = False
        self._go = threading.Semaphore(0)
        self._stands = threading.Event()
        self._database = database
        self._verb = verb
        self._thread = threading.Thread(target=self._run, name=f"side {name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def release(self) -> None:
        self._stands.clear()
        self._go.release()

    def stands(self, within: float) -> bool:
        """Whether it stands before a step, or has ended, within so many seconds."""
        return self._stands.wait(within)

    def give_up(self) -> None:
        self._given_up = True
        self._go.release()
        self._thread.join(PATIENCE)

    def join(self) -> None:
        self._thread.join(PATIENCE)

    def stop_before(self, connection: Connection, step: str) -> None:
        if self._given_up:
            raise _Given_up
        self.pid = connection.connection.dbapi_connection.info.backend_pid  # type: ignore[union-attr]
        self.step = step
        self._stands.set()
        self._go.acquire()
        if self._given_up:
            raise _Given_up

    def _run(self) -> None:
        _here.side = self
        try:
            with self._database.begin() as connection:
                self.answer = self._verb(connection)
        except PgqueueError as error:
            status = getattr(error, "status", None)
            self.answer = type(error).__name__ + (f" ({status})" if status else "")
        except _Given_up:
            self.answer = "given up"
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is no lawful outcome, and must be told
            self.answer = f"{type(error).__name__}: {error}"
        self.done = True
        self._stands.set()


_here = threading.local()


class Stage:
    """A database on which pairs of verbs are run; use it in a `with`."""

    def __init__(self, database: Database, sql: Sql) -> None:
        self.database = database
        self._sql = sql
        self.errors: list[str] = []
        """What was met of `_UNASKED`, whether or not the verb went on."""

    def __enter__(self) -> Stage:
        sa.event.listen(self.database.engine, "before_cursor_execute", _before)
        sa.event.listen(self.database.engine, "commit", _before_commit)
        sa.event.listen(self.database.engine, "handle_error", self._on_error)
        return self

    def __exit__(self, *error: object) -> None:
        sa.event.remove(self.database.engine, "before_cursor_execute", _before)
        sa.event.remove(self.database.engine, "commit", _before_commit)
        sa.event.remove(self.database.engine, "handle_error", self._on_error)

    def run(self, verbs: tuple[Verb, Verb], prefix: Sequence[int] = ()) -> Run:
        """Run both to their ends: the steps of `prefix` first, then each side as far as it goes without the other.

        A step that waits for the other side's locks stays where it is, and goes on by itself once they are gone.
        """
        sides = [_Side(name, self.database, verb) for name, verb in zip("AB", verbs, strict=True)]
        with self._given_up(sides):
            for side, other in zip(sides, reversed(sides), strict=True):
                side.start()
                self._settle(side, other)
            trace: list[int] = []
            free: list[frozenset[int]] = []
            steps: list[str] = []
            while not all(side.done for side in sides):
                enabled = frozenset(i for i, side in enumerate(sides) if not side.done and not side.blocked)
                if not enabled:
                    raise Deadlock(f"each waits for the other after {' '.join(steps)}")
                place = len(trace)
                if place < len(prefix):
                    chosen = prefix[place]
                    assert chosen in enabled, f"not the same as before: {prefix} at {place}, {steps}"
                else:
                    chosen = trace[-1] if trace and trace[-1] in enabled else min(enabled)
                side, other = sides[chosen], sides[1 - chosen]
                told = f"{side.name}:{side.step}"
                side.release()
                self._settle(side, other)
                if other.blocked:
                    self._settle(other, side)
                trace.append(chosen)
                free.append(enabled)
                steps.append(told + (WAITS if side.blocked else ""))
            for side in sides:
                side.join()
            return Run(tuple(trace), tuple(free), (sides[0].answer, sides[1].answer), tuple(steps))

    def _settle(self, side: _Side, other: _Side) -> None:
        """Wait until the side stands, has ended, or waits for a lock of the other.

        Not of anybody: a COMMIT that notifies waits for every other one of the server.
        """
        deadline = time.monotonic() + PATIENCE
        patience = 0.003
        while not side.stands(patience):
            pids = (other.pid, side.pid)
            side.blocked = all(pids) and bool(self._sql("select %s = any(pg_blocking_pids(%s))", *pids)[0][0])
            if side.blocked:
                return
            assert time.monotonic() < deadline, f"{side.name} neither ends {side.step} nor waits for a lock"
            patience = min(2 * patience, 0.05)
        side.blocked = False

    @contextlib.contextmanager
    def _given_up(self, sides: Sequence[_Side]) -> Iterator[None]:
        """Nobody is left standing when a run goes wrong."""
        try:
            yield
        except BaseException:
            for side in sides:
                side.give_up()
            raise

    def _on_error(self, context: Any) -> None:
        error = context.original_exception
        met = {getattr(error, "sqlstate", None), getattr(getattr(error, "diag", None), "constraint_name", None)}
        self.errors += [str(name) for name in met if name in _UNASKED]


def _before(connection: Connection, cursor: object, statement: str, *_: object) -> None:
    del cursor
    side = getattr(_here, "side", None)
    text = " ".join(statement.split()).lower()
    if side is not None and not text.startswith(_COMMUTES):
        side.stop_before(connection, text[:60])


def _before_commit(connection: Connection) -> None:
    side = getattr(_here, "side", None)
    if side is not None:
        side.stop_before(connection, COMMIT)


def orders(run: Callable[[Sequence[int]], Run], limit: int) -> Iterator[Run]:
    """Run every order of two sides' steps, at most `limit` of them: those with the fewest preemptions first.

    `run` is given how an order begins, and goes on without preemptions. A preemption: a side that could have gone on
    had to let the other one take a step. Each order is run once, and a step that waits is a step of its order.
    """
    waiting: list[tuple[int, int, tuple[int, ...]]] = [(0, 0, ())]
    for _ in range(limit):
        if not waiting:
            return
        preemptions, _, prefix = heapq.heappop(waiting)
        done = run(prefix)
        yield done
        for place in range(len(prefix), len(done.trace)):
            chosen = done.trace[place]
            if len(done.free[place]) == 2:
                # What the default goes on with is no preemption; its opposite is, except at the very beginning.
                costs = preemptions + (place > 0 and done.trace[place - 1] == chosen)
                heapq.heappush(waiting, (costs, place, (*done.trace[:place], 1 - chosen)))
    # Whoever wants to know whether that was all of them asks for one more.
