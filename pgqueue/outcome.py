"""What a handler may say besides "done": return a `Snooze`, raise `Permanent` or `RetryAfter`."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

from .keys import check_duration

__all__ = ["Permanent", "RetryAfter", "Snooze"]


@dataclasses.dataclass(frozen=True, slots=True)
class Snooze:
    """Return it from a handler: run me again after `delay` (seconds or a timedelta). The attempt is given back."""

    delay: timedelta | float

    def __post_init__(self) -> None:
        check_duration(self.delay, field="delay")


class Permanent(Exception):
    """Raise it from a handler: no retry will help. The task is dead now, whatever attempts are left."""


class RetryAfter(Exception):
    """Raise it from a handler: this attempt failed; try again after `delay` instead of the backoff.

    The attempt counts: a task out of attempts is dead all the same.
    """

    def __init__(self, delay: timedelta | float, reason: str = "") -> None:
        super().__init__(reason)
        self.delay = check_duration(delay, field="delay")
