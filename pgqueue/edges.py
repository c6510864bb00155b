"""What becomes of an edge when its parent is looked at, and whether edges close a circle."""

from __future__ import annotations

import enum
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from .lifecycle import ACTIVE, FINAL, Status

__all__ = ["Fate", "circle", "fate", "knotted"]

T = TypeVar("T", bound=Hashable)


class Fate(enum.StrEnum):
    """What the sweep does with one edge."""

    WAIT = "wait"
    """The parent is alive: its end will find the edge."""
    LIFT = "lift"
    """The parent has completed."""
    FAIL = "fail"
    """The parent is dead or cancelled: so is the child, unless it runs all the same."""
    LET_GO = "let_go"
    """The parent has not appeared."""
    LATER = "later"
    """Somebody has the parent locked, who may be ending it: look again."""


def fate(parent: Status | None, *, locked: bool) -> Fate:
    """The fate of an edge that is due to be looked at.

    parent: its status; None: there is no such row. locked: whether the looker has the parent's row locked, so that
    nobody ends it before the looker has committed. A final status cannot change any more; a dead parent can.
    """
    if parent is None:
        return Fate.LET_GO
    if not locked and parent not in FINAL:
        return Fate.LATER
    if parent in ACTIVE:
        return Fate.WAIT
    return Fate.LIFT if parent is Status.COMPLETED else Fate.FAIL


def circle(start: T, parents: Mapping[T, Iterable[T]]) -> Sequence[T]:
    """The shortest way from `start` over parents back to itself, `start` first and last; empty where there is none."""
    came_from: dict[T, T] = {}
    level = [start]
    while level:
        above: list[T] = []
        for child in level:
            for parent in parents.get(child, ()):
                if parent == start:
                    path = [child]
                    while path[-1] != start:
                        path.append(came_from[path[-1]])
                    return [*reversed(path), start]
                if parent not in came_from:
                    came_from[parent] = child
                    above.append(parent)
        level = above
    return []


def knotted(parents: Mapping[T, Iterable[T]]) -> set[T]:
    """Those of its keys that are part of a circle, or below one: usually none, found without looking from each."""
    waits_for: dict[T, int] = dict.fromkeys(parents, 0)
    below: dict[T, list[T]] = {}
    for child, of_child in parents.items():
        for parent in of_child:
            if parent in waits_for:
                waits_for[child] += 1
                below.setdefault(parent, []).append(child)
    free = [child for child, count in waits_for.items() if count == 0]
    while free:
        for child in below.get(free.pop(), ()):
            waits_for[child] -= 1
            if waits_for[child] == 0:
                free.append(child)
    return {child for child, count in waits_for.items() if count}
