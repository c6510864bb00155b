"""What every loop does when the database is away: wait longer each time, say so at most once a second, try again."""

from __future__ import annotations

import logging
import random
import threading
from time import monotonic

from .errors import PgqueueError

__all__ = ["Outage", "Patience"]

FIRST, LONGEST = 0.1, 5.0
SAID_EVERY = 1.0
"""Seconds between lines about failures, whichever loop has them."""


class Outage:
    """What all loops over one database know together: one voice for its outages, and when it last answered.

    answered_at, failed_at: `time.monotonic()` of the last success and the last failure of any loop, or None.
    """

    def __init__(self) -> None:
        self.answered_at: float | None = None
        self.failed_at: float | None = None
        self._lock = threading.Lock()
        self._failing: dict[Patience, str] = {}
        self._said = self._said_back = float("-inf")

    def failed(self, loop: Patience, what: str, now: float) -> str | None:
        """What to say of it, with what else fails at present; None: something was said a moment ago."""
        with self._lock:
            self.failed_at = now
            self._failing[loop] = what
            if now - self._said < SAID_EVERY:
                return None
            self._said = now
            return ", ".join(dict.fromkeys([what, *self._failing.values()]))

    def worked(self, loop: Patience, since: float, now: float) -> bool:
        """Whether this loop is the first to say that the database is back."""
        with self._lock:
            self._failing.pop(loop, None)
            first = self._said_back < since
            if first:
                self._said_back = now
            return first


class Patience:
    """The waits of one loop. Doubling from 0.1 s to `longest`, jittered, so that a fleet does not come back in step.

    outage: what it shares with the other loops over the same database; without it, it speaks for itself.
    """

    def __init__(
        self,
        log: logging.Logger,
        stopping: threading.Event,
        outage: Outage | None = None,
        *,
        longest: float = LONGEST,
    ) -> None:
        self._log = log
        self._stopping = stopping
        self._outage = outage or Outage()
        self._longest = longest
        self._failures = 0
        self._since = 0.0

    def failed(self, what: str, error: BaseException) -> None:
        """Note a failure and wait; returns early when the loop is to stop."""
        now = monotonic()
        if self._failures == 0:
            self._since = now
        said = self._outage.failed(self, what, now)
        if said is not None:
            # What is not an error of ours is nobody's outage: its place in the code is what one wants to know.
            self._log.warning("%s: %s", said, error, exc_info=None if isinstance(error, PgqueueError) else error)
        wait = min(self._longest, FIRST * 2 ** min(self._failures, 10))
        self._failures += 1
        self._stopping.wait(wait * random.uniform(0.5, 1.0))

    def worked(self) -> None:
        """Note a success; the first loop to have one says how long the database had been away."""
        now = monotonic()
        self._outage.answered_at = now
        if self._failures:
            self._failures = 0
            if self._outage.worked(self, self._since, now):
                self._log.info("the database is back after %.1f s", now - self._since)
