"""Tests wait for moments, bounded; they never take the passing of time for an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 30.0


def eventually(condition: Callable[[], T], timeout: float = PATIENCE) -> T:
    """What `condition` returns once that is true; AssertionError when it never was within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout:g} s; the last answer was {found!r}"
        time.sleep(0.01)
    return found
