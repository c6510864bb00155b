"""The values that say who works, and what is paused: workers, agents, pauses."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import Literal, TypeAlias
from uuid import UUID

__all__ = ["AgentInfo", "Pause", "PauseKind", "WorkerInfo"]

PauseKind: TypeAlias = Literal["queue", "agent"]

BEAT = timedelta(seconds=15)
"""How often a worker says that it is there."""
STALE = 3 * BEAT
"""After how long without that it counts as gone."""
FORGET = timedelta(hours=1)
"""After how long its row is deleted."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """A queue or an agent whose tasks nobody claims; `since` is the server's clock, `by` who asked."""

    kind: PauseKind
    name: str
    by: str | None
    since: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A worker, as it said last at `seen_at`. stale: that was so long ago that it is probably gone."""

    id: UUID
    name: str
    host: str
    pid: int
    version: str
    queues: tuple[str, ...]
    actions: tuple[str, ...]
    offers: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    stale: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class AgentInfo:
    """An agent with something pending or running.

    pending: how many tasks, counted up to 1,000 a queue. running: the id of the task that runs, with its action, its
    holder and when it began. paused_at: since when the agent is paused; None: it is not.
    """

    agent: str
    pending: int
    running: UUID | None = None
    action: str | None = None
    owner: str | None = None
    started_at: datetime | None = None
    paused_at: datetime | None = None
