"""What travels between the store and those who call it in batches."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, TypeAlias
from uuid import UUID

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


@dataclasses.dataclass(frozen=True, slots=True)
class Claims:
    """What a claim brought, best first within each queue, and the server's `now()` of that claim."""

    tasks: list[Claimed]
    now: datetime


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


def lease_of(held: Held) -> Lease:
    return held.lease if isinstance(held, Claimed) else held


def claim_size(wanted: int) -> int:
    """The largest of CLAIM_SIZES that is not more than what was asked for."""
    return max(size for size in CLAIM_SIZES if size <= max(1, wanted))
