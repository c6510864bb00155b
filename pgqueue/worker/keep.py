"""Keep the leases of what runs: a thread and a connection that nothing else uses.

The database is the authority: a lease ends when the server's clock says so and somebody reaps it. This thread asks for
more every third of a lease, whatever handlers, event loop and pools are doing, and stops last: a drain at shutdown
never loses a lease. While the database is away it keeps trying and lets handlers go on: nobody can reap then either,
and after an outage reapers give holders a third of a lease to renew. A renewal that is refused (LeaseNotHeld) is
final: somebody else decides about the task, and the handler is asked to stop.

Of a cancel request it hears by a notification, which says that there is one and not which. It then looks at what it
holds, without writing anything, and renews what somebody asked about. Whoever is not told learns at the next renewal.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

from ..database import Database
from ..database.answers import ANSWER_WITHIN
from ..errors import DatabaseError, LeaseNotHeld, PgqueueError
from ..lifecycle import Status
from ..patience import Patience
from ..store import Store
from ..task import Lease, Renewed
from .running import CANCELLED, LOST, TIMEOUT, Held, Running

__all__ = ["Keeper"]

log = logging.getLogger("pgqueue.worker")

_PROGRESS_EVERY = 0.5
_TICK = 0.25
_STALLED = 4
"""A pause that takes so many parts of the time between renewals longer than it should is a stall."""
_UNWIND = 1.0
"""Seconds that a timed-out handler has at the least, whatever the grace, before it counts as stuck."""
_LOOK_EVERY = 0.2
"""Seconds between looks at what is held, however many notifications arrive."""
_LOOK_AGAIN = 0.5
"""Seconds to the look after the first: the task may have been claimed, and not yet been held here, when it was told."""
_BATCH = 500
_LATE = 120.0
"""Seconds that a pass may take: three calls, each given up after 40 s."""
_LONGEST = 5.0
_ANSWER_WITHIN = 2.0
"""Seconds that an answer to a renewal may always take; else a quarter of the lease."""
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
        # Over a connection that a firewall has forgotten no answer comes: that must be noticed in time for another try.
        database.hurry(min(ANSWER_WITHIN, max(_ANSWER_WITHIN, lease.total_seconds() / 4)))
        self._interrupt = interrupt
        self._stuck = stuck
        self._grace = max(_UNWIND, grace.total_seconds())
        self._progress: dict[UUID, tuple[Lease, int, str | None]] = {}
        self._lock = threading.Lock()
        self._soon = False
        self._turned = 0.0
        self._told = threading.Event()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-keeper", daemon=True)

    def start(self) -> None:
        """Connects and renews nothing, once: under C code that does not let go of the interpreter the first renewal
        would take a dozen turns, and the next ones take one or two.
        """
        with contextlib.suppress(PgqueueError), self._database.autocommit() as connection:
            self._store.renew_many(connection, [], lease=self._lease)
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._turned = time.monotonic()
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(10)

    @property
    def alive(self) -> bool:
        """Whether its loop turns."""
        return self._thread.is_alive() and time.monotonic() - self._turned < _LATE

    def report(self, lease: Lease, percent: int, message: str | None) -> None:
        """Note progress; only the last one before each write counts. Called from handlers."""
        with self._lock:
            self._progress[lease.task_id] = (lease, percent, message)

    def tell(self) -> None:
        """Somebody may have asked for the cancellation of something that is held. Called from any thread."""
        self._told.set()
        self._wake.set()

    def run_once(self) -> int:
        """Renew everything that is held; returns how many leases were extended."""
        return self._renew([run for run in self._held.all() if run.reason != LOST])

    def look(self) -> int:
        """Renew what somebody has asked about, and nothing else; returns how many leases were extended."""
        runs = [run for run in self._held.all() if run.reason is None and not run.ended]
        asked: set[UUID] = set()
        for start in range(0, len(runs), _BATCH):
            with self._database.autocommit() as connection:
                asked |= self._store.asked(connection, [run.lease for run in runs[start : start + _BATCH]])
        return self._renew([run for run in runs if run.lease.task_id in asked])

    def _renew(self, runs: Sequence[Running]) -> int:
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
            if run.completed_itself and answer.status is Status.COMPLETED:
                # As it should be: `ctx.complete` was committed, and what the handler still does is not to be disturbed.
                return False
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
        patience = Patience(log, self._stopping, self._database.outage, longest=min(_LONGEST, self._every / 4))
        renew_at = time.monotonic() + self._every
        progress_at = 0.0
        look_at = looked_at = float("-inf")
        while not self._stopping.is_set():
            began = time.monotonic()
            pause = min(_TICK, max(0.005, renew_at - began))
            self._wake.wait(pause)
            self._wake.clear()
            self._turned = now = time.monotonic()
            if now - began > pause + self._every / _STALLED:
                # Something keeps this thread from running, most often C code that does not let go of the interpreter.
                # The next turn may come as late: renew while there is time.
                renew_at = now
            try:
                self._time_out(now)
                if self._told.is_set() and now >= looked_at + _LOOK_EVERY:
                    self._told.clear()
                    self.look()
                    looked_at, look_at = now, now + _LOOK_AGAIN
                elif looked_at < look_at <= now:
                    self.look()
                    looked_at = now
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
            if now >= run.ends_at + self._grace and not run.stuck and not run.killable:
                run.stuck = True
                self._stuck(run)
