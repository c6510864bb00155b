"""How long a task waits after its n-th failure."""

from __future__ import annotations

import random as chance
from collections.abc import Callable
from datetime import timedelta
from random import Random
from typing import Final, TypeAlias

__all__ = ["CAP", "FIRST", "JITTER", "Backoff", "backoff_for", "with_jitter"]

Backoff: TypeAlias = Callable[[int], timedelta | float]
"""A policy: the number of attempts made (1, 2, 3 …) to the wait before the next; a number means seconds."""

FIRST: Final = timedelta(seconds=5)
CAP: Final = timedelta(minutes=5)

JITTER: Final = 0.25
"""The share of a delay that chance may add."""

_LONGEST: Final = timedelta(days=3652)

# A table cannot overflow, whatever n is.
_STEPS: Final = (*(FIRST * factor for factor in (1, 2, 4, 8, 16, 32)), CAP)


def backoff_for(n: int) -> timedelta:
    """The wait after the n-th attempt: 5 s doubling, at most 5 min. Below 1 counts as 1."""
    return _STEPS[min(max(n, 1), len(_STEPS)) - 1]


def with_jitter(delay: timedelta, random: Random | None = None) -> timedelta:
    """`delay` made longer by up to a quarter, evenly spread: what failed together does not come back together.

    Never shorter, so that nothing retries before the documented delay. A negative delay counts as none and
    none longer than ten years is kept: a wrong policy must not fail the write of a failure. `random` is for
    tests; without it the process's own is drawn from.
    """
    kept = min(max(delay, timedelta(0)), _LONGEST)
    share = chance.random() if random is None else random.random()
    return kept + kept * (JITTER * share)
