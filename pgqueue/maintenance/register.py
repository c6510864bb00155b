"""Say that a worker is there: a row in `workers`, for people. Nothing else rests on it: leases go by their tokens."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import TypedDict
from uuid import UUID, uuid4

from ..database import Database
from ..errors import PgqueueError
from ..fleet import BEAT
from ..patience import Patience
from ..store import Store

__all__ = ["Registrar", "Registration"]

log = logging.getLogger("pgqueue.registrar")


_FORGET_EVERY = 20
"""Beats from one look at what others left to the next."""


class Registration(TypedDict):
    """What a worker says of itself."""

    name: str
    host: str
    pid: int
    version: str
    queues: Sequence[str]
    actions: Sequence[str]
    offers: Sequence[str]
    concurrency: int


class Registrar:
    """The row of one worker: written at once and every `every`, deleted at a clean stop. Now and then the rows of those
    that were not seen for long are deleted. start and stop may come in any order, twice.

    who: asked at each beat, since a worker may learn its actions late.
    """

    def __init__(self, database: Database, who: Callable[[], Registration], *, every: timedelta = BEAT) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._who = who
        self._every = every.total_seconds()
        self._there = False
        self._beats = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-registrar", daemon=True)
        self.id: UUID = uuid4()

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        """Beat no more, and delete the row where the database can be reached."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)
        if self._there:
            self._there = False
            with suppress(PgqueueError), self._database.autocommit() as connection:
                self._store.unregister(connection, self.id)

    def run_once(self) -> int:
        """One beat; returns how many rows of others it deleted."""
        with self._database.autocommit() as connection:
            self._store.register(connection, self.id, **self._who())
            self._there = True
            self._beats += 1
            return self._store.forget_workers(connection) if self._beats % _FORGET_EVERY == 1 else 0

    def _loop(self) -> None:
        patience = Patience(log, self._stopping, self._database.outage)
        while not self._stopping.is_set():
            try:
                self.run_once()
                patience.worked()
                self._stopping.wait(self._every * random.uniform(0.75, 1.0))
            except Exception as error:  # noqa: BLE001 - whatever it is, the worker works without the row
                self._there = False
                patience.failed("cannot register the worker", error)
