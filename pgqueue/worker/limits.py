"""How long a worker lives on purpose: so many tasks, so much time. Then it finishes what it holds, and ends."""

from __future__ import annotations

import random
from datetime import timedelta
from time import monotonic

__all__ = ["Lifetime"]

_SPREAD = 0.1


class Lifetime:
    """max_tasks, max_lifetime: at the most; None: without end.

    Both are shortened by up to a tenth, by chance, so that workers that started together do not restart together. (A
    max_tasks below 10 is kept exactly.) `tasks` is how many it has started.
    """

    def __init__(self, max_tasks: int | None, max_lifetime: timedelta | None) -> None:
        self._tasks = None if max_tasks is None else max_tasks - random.randint(0, int(max_tasks * _SPREAD))
        spread = random.uniform(1 - _SPREAD, 1)
        self._ends_at = None if max_lifetime is None else monotonic() + max_lifetime.total_seconds() * spread
        self.tasks = 0

    def started(self, tasks: int) -> None:
        """So many more were handed to handlers."""
        self.tasks += tasks

    def room(self, wanted: int) -> int:
        """How many of `wanted` it may still start."""
        if self._ends_at is not None and monotonic() >= self._ends_at:
            return 0
        return wanted if self._tasks is None else min(wanted, self._tasks - self.tasks)

    def pause(self, wanted: float) -> float:
        """How many of `wanted` seconds it may sleep."""
        return wanted if self._ends_at is None else max(0.0, min(wanted, self._ends_at - monotonic()))

    @property
    def over(self) -> str | None:
        """Why no more are started, or None."""
        if self.room(1) > 0:
            return None
        ran_out = self._ends_at is not None and monotonic() >= self._ends_at
        return "max_lifetime has passed" if ran_out else f"{self.tasks} task(s) were started, which is its max_tasks"
