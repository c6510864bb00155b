"""LISTEN, with a connection of its own: a hint that a queue has something, never the reason that it is found."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from psycopg import sql

from .database import Database, translated
from .patience import Patience
from .statements import channel

__all__ = ["Listener"]

log = logging.getLogger("pgqueue.listener")

_LOOK_UP = 0.2
"""Seconds between looks at the stop flag while nothing arrives."""


class Listener:
    """Calls `heard(queue)` for every notification, and `heard(None)` after each (re)connection: something may have been
    missed. `start` and `stop` may be called in any order, and twice.
    """

    def __init__(self, database: Database, heard: Callable[[str | None], None]) -> None:
        self._database = database
        self._heard = heard
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-listener", daemon=True)
        self.listening = threading.Event()

    def start(self) -> None:
        if not self._thread.is_alive() and not self._stopping.is_set():
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10)

    def _loop(self) -> None:
        patience = Patience(log, self._stopping)
        while not self._stopping.is_set():
            try:
                self._listen(patience)
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on and the next try may go well
                self.listening.clear()
                patience.failed("cannot listen; polling meanwhile", error)

    def _listen(self, patience: Patience) -> None:
        with translated(self._database), self._database.raw() as connection:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel(self._database.schema))))
            patience.worked()
            self.listening.set()
            self._heard(None)
            while not self._stopping.is_set():
                for notification in connection.notifies(timeout=_LOOK_UP):
                    self._heard(notification.payload)
                    if self._stopping.is_set():
                        return
