"""What travels between the store and those who call it in batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias
from uuid import UUID

from ..edges import Fate
from ..lifecycle import Event, Status
from ..statements import CLAIM_SIZES
from ..task import Claimed, Lease

Held: TypeAlias = Claimed | Lease
"""What a holder's verbs take."""

LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)

SLACK = timedelta(seconds=2)
"""How far behind the server's now a floor stays: transactions commit a little after they said `now()`."""


class Settlement(NamedTuple):
    """One holder's write, as the settling thread collects them: `detail` is JSON text (COMPLETE) or an error."""

    event: Event
    lease: Lease
    detail: str | None = None
    delay: timedelta | None = None


MetLevel: TypeAlias = tuple[str, int, str]
"""(queue, priority, condition), of tasks whose condition is met: the condition as the server writes a text[]."""

Level: TypeAlias = tuple[str, int] | MetLevel
"""What a claim looks at as one range: (queue, priority) of tasks without a condition, or a MetLevel."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claims:
    """What a claim brought, best first within each queue, and the server's `now()` of that claim."""

    tasks: list[Claimed]
    now: datetime
    levels: Sequence[Level] = ()
    """Where each of `tasks` was found; empty where the claim was not asked to look at conditions."""


@dataclasses.dataclass(frozen=True, slots=True)
class Met:
    """What one walk over the conditions of pending tasks found.

    levels: those that the offers cover, with the time at which the first task of each becomes due. rest: the queues
    whose walk was cut short, each with where to go on. now: the server's.
    """

    levels: Mapping[MetLevel, datetime]
    rest: Mapping[str, tuple[str, int]]
    now: datetime

    @property
    def due(self) -> list[MetLevel]:
        """The levels that have something due."""
        return [level for level, first in self.levels.items() if first <= self.now]


@dataclasses.dataclass(frozen=True, slots=True)
class AgentCursor:
    """Where a search for free agents stands; a value that the searcher keeps between its claims.

    seen_at, seen_agent: the last row of due_agent that was looked at. walked_to: the last agent of the slow walk.
    known: agents that may have something due, in the order in which they turned up.
    """

    seen_at: datetime = LONG_AGO
    seen_agent: str = ""
    walked_to: str = ""
    known: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Reaped:
    """One expired lease: what became of its task, and who had held it."""

    id: UUID
    status: Status
    owner: str
    agent: str | None
    queue: str


@dataclasses.dataclass(frozen=True, slots=True)
class Swept:
    """One edge that the sweep looked at; `parent` is None where its child could not be had, or is gone."""

    child: UUID
    parent: UUID | None
    fate: Fate


def lease_of(held: Held) -> Lease:
    return held.lease if isinstance(held, Claimed) else held


def claim_size(wanted: int) -> int:
    """The largest of CLAIM_SIZES that is not more than what was asked for."""
    return max(size for size in CLAIM_SIZES if size <= max(1, wanted))
