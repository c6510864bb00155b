"""What the journal holds, and what follows from it.

By default it holds what cannot be read off a task's row; in full, every move. `RULES` says what each event does to the
fields that can be replayed, so that a row can be compared with what its events lead to.

Columns of an event. `attempt`: the execution that it is about: at a claim the one that begins, else the last one
before the event, also where it is then given back (release, snooze, evict) or forgotten (revive). `fence`: the row's.
`by`: who holds or held the lease, where a holder or the reaper did it; else who asked. `changes`: an object of columns
and their new values, where the event writes any that no other column of it tells.

Not replayed: `not_before`, whose exact value no event of a backoff holds; texts, progress and payloads, which are not
copied into the journal.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from .lifecycle import Event, Guard, Status, moves_of, source_of

__all__ = [
    "FIELDS",
    "FULL",
    "JOURNALS",
    "RULES",
    "UNKNOWN",
    "Audit",
    "Drift",
    "Entry",
    "Expected",
    "Gap",
    "Line",
    "drift",
    "replay",
]

FULL: Final = "full"
JOURNALS: Final = ("failures", FULL)
"""The settings: what cannot be read off the rows, which is the default; every move."""


class Entry(enum.StrEnum):
    """What can be written about a task that changes no status. The events of `lifecycle` are the others.

    ENQUEUE is written by the full journal alone.
    """

    ENQUEUE = "enqueue"
    GATE = "gate"
    LET_GO = "let_go"
    RESCHEDULE = "reschedule"
    REPLACE = "replace"


FIELDS: Final = ("status", "attempts", "fence", "priority", "max_attempts", "dedupe_key", "cancel_requested")
"""The columns that are replayed; `waiting_on` is compared with the edges besides."""

_CARRIED: Final = ("priority", "max_attempts", "dedupe_key")
"""Those that stand in `changes`."""


class _Unknown(enum.Enum):
    UNKNOWN = "unknown"

    def __repr__(self) -> str:
        return "unknown"


UNKNOWN: Final = _Unknown.UNKNOWN
"""The value of a field that no event has told yet; never drift."""

Value: TypeAlias = str | int | _Unknown | None


class Count(enum.Enum):
    """What an event does to the attempts."""

    MORE = "one more than before"
    SAME = "as before"
    BACK = "one is given back"
    ANEW = "counted from 0 again"


class Rule(NamedTuple):
    """What an event does, besides leading to its `to_status`. requested: cancel_requested afterwards; None: as it was.

    A pending task never has a cancel request, which is why most rules need not say so.
    """

    attempts: Count = Count.SAME
    claims: int = 0
    requested: bool | None = None


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        Event.CLAIM: Rule(Count.MORE, claims=1, requested=False),
        Event.COMPLETE: Rule(),
        Event.FAIL: Rule(),
        Event.BURY: Rule(),
        Event.RELEASE: Rule(Count.BACK),
        Event.SNOOZE: Rule(Count.BACK),
        Event.EVICT: Rule(Count.BACK),
        Event.EXPIRE: Rule(),
        Event.CANCEL: Rule(),
        Event.REQUEST_CANCEL: Rule(requested=True),
        Event.ACKNOWLEDGE: Rule(),
        Event.CASCADE: Rule(),
        Event.REVIVE: Rule(Count.ANEW, requested=False),
        Event.DISMISS: Rule(),
        Entry.GATE: Rule(),
        Entry.LET_GO: Rule(),
        Entry.RESCHEDULE: Rule(),
        Entry.REPLACE: Rule(),
    }
)
"""Every event but ENQUEUE, which says all there is to know."""

_BEFORE: Mapping[Count, int] = {Count.MORE: -1, Count.SAME: 0, Count.BACK: 0, Count.ANEW: 0}


class Line(NamedTuple):
    """An event as the replay reads it."""

    id: int
    event: str
    from_status: str | None
    to_status: str
    attempt: int
    fence: int
    changes: Mapping[str, Any] | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Drift:
    """A field whose value is not the one that the task's events, or its edges, lead to."""

    task_id: UUID
    field: str
    journal: str | int | None
    row: str | int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A place where the journal contradicts itself, or lacks what it must hold. event_id: the event that shows it."""

    task_id: UUID
    event_id: int | None
    why: str


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What a task's events lead to: a value or UNKNOWN per field; and what is wrong with the events: (id, why)."""

    values: Mapping[str, Value]
    gaps: Sequence[tuple[int | None, str]] = ()

    @property
    def known(self) -> list[str]:
        """The fields whose value the events tell."""
        return [field for field, value in self.values.items() if value is not UNKNOWN]


@dataclasses.dataclass(frozen=True, slots=True)
class Audit:
    """What an audit found.

    tasks: how many rows it looked at, with so many `events`. covered: per field, for how many of them the journal knew
    the value. since: from when on the journal is full. next: the id to go on `after`; None when all were looked at.
    """

    drifts: Sequence[Drift]
    gaps: Sequence[Gap]
    tasks: int
    events: int
    covered: Mapping[str, int]
    since: datetime
    next: UUID | None

    @property
    def clean(self) -> bool:
        """Neither drift nor gap."""
        return not self.drifts and not self.gaps

    def __add__(self, later: Audit) -> Audit:
        """Both together, as one that went on where the first ended."""
        return Audit(
            [*self.drifts, *later.drifts],
            [*self.gaps, *later.gaps],
            self.tasks + later.tasks,
            self.events + later.events,
            {field: self.covered[field] + later.covered[field] for field in self.covered},
            later.since,
            later.next,
        )


def replay(lines: Iterable[Line], *, whole: bool) -> Expected:
    """Go through a task's events, oldest first.

    whole: the journal was full before the task was made, so that its first event must be its enqueue. Where an event
    contradicts those before it, that is a gap, and the replay goes on with what the event says.
    """
    state: dict[str, Value] = dict.fromkeys(FIELDS, UNKNOWN)
    gaps: list[tuple[int | None, str]] = []
    first = True
    for line in lines:
        if first and whole and line.event != Entry.ENQUEUE:
            gaps.append((line.id, "the events do not begin with its enqueue"))
        wrong = _wrong(line, state, first=first)
        if wrong:
            gaps.append((line.id, f"{line.event}: {'; '.join(wrong)}"))
        _follow(line, state)
        first = False
    if first and whole:
        gaps.append((None, "it has no events"))
    return Expected(state, gaps)


def _wrong(line: Line, state: Mapping[str, Value], *, first: bool) -> list[str]:
    """How the event contradicts what is known before it."""
    if line.event == Entry.ENQUEUE:
        return [] if first else ["a task is enqueued once"]
    rule = RULES.get(line.event)
    if rule is None:
        return ["this program knows no such event"]
    found = []
    before: dict[str, Value] = {
        "status": line.from_status,
        "attempts": line.attempt + _BEFORE[rule.attempts],
        "fence": line.fence - rule.claims,
    }
    for field, value in before.items():
        if state[field] is not UNKNOWN and state[field] != value:
            found.append(f"{field} was {state[field]} before, not {value}")
    lawful = _lawful(line, state)
    if line.to_status not in lawful:
        found.append(f"leads to {' or '.join(lawful) or 'nothing'}, not {line.to_status}")
    return found


def _lawful(line: Line, state: Mapping[str, Value]) -> list[str]:
    """Where the event may lead: to one status where all that its guards ask for is known."""
    if line.event in frozenset(Entry):
        return [str(line.from_status)]
    event = Event(line.event)
    if line.from_status != source_of(event):
        return []
    found: list[str] = []
    for move in moves_of(event):
        holds = _holds(move.guard, state)
        if holds is not False:
            found.append(move.target.value)
        if holds:
            break
    return found


def _holds(guard: Guard, state: Mapping[str, Value]) -> bool | None:
    """Whether a guard holds; None where that is not known."""
    match guard:
        case Guard.ALWAYS:
            return True
        case Guard.CANCEL_REQUESTED:
            requested = state["cancel_requested"]
            return None if requested is UNKNOWN else bool(requested)
        case Guard.EXHAUSTED:
            attempts, most = state["attempts"], state["max_attempts"]
            return attempts >= most if isinstance(attempts, int) and isinstance(most, int) else None


def _follow(line: Line, state: dict[str, Value]) -> None:
    rule = RULES.get(line.event)
    state["status"], state["fence"] = line.to_status, line.fence
    if line.event != Entry.ENQUEUE and rule is None:
        state.update(attempts=UNKNOWN, cancel_requested=UNKNOWN)
    elif rule is not None and rule.attempts is Count.BACK:
        state["attempts"] = line.attempt - 1
    elif rule is not None and rule.attempts is Count.ANEW:
        state["attempts"] = 0
    else:
        state["attempts"] = line.attempt
    if line.to_status == Status.PENDING:
        state["cancel_requested"] = False
    elif rule is not None and rule.requested is not None:
        state["cancel_requested"] = rule.requested
    elif line.from_status == Status.RUNNING and line.to_status == Status.CANCELLED:
        state["cancel_requested"] = True
    changes = line.changes if isinstance(line.changes, Mapping) else {}
    state.update({field: changes[field] for field in _CARRIED if field in changes})


def drift(task_id: UUID, expected: Expected, row: Mapping[str, Any]) -> list[Drift]:
    """Where the row is not what its events lead to. `row`: a value per field of FIELDS."""
    return [
        Drift(task_id, field, value, row[field])
        for field, value in expected.values.items()
        if not isinstance(value, _Unknown) and value != row[field]
    ]
