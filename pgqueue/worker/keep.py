"""Keep the leases of what runs: a thread and a connection that nothing else uses.

The database is the authority: a lease ends when the server's clock says so and somebody reaps it. This thread asks for
more every third of a lease, whatever handlers, event loop and pools are doing, and stops last: a drain at shutdown
never loses a lease. While the database is away it keeps trying and lets handlers go on: nobody can reap then either,
and after an outage reapers give holders a third of a lease to renew. A renewal that is refused (LeaseNotHeld) is
final: somebody else decides about the task, and the handler is asked to stop.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID

from ..database import Database
from ..errors import DatabaseError, LeaseNotHeld, PgqueueError
from ..patience import Patience
from ..store import Store
from ..task import Lease, Renewed
from .running import CANCELLED, LOST, TIMEOUT, Held, Running

__all__ = ["Keeper"]

log = logging.getLogger("pgqueue.worker")

_PROGRESS_EVERY = 0.5
_TICK = 0.25
_UNWIND = 1.0
"""Seconds that a timed-out handler has at the least, whatever the grace, before it counts as stuck."""
_BATCH = 500
_LONGEST = 5.0
_BRIEFLY = timedelta(milliseconds=200)


class Keeper:
    """Renews what `held` holds, passes cancel requests and timeouts on by `interrupt`, and writes progress.

    `stuck` is told, once, of a handler that has not ended `grace` after its timeout.
    """

    def __init__(
        self,
        database: Database,
        held: Held,
        *,
        lease: timedelta,
        grace: timedelta,
        interrupt: Callable[[Running, str], None],
        stuck: Callable[[Running], None],
    ) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._held = held
        self._lease = lease
        self._every = lease.total_seconds() / 3
        self._interrupt = interrupt
        self._stuck = stuck
        self._grace = max(_UNWIND, grace.total_seconds())
        self._progress: dict[UUID, tuple[Lease, int, str | None]] = {}
        self._lock = threading.Lock()
        self._soon = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-keeper", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def report(self, lease: Lease, percent: int, message: str | None) -> None:
        """Note progress; only the last one before each write counts. Called from handlers."""
        with self._lock:
            self._progress[lease.task_id] = (lease, percent, message)

    def run_once(self) -> int:
        """Renew everything that is held; returns how many leases were extended."""
        runs = [run for run in self._held.all() if run.reason != LOST]
        extended = 0
        locked: list[Running] = []
        for start in range(0, len(runs), _BATCH):
            batch = runs[start : start + _BATCH]
            try:
                with self._database.autocommit() as connection:
                    answers = self._store.renew_many(connection, [run.lease for run in batch], lease=self._lease)
            except PgqueueError:
                raise
            except Exception:
                # One row of them objects, somebody's trigger perhaps: that must not cost the others their leases.
                log.warning("cannot renew %d lease(s) together, now each alone", len(batch), exc_info=True)
                locked += batch
                continue
            for run in batch:
                answer = answers[run.lease.task_id]
                if answer is None:
                    locked.append(run)
                else:
                    extended += self._heard(run, answer)
        # Waiting for these must not make the others' next renewal late.
        ends = time.monotonic() + self._every / 4
        for run in locked:
            if time.monotonic() >= ends:
                self._soon = True
                break
            extended += self._alone(run)
        return extended

    def write_progress(self) -> int:
        """Write the progress noted since the last time; returns how many tasks' was taken."""
        with self._lock:
            reports, self._progress = self._progress, {}
        if not reports:
            return 0
        try:
            with self._database.autocommit() as connection:
                written = self._store.report_many(connection, list(reports.values()))
        except PgqueueError:
            with self._lock:
                self._progress = reports | self._progress
            raise
        # Whose row somebody had locked just now: the next time, unless there is news by then.
        again = {id_: one for id_, one in reports.items() if id_ not in written and self._held.get(one[0]) is not None}
        with self._lock:
            self._progress = again | self._progress
        return len(written)

    def _heard(self, run: Running, answer: Renewed | LeaseNotHeld) -> bool:
        if isinstance(answer, LeaseNotHeld):
            # Where the handler has ended, our own settler may have written its outcome a moment ago: that is no loss.
            if not run.ended and self._held.get(run.lease) is run:
                log.warning("%s", answer)
                self._interrupt(run, LOST)
            return False
        if answer.cancel_requested and run.reason is None:
            self._interrupt(run, CANCELLED)
        return True

    def _alone(self, run: Running) -> bool:
        """Somebody has the row locked: wait for it a moment, alone, so that no other renewal waits with it."""
        try:
            with self._database.begin(lock_timeout=_BRIEFLY) as connection:
                answer = self._store.renew_many(connection, [run.lease], lease=self._lease, skip_locked=False)
        except DatabaseError as error:
            log.info("task %s is locked by somebody; its lease is renewed later: %s", run.lease.task_id, error)
            self._soon = True
            return False
        except PgqueueError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the row objects to, the others are to be renewed
            log.warning("cannot renew the lease on task %s: %s", run.lease.task_id, error)
            self._soon = True
            return False
        found = answer[run.lease.task_id]
        return found is not None and self._heard(run, found)

    def _loop(self) -> None:
        # A reaper that has come back gives holders a third of a lease to renew in: no wait here may be near that.
        patience = Patience(log, self._stopping, longest=min(_LONGEST, self._every / 4))
        renew_at = time.monotonic() + self._every
        progress_at = 0.0
        while not self._stopping.is_set():
            self._stopping.wait(min(_TICK, max(0.005, renew_at - time.monotonic())))
            now = time.monotonic()
            try:
                self._time_out(now)
                if now >= renew_at:
                    self._soon = False
                    self.run_once()
                    renew_at = now + (self._every / 4 if self._soon else self._every)
                    patience.worked()
                if now >= progress_at:
                    self.write_progress()
                    progress_at = now + _PROGRESS_EVERY
            except Exception as error:  # noqa: BLE001 - whatever it is, without this thread every lease is lost
                patience.failed("cannot renew leases", error)

    def _time_out(self, now: float) -> None:
        for run in self._held.all():
            if run.ends_at is None or now < run.ends_at or run.ended:
                continue
            if run.reason is None:
                self._interrupt(run, TIMEOUT)
            if now >= run.ends_at + self._grace and not run.stuck:
                run.stuck = True
                self._stuck(run)
