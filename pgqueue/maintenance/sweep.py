"""Look at edges that a commit or an ending had to leave. Every worker runs one sweeper; they share by SKIP LOCKED.

It sleeps until the first edge is due, and is woken where edges become due now: by its own worker, or by a
notification that names no queue.
"""

from __future__ import annotations

import logging
import threading
import time
from datetime import datetime, timedelta

from ..database import Database
from ..edges import Fate
from ..patience import Patience
from ..store import LONG_AGO, SLACK, Store, Swept

__all__ = ["Sweeper"]

log = logging.getLogger("pgqueue.sweeper")

_BATCH = 100
_AGAIN = (0.02, 1.0)
"""Seconds between looks at edges whose child or parent somebody has locked: at first, doubling, and at the most."""
_FULL_LOOK = 60.0
"""Seconds between looks below the floor."""


class Sweeper:
    """One sweeper. start and stop may come in any order, twice; `wake` from any thread."""

    def __init__(self, database: Database, *, longest_sleep: timedelta) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._longest = longest_sleep.total_seconds()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-sweeper", daemon=True)
        self._floor: datetime = LONG_AGO
        self._full_at = 0.0
        self._one_at_a_time = threading.Lock()
        self._loops_last: list[Swept] = []

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def wake(self) -> None:
        """Edges may have become due."""
        self._wake.set()

    def run_once(self) -> list[Swept]:
        """Look at one batch of due edges; returns what became of each, and of those of the loop's last pass.

        Empty: none was due, and since the call before this one the loop has freed nobody either: a worker that ends
        when nothing is left to do may have looked for tasks just before that.
        """
        with self._one_at_a_time:
            loops_last, self._loops_last = self._loops_last, []
            return loops_last + self._pass()

    def _pass(self) -> list[Swept]:
        with self._database.begin() as connection:
            swept = self._store.sweep(connection, limit=_BATCH, floor=self._floor)
        for edge in swept:
            if edge.fate is Fate.LET_GO:
                log.warning("task %s no longer waits for its parent %s, which never appeared", edge.child, edge.parent)
        return swept

    def _sweep(self) -> bool:
        """The loop's pass; whether it could do anything."""
        with self._one_at_a_time:
            done = [edge for edge in self._pass() if edge.fate is not Fate.LATER]
            if done:
                self._loops_last = done
        return bool(done)

    def _loop(self) -> None:
        patience = Patience(log, self._stopping)
        again = _AGAIN[0]
        while not self._stopping.is_set():
            self._wake.clear()
            try:
                wait = self._next_wait()
                if wait <= 0:
                    if self._sweep():
                        again, wait = _AGAIN[0], 0.0
                    else:
                        wait, again = again, min(_AGAIN[1], 2 * again)
                        # What is locked is not due sooner for being woken.
                        self._stopping.wait(wait)
                        wait = 0.0
                else:
                    again = _AGAIN[0]
                patience.worked()
                self._wake.wait(min(wait, self._longest))
            except Exception as error:  # noqa: BLE001 - whatever it is, the next pass may go well
                patience.failed("cannot sweep", error)

    def _next_wait(self) -> float:
        """Seconds until the first edge is due; keeps the floor, past the dead entries before it."""
        now = time.monotonic()
        if now >= self._full_at:
            self._floor, self._full_at = LONG_AGO, now + _FULL_LOOK
        with self._database.autocommit() as connection:
            wait, earliest = self._store.next_look(connection, floor=self._floor)
        if wait is None or earliest is None:
            return self._longest
        # Never above the server's now: an edge may become due at once while the others wait.
        self._floor = max(self._floor, earliest - timedelta(seconds=max(0.0, wait)) - SLACK)
        return max(0.0, wait)
