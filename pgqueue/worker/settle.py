"""Write outcomes, in batches: a thread with a connection of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from ..database import Database
from ..errors import LeaseNotHeld, PgqueueError
from ..lifecycle import Event
from ..patience import Patience
from ..sanitize import describe
from ..store import Settlement, Store
from ..task import Lease, Settled

__all__ = ["Settler"]

log = logging.getLogger("pgqueue.worker")

_FLUSH_AFTER = 0.002
_ALONE_AGAIN = 0.25
"""Seconds between tries at a row that somebody else's open transaction holds."""
_BRIEFLY = timedelta(milliseconds=50)
"""How long one such try waits in line for the row; outcomes of other tasks wait no longer than that."""
_LOCKED_SAID_EVERY = 10.0
"""Seconds between lines in the log about rows that somebody has locked: he may take hours."""
_POISONED_AGAIN = 5.0
"""Seconds between tries at what the database refuses for a reason of its own, such as somebody's trigger."""


class Settler:
    """Collects settlements and writes them: at once when there is nobody to wait for, else within milliseconds.

    `settled(leases)` is called with those that are done with, whether the write was accepted or the lease was lost;
    `refused` before that, where it was lost.
    A settlement that the database could not be told stays here and is sent again: a settle recognises its own first
    success. `stop` writes what is left, for at most so long.
    """

    def __init__(
        self,
        database: Database,
        *,
        batch: int,
        settled: Callable[[Iterable[Lease]], None],
        refused: Callable[[Settlement, LeaseNotHeld], None],
        others_running: Callable[[], int],
    ) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._batch = batch
        self._settled = settled
        self._refused = refused
        self._others_running = others_running
        self._waiting: queue.SimpleQueue[Settlement | None] = queue.SimpleQueue()
        self._alone: list[tuple[float, Settlement]] = []
        self._locked_said = -_LOCKED_SAID_EVERY
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-settler", daemon=True)
        self.put = self._waiting.put

    def start(self) -> None:
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self, seconds: float) -> bool:
        """Write what is left, for at most `seconds`; True when all was written."""
        if not self._thread.is_alive():
            return True
        self._waiting.put(None)
        self._thread.join(seconds)
        done = not self._thread.is_alive()
        self._give_up.set()
        return done

    def run_once(self, settlements: Sequence[Settlement]) -> list[Lease]:
        """Write a batch; returns the leases that are done with. The others are locked by somebody and stay here."""
        done: list[Lease] = []
        for round_ in _rounds(settlements):
            completions = [s for s in round_ if s.event is Event.COMPLETE]
            others = [s for s in round_ if s.event is not Event.COMPLETE]
            if completions:
                with self._database.begin() as connection:
                    answers = self._store.settle_many(connection, completions)
                done += self._heard(completions, answers)
            if others:
                with self._database.begin() as connection:
                    answers = self._store.settle_many(connection, others)
                done += self._heard(others, answers)
        return done

    def _heard(
        self, settlements: Sequence[Settlement], answers: Mapping[UUID, Settled | LeaseNotHeld | None]
    ) -> list[Lease]:
        done = []
        for settlement in settlements:
            answer = answers[settlement.lease.task_id]
            if answer is None:
                # Most often a child's COMMIT, which is over in a moment: the first try comes at once.
                self._alone.append((time.monotonic(), settlement))
                continue
            if isinstance(answer, LeaseNotHeld):
                self._refused(settlement, answer)
            done.append(settlement.lease)
        return done

    def _loop(self) -> None:
        patience = Patience(log, self._give_up)
        ending = False
        pending: list[Settlement] = []
        while not self._give_up.is_set():
            if not pending:
                pending, ended = self._collect(ending)
                ending = ending or ended
            try:
                asked = bool(pending)
                if pending:
                    done = self.run_once(pending)
                    pending = []
                    self._settled(done)
                if self._settle_alone() or asked:
                    patience.worked()
            except PgqueueError as error:
                patience.failed(f"cannot settle {len(pending) + len(self._alone)} task(s) yet", error)
                continue
            except Exception:
                log.warning("cannot settle %d task(s) together, now each alone", len(pending), exc_info=True)
                self._alone += [(0.0, settlement) for settlement in pending]
                pending = []
            if ending and not pending and not self._alone and self._waiting.empty():
                return

    def _collect(self, ending: bool) -> tuple[list[Settlement], bool]:
        """The next batch, and whether the end was called. A lonely task does not wait for others."""
        wait = max(0.0, min(at for at, _ in self._alone) - time.monotonic()) if self._alone else None
        if ending and wait is None:
            wait = 0
        try:
            first = self._waiting.get(timeout=wait)
        except queue.Empty:
            return [], ending
        if first is None:
            return [], True
        batch = [first]
        for last_chance in (False, True):
            ended = self._take_into(batch)
            if ended or last_chance or len(batch) >= self._batch or self._others_running() <= len(batch):
                return batch, ended
            time.sleep(_FLUSH_AFTER)
        return batch, False

    def _take_into(self, batch: list[Settlement]) -> bool:
        try:
            while len(batch) < self._batch:
                settlement = self._waiting.get_nowait()
                if settlement is None:
                    return True
                batch.append(settlement)
        except queue.Empty:
            pass
        return False

    def _settle_alone(self) -> bool:
        """Each by itself, waiting for its row a moment; after one that waited in vain, batches come first again.

        Returns whether the database was asked, and answered.
        """
        now = time.monotonic()
        due = [settlement for at, settlement in self._alone if now >= at]
        self._alone = [(at, settlement) for at, settlement in self._alone if now < at]
        answered = False
        while due:
            settlement = due.pop(0)
            task_id = settlement.lease.task_id
            try:
                with self._database.begin(lock_timeout=_BRIEFLY) as connection:
                    answer = self._store.settle_many(connection, [settlement], skip_locked=False)[task_id]
            except PgqueueError as error:
                self._alone += [*((now, other) for other in due), (time.monotonic() + _ALONE_AGAIN, settlement)]
                if not _is_locked(error):
                    raise
                self._say_locked(settlement)
                return True
            except Exception as error:
                log.warning("cannot write the outcome of task %s", task_id, exc_info=True)
                self._alone.append((time.monotonic() + _POISONED_AGAIN, _as_failure(settlement, error)))
            else:
                if answer is None and settlement.event is Event.ACKNOWLEDGE:
                    # Its guard said no: nobody asks for the cancel any more.
                    settlement = settlement._replace(event=Event.RELEASE)
                self._settled(self._heard([settlement], {task_id: answer}))
            answered = True
        return answered

    def _say_locked(self, settlement: Settlement) -> None:
        now = time.monotonic()
        if now - self._locked_said >= _LOCKED_SAID_EVERY:
            self._locked_said = now
            log.warning(
                "cannot settle task %s yet: somebody's open transaction has it locked; it is tried again until it can",
                settlement.lease.task_id,
            )


def _rounds(settlements: Sequence[Settlement]) -> Iterator[list[Settlement]]:
    """At most one settlement per task at a time: answers are by task, and a worker may hold one twice, once in vain."""
    waiting = list(settlements)
    while waiting:
        first = {s.lease.task_id: s for s in reversed(waiting)}
        yield list(first.values())
        if len(first) == len(waiting):
            return
        waiting = [s for s in waiting if first[s.lease.task_id] is not s]


def _is_locked(error: PgqueueError) -> bool:
    """Whether it is this row that cannot be had just now, and not the database."""
    return getattr(getattr(error.__cause__, "orig", None), "sqlstate", None) in ("55P03", "57014", "40001", "40P01")


def _as_failure(settlement: Settlement, error: Exception) -> Settlement:
    if settlement.event is Event.FAIL:
        return settlement
    return Settlement(Event.FAIL, settlement.lease, f"its outcome could not be written: {describe(error)}")
