"""From where to look in each (queue, priority), so that dead entries are not walked again at every claim.

While some transaction holds an old snapshot, vacuum keeps the index entries of everything claimed since, and a plain
claim walks over all of them: 10,400/s fell to 5,200/s within 15 s. A lower bound on not_before, kept a little behind
what was claimed last, stays flat.

A floor is one worker's hint, and it may hide a row. Five ways, and what catches each: a level that was not looked at
(its floor does not move); a transaction that commits late (the slack, then the next full look); a row that became due
with an old time (it is written with now, and else the full look); a row that somebody had locked (the full look); a
clock that stepped back (the full look). Full looks come at least every max(1 s, 20 times what the last one cost), never
more than 60 s apart, and at once when a floored claim came back short and the last full look was cheap. A row found
below the floor pulls it back.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TypeAlias

from ..statements import LEVELS
from ..store import SLACK, Claims

__all__ = ["Floors"]

Level: TypeAlias = tuple[str, int]
"""(queue, priority)"""

_EVERY, _TIMES_COST, _AT_MOST = 1.0, 20.0, 60.0
_CHEAP = 0.005


class Floors:
    """The floors of one worker. Does no I/O; `now` is its monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._floors: dict[Level, datetime] = {}
        self._whole_at: dict[Level, float] = {}
        self._cost = 0.0

    def bounds(self, queues: Sequence[str], now: float) -> dict[Level, datetime]:
        """The floors for a claim at `now`; a level that is missing is looked at whole."""
        return {
            level: floor
            for queue in queues
            for priority in LEVELS
            if (floor := self._floors.get(level := (queue, priority))) is not None
            and now < self._whole_at.get(level, 0.0)
        }

    def learn(
        self,
        queues: Sequence[str],
        claims: Claims,
        *,
        size: int,
        bounds: Mapping[Level, datetime],
        cost: float,
        now: float,
    ) -> None:
        """From what a claim of `size` brought, in the order of `queues`; `cost`: its seconds, `bounds`: its floors."""
        lowest: dict[Level, datetime] = {}
        for task in claims.tasks:
            lowest.setdefault((task.lease.queue, task.priority), task.not_before)
        short = len(claims.tasks) < size
        last = None if short else (claims.tasks[-1].lease.queue, claims.tasks[-1].priority)
        for level in itertools.product(queues, LEVELS):
            floor = lowest.get(level, claims.now) - SLACK
            if level in bounds:
                self._floors[level] = max(bounds[level], floor)
                if short and self._cost < _CHEAP:
                    self._whole_at[level] = 0.0
            else:
                # Whatever it was before: a row found below pulls it back.
                self._floors[level] = floor
                self._whole_at[level] = now + min(_AT_MOST, max(_EVERY, _TIMES_COST * cost))
                self._cost = cost
            if level == last:
                # What comes after was not looked at.
                break

    def look_whole(self, queue: str) -> None:
        """Something came back to this queue with its old place in the line: look below the floors next time."""
        for priority in LEVELS:
            self._whole_at[queue, priority] = 0.0
