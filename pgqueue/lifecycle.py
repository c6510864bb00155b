"""The whole machine: what may follow what.

Two rules.

1. Everything that decides a task's next status is in this file. Nobody else names a pair of statuses.
2. This file does not know who asks, nor what a database is.

Theory of operation. An `Event` is something that happens to a task. `MOVES` says, for each event, from which
status it leads where. An event may have several rows: they are tried in order, and the first whose `Guard`
holds is taken, so that "out of attempts" and "cancel requested" are decided by the row as it is at that
moment, under its lock. An event whose rows all fail leaves the task as it was.

`pending` and `running` are *active*. `completed` and `cancelled` are *final*: nothing leads out of them.
`dead` is terminal but kept for a person, who revives or dismisses it. Scheduled, backing off, blocked and
paused are reasons why a pending task is not claimable; they are not statuses.

WARNING: the CHECK constraints, `statements.move` and docs/lifecycle.md are made from this table. A new status
or a renamed one needs a migration; the tests compare all three.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import NamedTuple

__all__ = [
    "ACTIVE",
    "ENDS",
    "FINAL",
    "MOVES",
    "TERMINAL",
    "Event",
    "Guard",
    "Move",
    "Status",
    "can_transition",
    "diagram",
    "moves_of",
    "source_of",
]


class Status(enum.StrEnum):
    """The five statuses, in the order in which every surface shows them."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    DEAD = "dead"
    CANCELLED = "cancelled"


class Event(enum.StrEnum):
    """What can happen to a task."""

    CLAIM = "claim"
    COMPLETE = "complete"
    FAIL = "fail"
    BURY = "bury"
    RELEASE = "release"
    SNOOZE = "snooze"
    EVICT = "evict"
    EXPIRE = "expire"
    CANCEL = "cancel"
    REQUEST_CANCEL = "request_cancel"
    ACKNOWLEDGE = "acknowledge"
    CASCADE = "cascade"
    REVIVE = "revive"
    DISMISS = "dismiss"


class Guard(enum.StrEnum):
    """A condition on the task's own row."""

    ALWAYS = "always"
    CANCEL_REQUESTED = "cancel requested"
    EXHAUSTED = "attempts used up"


class Move(NamedTuple):
    event: Event
    source: Status
    guard: Guard
    target: Status


_E, _S, _G = Event, Status, Guard

MOVES: tuple[Move, ...] = (
    Move(_E.CLAIM, _S.PENDING, _G.ALWAYS, _S.RUNNING),
    # A completion that comes in time wins over a cancel request: the work is done, and says so.
    Move(_E.COMPLETE, _S.RUNNING, _G.ALWAYS, _S.COMPLETED),
    Move(_E.FAIL, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.FAIL, _S.RUNNING, _G.EXHAUSTED, _S.DEAD),
    Move(_E.FAIL, _S.RUNNING, _G.ALWAYS, _S.PENDING),
    Move(_E.BURY, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.BURY, _S.RUNNING, _G.ALWAYS, _S.DEAD),
    Move(_E.RELEASE, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.RELEASE, _S.RUNNING, _G.ALWAYS, _S.PENDING),
    Move(_E.SNOOZE, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.SNOOZE, _S.RUNNING, _G.ALWAYS, _S.PENDING),
    Move(_E.EVICT, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.EVICT, _S.RUNNING, _G.ALWAYS, _S.PENDING),
    # Cancelled before dead: a task that somebody cancelled must not turn up among the dead.
    Move(_E.EXPIRE, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.EXPIRE, _S.RUNNING, _G.EXHAUSTED, _S.DEAD),
    Move(_E.EXPIRE, _S.RUNNING, _G.ALWAYS, _S.PENDING),
    Move(_E.CANCEL, _S.PENDING, _G.ALWAYS, _S.CANCELLED),
    Move(_E.REQUEST_CANCEL, _S.RUNNING, _G.ALWAYS, _S.RUNNING),
    Move(_E.ACKNOWLEDGE, _S.RUNNING, _G.CANCEL_REQUESTED, _S.CANCELLED),
    Move(_E.CASCADE, _S.PENDING, _G.ALWAYS, _S.CANCELLED),
    Move(_E.REVIVE, _S.DEAD, _G.ALWAYS, _S.PENDING),
    Move(_E.DISMISS, _S.DEAD, _G.ALWAYS, _S.CANCELLED),
)

ACTIVE: frozenset[Status] = frozenset({Status.PENDING, Status.RUNNING})
TERMINAL: frozenset[Status] = frozenset(Status) - ACTIVE
FINAL: frozenset[Status] = frozenset(Status) - frozenset(move.source for move in MOVES)

_BY_EVENT: Mapping[Event, tuple[Move, ...]] = {e: tuple(move for move in MOVES if move.event is e) for e in Event}

ENDS: frozenset[Event] = frozenset(move.event for move in MOVES if move.target in TERMINAL)
"""Events that may end a task. Whoever applies one locks the row FOR UPDATE first, so that nobody can hang a
child on a parent that is ending."""


def moves_of(event: Event) -> tuple[Move, ...]:
    """The event's rows, in the order in which their guards are tried; never empty."""
    return _BY_EVENT[event]


def source_of(event: Event) -> Status:
    """The one status that the event leads out of (each event has exactly one)."""
    return _BY_EVENT[event][0].source


def can_transition(source: Status, target: Status) -> bool:
    """Whether some event leads from one status to another. No status leads to itself."""
    return source != target and any(move.source == source and move.target == target for move in MOVES)


def diagram() -> str:
    """The machine as Mermaid text (docs/lifecycle.md holds it; a test compares)."""
    edges: dict[tuple[Status, Status], list[str]] = {}
    for move in MOVES:
        label = move.event.value if move.guard is Guard.ALWAYS else f"{move.event.value} [{move.guard.value}]"
        edges.setdefault((move.source, move.target), []).append(label)
    lines = ["stateDiagram-v2", "    [*] --> pending : enqueue"]
    lines += [f"    {source} --> {target} : {', '.join(labels)}" for (source, target), labels in edges.items()]
    lines += [f"    {status} --> [*]" for status in Status if status in FINAL]
    return "\n".join(lines) + "\n"
