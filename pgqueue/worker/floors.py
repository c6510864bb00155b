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

Tasks whose condition is met have levels of their own, (queue, priority, condition), with floors like the others. Which
there are is a hint too, `Conditions`, kept by the same rule, since to ask is a walk that meets dead entries as well;
but after a claim that came back short it is asked again as soon as 20 times what the last walk cost is over.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from ..statements import LEVELS
from ..store import SLACK, Claims, Level, Met, MetLevel

__all__ = ["Conditions", "Floors"]

_EVERY, _TIMES_COST, _AT_MOST = 1.0, 20.0, 60.0
_CHEAP = 0.005


class Floors:
    """The floors of one worker. Does no I/O; `now` is its monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._floors: dict[Level, datetime] = {}
        self._whole_at: dict[Level, float] = {}
        self._cost = 0.0

    def bounds(self, queues: Sequence[str], now: float, *, met: Sequence[MetLevel] = ()) -> dict[Level, datetime]:
        """The floors for a claim at `now`; a level that is missing is looked at whole."""
        levels: Iterable[Level] = itertools.chain(itertools.product(queues, LEVELS), met)
        return {
            level: floor
            for level in levels
            if (floor := self._floors.get(level)) is not None and now < self._whole_at.get(level, 0.0)
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
        met: Sequence[MetLevel] = (),
    ) -> None:
        """From what a claim of `size` brought, in the order of `queues`; `cost`: its seconds, `bounds`: its floors.

        met: the levels with a condition that it looked at; the claim went through those of one queue and priority in
        an order that is not known here.
        """
        lowest: dict[Level, datetime] = {}
        levels = claims.levels or [(task.lease.queue, task.priority) for task in claims.tasks]
        for level, task in zip(levels, claims.tasks, strict=True):
            lowest.setdefault(level, task.not_before)
        beside: dict[tuple[str, int], list[MetLevel]] = {}
        for met_level in met:
            beside.setdefault(met_level[:2], []).append(met_level)
        short = len(claims.tasks) < size
        last = None if short else (claims.tasks[-1].lease.queue, claims.tasks[-1].priority)
        for turn in itertools.product(queues, LEVELS):
            together: list[Level] = [turn, *beside.get(turn, ())]
            # Where the claim was full, only those of the last that brought something were surely looked at.
            looked_at = [level for level in together if turn != last or level in lowest]
            self._learn(looked_at, lowest, claims.now, short=short, bounds=bounds, cost=cost, now=now)
            if turn == last:
                # What comes after was not looked at.
                break

    def _learn(
        self,
        levels: Sequence[Level],
        lowest: Mapping[Level, datetime],
        server_now: datetime,
        *,
        short: bool,
        bounds: Mapping[Level, datetime],
        cost: float,
        now: float,
    ) -> None:
        for level in levels:
            floor = lowest.get(level, server_now) - SLACK
            if level in bounds:
                self._floors[level] = max(bounds[level], floor)
                if short and self._cost < _CHEAP:
                    self._whole_at[level] = 0.0
            else:
                # Whatever it was before: a row found below pulls it back.
                self._floors[level] = floor
                self._whole_at[level] = now + min(_AT_MOST, max(_EVERY, _TIMES_COST * cost))
                self._cost = cost

    def keep(self, met: Sequence[MetLevel]) -> None:
        """Forget the levels with a condition that are not among these."""
        kept = set(met)
        for level in list(self._floors):
            if len(level) == 3 and level not in kept:
                del self._floors[level]
                self._whole_at.pop(level, None)

    def look_whole(self, queue: str) -> None:
        """Something came back to this queue with its old place in the line: look below the floors next time.

        Called from other threads.
        """
        for level in (*itertools.product((queue,), LEVELS), *(each for each in list(self._floors) if each[0] == queue)):
            self._whole_at[level] = 0.0


class Conditions:
    """Which conditions pending tasks have that this worker's offers cover, as it saw last. Does no I/O.

    A walk may be cut: the next one goes on where it ended, and what it found takes the place of what was known.
    """

    def __init__(self) -> None:
        self.met: list[MetLevel] = []
        self.after: Mapping[str, tuple[str, int]] = {}
        self._look_at = 0.0
        self._soonest = 0.0

    def stale(self, now: float) -> bool:
        """Whether to walk at `now`, before the claim."""
        return now >= self._look_at

    def learn(self, found: Met, *, cost: float, now: float) -> None:
        """From one walk over every queue, which took `cost` seconds."""
        self.met = list(found.levels)
        self.after = found.rest
        self._look_at = now + min(_AT_MOST, max(_EVERY, _TIMES_COST * cost))
        self._soonest = now if cost < _CHEAP else min(self._look_at, now + _TIMES_COST * cost)
        if found.rest and found.due:
            # There is work in what it found, and more where it was cut.
            self._look_at = self._soonest = now

    def came_short(self) -> None:
        """A claim brought less than it was asked for: there may be a condition that is not known yet."""
        self._look_at = min(self._look_at, self._soonest)

    def look(self) -> None:
        """Walk before the next claim, whatever it costs. Called from other threads."""
        self._look_at = 0.0
