"""Delete what finished longer ago than the retention. Every worker runs one pruner; they share by SKIP LOCKED.

No leader, as with the reaper: whoever locks a row deletes it. A pass is a row of small transactions with a breath
after each, as long as it took, so that pruning never has more than half of a connection's time, and what it writes
comes in pieces that replicas and vacuum can follow.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from datetime import timedelta

from ..config import DEFAULTS
from ..database import Database
from ..patience import Patience
from ..store import LONG_AGO, Store
from ..task import Pruned

__all__ = ["Pruner"]

log = logging.getLogger("pgqueue.pruner")

_BATCH = 1000
_LEAST_BREATH = 0.05
_EVERY = timedelta(minutes=1)


class Pruner:
    """One pruner, with a pass about every `every`. start and stop may come in any order, twice."""

    def __init__(
        self, database: Database, *, retention: timedelta = DEFAULTS.retention, every: timedelta = _EVERY
    ) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._retention = retention
        self._every = every.total_seconds()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-pruner", daemon=True)

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def run_once(self) -> Pruned:
        """One pass: batch after batch until nothing is left, or until told to stop. Returns what it deleted.

        Each batch is a transaction of its own; DatabaseError leaves the earlier ones deleted.
        """
        done = Pruned(more=True)
        floor = LONG_AGO
        while done.more:
            began = time.monotonic()
            with self._database.begin() as connection:
                batch = self._store.prune(connection, retention=self._retention, limit=_BATCH, floor=floor)
            done += batch
            # Entries of what was deleted stay in the index while somebody's snapshot is open.
            floor = batch.newest or floor
            if batch.more and self._stopping.wait(max(_LEAST_BREATH, time.monotonic() - began)):
                break
        if done.tasks:
            log.info("pruned %d task(s) that finished until %s", done.tasks, done.newest)
        return done

    def _loop(self) -> None:
        patience = Patience(log, self._stopping)
        while not self._stopping.wait(self._every * random.uniform(0.5, 1.5)):
            try:
                self.run_once()
                patience.worked()
            except Exception as error:  # noqa: BLE001 - whatever it is, the next pass may go well
                patience.failed("cannot prune", error)
