"""Return what expired leases hold. Every worker runs one reaper; they share the rows by SKIP LOCKED.

No leader: whoever looks first takes a row, and the lease's own expiry, checked under the row's lock by the server's
clock, is the only authority. A reaper sleeps until the earliest lease runs out (renewals only move that on), so an idle
fleet asks nothing, and a crash is noticed within milliseconds of the lease's end.

After an outage it counts only leases that it could have seen renewed: it waits for `settle_in` after its own
(re)connection, after the server's start, and after a pause in which neither it nor the server did anything (a machine
that was suspended), and live holders renew meanwhile. Otherwise a restart longer than a lease would burn an attempt of
everything that was running.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime, timedelta

from ..database import Database
from ..patience import Patience
from ..store import LONG_AGO, SLACK, Reaped, Store

__all__ = ["Reaper"]

log = logging.getLogger("pgqueue.reaper")

_BATCH = 100
_AGAIN = (0.05, 1.0)
"""Seconds between looks at what has expired and yet cannot be taken: at first, doubling, and at the most."""
_FULL_LOOK = 60.0
"""Seconds between looks below the floor, where a lease could hide whose clock was set back by hand."""


class Reaper:
    """One reaper. `reaped` is told what each pass returned to the line. start and stop may come in any order, twice."""

    def __init__(
        self,
        database: Database,
        *,
        longest_sleep: timedelta,
        settle_in: timedelta,
        reaped: Callable[[list[Reaped]], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._longest = longest_sleep.total_seconds()
        self._settle_in = settle_in
        self._reaped = reaped
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-reaper", daemon=True)
        self._floor: datetime = LONG_AGO
        self._full_at = 0.0

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def run_once(self) -> list[Reaped]:
        """Reap one batch; fewer than a full batch means that nothing is left."""
        with self._database.begin() as connection:
            done = self._store.reap(connection, limit=_BATCH, floor=self._floor, settled=self._settle_in)
        if done:
            log.info("reaped %d expired lease(s): %s", len(done), _owners(done))
            self._reaped(done)
        return done

    def _loop(self) -> None:
        patience = Patience(log, self._stopping)
        settle_in = self._settle_in.total_seconds()
        settled = False
        again = _AGAIN[0]
        # When the next answer should be here at the latest; None: it may take its time.
        expected: float | None = None
        while not self._stopping.is_set():
            try:
                wait = self._next_wait()
                patience.worked()
                if not settled or (expected is not None and time.monotonic() > expected + settle_in):
                    settled, expected = True, None
                    self._stopping.wait(settle_in)
                    continue
                if wait > 0:
                    again = _AGAIN[0]
                    wait = min(wait, self._longest)
                elif self.run_once():
                    again, wait = _AGAIN[0], 0.0
                else:
                    # Expired, and yet nobody may take it: its holder is writing, or the server has only just started.
                    wait, again = again, min(_AGAIN[1], 2 * again)
                expected = time.monotonic() + wait
                self._stopping.wait(wait)
            except Exception as error:  # noqa: BLE001 - whatever it is, the next pass may go well
                settled = False
                patience.failed("cannot reap", error)

    def _next_wait(self) -> float:
        """Seconds until the earliest lease runs out; keeps the floor, past the dead entries before it."""
        now = time.monotonic()
        if now >= self._full_at:
            self._floor, self._full_at = LONG_AGO, now + _FULL_LOOK
        with self._database.autocommit() as connection:
            wait, earliest = self._store.earliest_expiry(connection, floor=self._floor)
        if wait is None or earliest is None:
            return self._longest
        # Never above the server's now: a lease may be shorter than all that run at this moment.
        self._floor = max(self._floor, earliest - timedelta(seconds=max(0.0, wait)) - SLACK)
        return max(0.0, wait)


def _owners(done: list[Reaped]) -> str:
    return ", ".join(sorted({reaped.owner for reaped in done})[:5])
