"""Task ids: UUIDv7 (RFC 9562), minted by the client before anything is sent."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from random import Random
from threading import RLock
from typing import Final
from uuid import UUID

from .errors import InputError

__all__ = ["TAIL", "Mint", "new_id", "parse_id", "tail"]

TAIL: Final = 6
"""Hex digits of an id that tables show."""

_CANONICAL: Final = re.compile("[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")

# The 122 free bits of a UUIDv7 are kept as one number, milliseconds before counter: a counter that
# runs over carries into the next millisecond by itself.
_COUNTER_BITS: Final = 74
_LOW_BITS: Final = 62
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_MIDDLE_MASK: Final = 0xFFF
_MARKS: Final = 7 << 76 | 2 << 62  # version and variant


class Mint:
    """Makes ids that grow strictly, over all threads, even where the clock is set back.

    Each new millisecond begins at 73 random bits; within one, ids are a random step apart, so that tails
    differ. `clock` gives nanoseconds since 1970.
    """

    def __init__(self, *, clock: Callable[[], int] = time.time_ns, random: Random | None = None) -> None:
        self._clock = clock
        self._random = random or Random()
        # Re-entrant: a signal handler may enqueue while its thread is in here.
        self._lock = RLock()
        self._last = 0
        self._forked = False

    def __call__(self) -> UUID:
        """The next id."""
        with self._lock:
            while True:
                seen = self._last
                state = self._after(seen)
                if self._last == seen:  # else a signal handler minted meanwhile
                    self._last = state
                    self._forked = False
                    return _spread(state)

    def reseed(self) -> None:
        """Part from the process that this one was forked from: another random state, another millisecond.

        Without the second, parent and child would count on from the same number.
        """
        self._lock = RLock()  # a thread that is not here any more may have held it
        self._random = Random()
        self._forked = True

    def _after(self, last: int) -> int:
        now, then = self._clock() // 1_000_000, last >> _COUNTER_BITS
        if now > then or self._forked:
            return max(now, then + 1) << _COUNTER_BITS | self._random.getrandbits(_COUNTER_BITS - 1)
        return last + 1 + self._random.getrandbits(32)


def _spread(state: int) -> UUID:
    milliseconds, middle = state >> _COUNTER_BITS, state >> _LOW_BITS & _MIDDLE_MASK
    return UUID(int=milliseconds << 80 | middle << 64 | state & _LOW_MASK | _MARKS)


_mint = Mint()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mint.reseed)


def new_id() -> UUID:
    """A new task id: UUIDv7, larger than all that this process made before, safe over threads and fork."""
    return _mint()


def tail(task_id: UUID) -> str:
    """The end of an id as tables show it: `…d8dd91`. (Ids minted together differ only there.)"""
    return "…" + task_id.hex[-TAIL:]


def parse_id(text: str, *, field: str = "id") -> UUID:
    """A whole id in its canonical 36 characters, upper or lower case; InputError for any other form."""
    if not isinstance(text, str) or not _CANONICAL.fullmatch(text):
        found = ascii(text[:40]) if isinstance(text, str) else f"a {type(text).__name__}"
        raise InputError(
            f"{field} is not a whole task id: {found}; give all 36 characters, as `pgqueue show` prints them",
            field=field,
        )
    return UUID(text)
