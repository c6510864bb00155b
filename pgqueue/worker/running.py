"""One claimed task inside a worker, from its claim until its settle is acknowledged."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..context import Stop

if TYPE_CHECKING:
    import asyncio
    from datetime import timedelta
    from uuid import UUID

    from ..app import Action
    from ..context import Context
    from ..task import Claimed, Lease

__all__ = ["CANCELLED", "LOST", "SHUTDOWN", "TIMEOUT", "Held", "Running"]

CANCELLED, LOST, SHUTDOWN, TIMEOUT = "cancelled", "the lease is lost", "the worker is stopping", "timed out"


class Running:
    """What the worker's threads know of one task. Small and mutable: one is made per claim, on the hot path."""

    __slots__ = (
        "action",
        "asyncio_task",
        "claimed",
        "context",
        "ended",
        "ends_at",
        "started",
        "stop",
        "stuck",
        "timeout",
    )

    def __init__(self, claimed: Claimed, action: Action[..., object] | None) -> None:
        self.claimed = claimed
        self.action = action
        self.context: Context | None = None
        self.stop: Stop | None = None
        self.asyncio_task: asyncio.Task[None] | None = None
        self.started = False
        self.ended = False
        self.stuck = False
        self.timeout: timedelta | None = claimed.timeout or (action.timeout if action is not None else None)
        self.ends_at: float | None = None

    @property
    def lease(self) -> Lease:
        return self.claimed.lease

    @property
    def reason(self) -> str | None:
        """Why the handler was asked to stop, or None."""
        return None if self.stop is None else self.stop.reason

    @property
    def completed_itself(self) -> bool:
        """Whether the handler called `ctx.complete`, whatever became of its transaction."""
        return self.context is not None and self.context._completed

    def stopper(self) -> Stop:
        """The request to stop, made on first use: by the thread that runs the handler, or by one that interrupts it."""
        with _making_stops:
            if self.stop is None:
                self.stop = Stop()
            return self.stop


_making_stops = threading.Lock()


class Held:
    """The tasks that this worker holds: claimed and not yet settled. Safe between threads.

    `room` is how many more it may claim. A slot is free again only when its settle is acknowledged, so that a worker
    cannot pile up finished work that the database does not take.

    A worker may claim a task again whose earlier handler still runs here: somebody released it, or its lease ran out.
    The earlier run is then *replaced*: it keeps its slot until its handler ends, and its lease is gone.
    """

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._runs: dict[UUID, Running] = {}
        self._replaced: list[Running] = []
        self._lock = threading.Lock()

    @property
    def room(self) -> int:
        return self._concurrency - len(self)

    def __len__(self) -> int:
        return len(self._runs) + len(self._replaced)

    def add(self, runs: Iterable[Running]) -> list[Running]:
        """Hold these; returns the earlier runs that they replace."""
        replaced = []
        with self._lock:
            for run in runs:
                earlier = self._runs.get(run.lease.task_id)
                if earlier is not None:
                    replaced.append(earlier)
                self._runs[run.lease.task_id] = run
            self._replaced += replaced
        return replaced

    def remove(self, leases: Iterable[Lease]) -> list[Running]:
        """Forget the runs under these leases; returns those that were held."""
        removed = []
        with self._lock:
            for lease in leases:
                run = self._runs.get(lease.task_id)
                if run is not None and run.lease.fence == lease.fence:
                    removed.append(self._runs.pop(lease.task_id))
                elif self._replaced:
                    gone = [old for old in self._replaced if old.lease == lease]
                    self._replaced = [old for old in self._replaced if old.lease != lease]
                    removed += gone
        return removed

    def get(self, lease: Lease) -> Running | None:
        """The run under this lease, unless a later claim has replaced it."""
        run = self._runs.get(lease.task_id)
        return run if run is not None and run.lease.fence == lease.fence else None

    def all(self) -> list[Running]:
        """A copy, oldest first; without those that were replaced, which hold nothing any more."""
        with self._lock:
            return list(self._runs.values())

    def replaced(self) -> list[Running]:
        """A copy of the runs that hold nothing any more and whose handlers have not ended."""
        with self._lock:
            return list(self._replaced)
