"""What every loop does when the database is away: wait longer each time, say so at most once a second, try again."""

from __future__ import annotations

import logging
import random
import threading
import time

from .errors import PgqueueError

__all__ = ["Patience"]

FIRST, LONGEST = 0.1, 5.0


class Patience:
    """The waits of one loop. Doubling from 0.1 s to `longest`, jittered, so that a fleet does not come back in step."""

    def __init__(self, log: logging.Logger, stopping: threading.Event, *, longest: float = LONGEST) -> None:
        self._log = log
        self._stopping = stopping
        self._longest = longest
        self._failures = 0
        self._since = 0.0
        self._said = 0.0

    def failed(self, what: str, error: BaseException) -> None:
        """Note a failure and wait; returns early when the loop is to stop."""
        now = time.monotonic()
        if self._failures == 0:
            self._since = now
        if now - self._said >= 1.0:
            self._said = now
            # What is not an error of ours is nobody's outage: its place in the code is what one wants to know.
            self._log.warning("%s: %s", what, error, exc_info=None if isinstance(error, PgqueueError) else error)
        wait = min(self._longest, FIRST * 2 ** min(self._failures, 10))
        self._failures += 1
        self._stopping.wait(wait * random.uniform(0.5, 1.0))

    def worked(self) -> None:
        """Note a success; says how long it had been away."""
        if self._failures:
            self._log.info("the database is back after %.1f s", time.monotonic() - self._since)
            self._failures = 0
