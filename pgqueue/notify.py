"""LISTEN, with a connection of its own: a hint that a queue has something, never the reason that it is found.

A connection may listen and hear nothing: a pooler in transaction mode accepts LISTEN and passes no notification on, and
some forget it later. So a listener notifies itself, over another connection, when it begins and whenever it has heard
nothing for a while; where that does not arrive it is *deaf*, says so, and connects again, ever less often.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from .database import Database, translated
from .patience import Patience
from .statements import channel, statements_for

__all__ = ["ECHO", "Listener"]

log = logging.getLogger("pgqueue.listener")

ECHO = "\x01echo "
"""How the payloads begin by which listeners find out whether they hear. No name of a queue can begin so."""

_LOOK_UP = 0.2
"""Seconds between looks at the stop flag while nothing arrives."""
_ECHO_EVERY = 60.0
"""Seconds of silence after which a listener notifies itself."""
_ECHO_WITHIN = 5.0
"""Seconds in which it must hear that, or anything."""
_DEAF_WAITS = (1.0, 60.0)
"""Seconds until a deaf listener tries again: at first, doubling, and at the most."""


class _Deaf(Exception):
    """Nothing arrives."""


class Listener:
    """Calls `heard(queue)` for every notification, and `heard(None)` after each (re)connection: something may have been
    missed. `listening` is set while it is known to hear. `start` and `stop` may be called in any order, and twice.
    """

    def __init__(
        self,
        database: Database,
        heard: Callable[[str | None], None],
        *,
        echo_every: float = _ECHO_EVERY,
        echo_within: float = _ECHO_WITHIN,
    ) -> None:
        self._database = database
        self._heard = heard
        self._every = echo_every
        self._within = echo_within
        self._tell = statements_for(database.schema).tell
        self._deaf_wait = _DEAF_WAITS[0]
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
        patience = Patience(log, self._stopping, self._database.outage)
        while not self._stopping.is_set():
            try:
                self._listen(patience)
            except _Deaf:
                self.listening.clear()
                self._wait_deaf()
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on and the next try may go well
                self.listening.clear()
                patience.failed("cannot listen; polling meanwhile", error)

    def _listen(self, patience: Patience) -> None:
        with translated(self._database), self._database.raw(listening=True) as connection:
            connection.execute(sql.SQL("listen {}").format(sql.Identifier(channel(self._database.schema))))
            patience.worked()
            word = uuid4().hex
            asked: float | None = self._echo(word)
            silent_until = 0.0
            while not self._stopping.is_set():
                if self._hear(connection):
                    asked, silent_until = None, time.monotonic() + self._every * random.uniform(0.75, 1.25)
                elif asked is not None and time.monotonic() > asked + self._within:
                    raise _Deaf
                elif asked is None and time.monotonic() > silent_until:
                    asked = self._echo(word)

    def _hear(self, connection: psycopg.Connection[Any]) -> bool:
        """Pass on what arrives; whether anything did."""
        heard = False
        for notification in connection.notifies(timeout=_LOOK_UP):
            if not self.listening.is_set():
                self.listening.set()
                self._deaf_wait = _DEAF_WAITS[0]
                self._heard(None)
            heard = True
            if not notification.payload.startswith(ECHO):
                self._heard(notification.payload)
            if self._stopping.is_set():
                break
        return heard

    def _echo(self, word: str) -> float:
        """Notify all listeners, this one among them, over a connection that does not listen; when that was."""
        with self._database.autocommit() as connection:
            connection.execute(self._tell, {"payload": ECHO + word}).all()
        return time.monotonic()

    def _wait_deaf(self) -> None:
        wait, self._deaf_wait = self._deaf_wait, min(_DEAF_WAITS[1], 2 * self._deaf_wait)
        log.log(
            logging.WARNING if wait == _DEAF_WAITS[0] else logging.DEBUG,
            "notifications do not arrive on the connection that listens (a pooler?): polling, and trying again now and"
            " then; give a direct URL in PGQUEUE_LISTEN_URL, or --no-listen",
        )
        self._stopping.wait(wait)
