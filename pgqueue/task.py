"""The values that travel: a task as it stands, a lease, and a claimed task."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from .lifecycle import ACTIVE, FINAL, Status
from .payload import JSON, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Claimed", "Gated", "Lease", "Page", "Parent", "Renewed", "Settled", "Task", "TaskEvent"]


# The three that a worker makes per task are structs: a frozen dataclass takes ten times as long to make. They hold
# nothing that could hold them, so the garbage collector need not look at them.


class Lease(msgspec.Struct, frozen=True, gc=False):
    """A holder's right to one running task, until `deadline` (the server's clock) unless renewed.

    `token` was minted for the claim; every write of the holder carries it. `fence` counts the task's claims: hand it
    to systems outside Postgres, which then refuse a smaller one.
    """

    task_id: UUID
    token: UUID
    fence: int
    agent: str | None
    queue: str
    deadline: datetime


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A task that this caller holds, with its lease. `attempt` counts from 1 and includes this execution."""

    lease: Lease
    action: str
    account: str | None
    priority: int
    attempt: int
    max_attempts: int
    not_before: datetime
    timeout: timedelta | None
    created_at: datetime
    payload_text: str | None
    metadata_text: str | None

    def __repr__(self) -> str:
        # A struct's own would print the payload, into whatever log or traceback it stands in.
        return f"Claimed(action={self.action!r}, attempt={self.attempt}, lease={self.lease!r})"

    @property
    def id(self) -> UUID:
        return self.lease.task_id

    @property
    def queue(self) -> str:
        return self.lease.queue

    @property
    def agent(self) -> str | None:
        return self.lease.agent

    @property
    def fence(self) -> int:
        return self.lease.fence

    @property
    def payload(self) -> JSON:
        """The payload, decoded at each access; PayloadError where another client wrote what Python cannot read."""
        return None if self.payload_text is None else decode(self.payload_text)

    @property
    def metadata(self) -> JSON:
        return None if self.metadata_text is None else decode(self.metadata_text)


class Settled(msgspec.Struct, frozen=True, gc=False):
    """What a task became by a holder's write."""

    id: UUID
    status: Status
    attempts: int


@dataclasses.dataclass(frozen=True, slots=True)
class Renewed:
    """A lease that was extended, and whether somebody asked for the task's cancellation meanwhile."""

    id: UUID
    deadline: datetime
    cancel_requested: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A row as it was read: field names are column names."""

    id: UUID
    queue: str
    action: str
    agent: str | None
    account: str | None
    status: Status
    priority: int
    attempts: int
    max_attempts: int
    fence: int
    not_before: datetime
    waiting_on: int
    requires: tuple[str, ...]
    on_parent_failure: str
    dedupe_key: str | None
    dedupe_forever: bool
    lease_owner: str | None
    lease_expires_at: datetime | None
    cancel_requested: bool
    progress: int
    message: str | None
    last_error: str | None
    timeout: timedelta | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    payload_text: str | None = dataclasses.field(repr=False)
    result_text: str | None = dataclasses.field(repr=False)
    trigger_text: str | None = dataclasses.field(repr=False)
    metadata_text: str | None = dataclasses.field(repr=False)

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> Task:
        """From a row of `Statements.task_columns`."""
        values = dict(row)
        for name in ("payload", "result", "trigger", "metadata"):
            values[f"{name}_text"] = values.pop(name)
        values["status"] = Status(values["status"])
        values["requires"] = tuple(values["requires"])
        return cls(**values)

    @property
    def is_active(self) -> bool:
        return self.status in ACTIVE

    @property
    def is_final(self) -> bool:
        return self.status in FINAL

    @property
    def payload(self) -> JSON:
        """Decoded at each access; PayloadError where another client wrote what Python cannot read. So are the next."""
        return None if self.payload_text is None else decode(self.payload_text)

    @property
    def result(self) -> JSON:
        return None if self.result_text is None else decode(self.result_text)

    @property
    def trigger(self) -> JSON:
        return None if self.trigger_text is None else decode(self.trigger_text)

    @property
    def metadata(self) -> JSON:
        return None if self.metadata_text is None else decode(self.metadata_text)


@dataclasses.dataclass(frozen=True, slots=True)
class Gated:
    """What `set_gate` found. True in a condition only where the gates were set: the task was, and is, pending.

    status: what the task is: RUNNING means that it runs right now, behind no gate; None, that there is none of that id.
    """

    id: UUID
    status: Status | None

    def __bool__(self) -> bool:
        return self.status is Status.PENDING


@dataclasses.dataclass(frozen=True, slots=True)
class Parent:
    """A task that another depends on. status None: it was pruned, or never appeared, and the rest is not known.

    lifted_at: since when it holds the other back no more; None: it does. look_at: when the sweep looks at that, where
    it has to; for a parent that is not there, when the other is let go.
    """

    id: UUID
    action: str | None
    status: Status | None
    result_text: str | None = dataclasses.field(repr=False)
    last_error: str | None
    lifted_at: datetime | None = None
    look_at: datetime | None = None

    @property
    def result(self) -> JSON:
        """What its handler returned, decoded at each access."""
        return None if self.result_text is None else decode(self.result_text)


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Tasks, newest first. `next` is the id to pass as `before` for the following page; None at the end.

    A filter that fits few rows looks back over a bounded number of them: then `tasks` may be short, even empty,
    while `next` is not None. `looked` says over how many rows this page looked back.
    """

    tasks: Sequence[Task]
    next: UUID | None
    looked: int

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


@dataclasses.dataclass(frozen=True, slots=True)
class TaskEvent:
    """One line of a task's journal; `id` grows with time within a task.

    attempt: the execution that it is about. changes: an object of columns and their new values, where the event wrote
    any that no other field tells.
    """

    id: int
    task_id: UUID
    at: datetime
    event: str
    from_status: Status | None
    to_status: Status
    attempt: int
    fence: int
    by: str | None
    detail: str | None
    changes: JSON = None


@dataclasses.dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune deleted, or what a dry run would have deleted.

    tasks: how many, with so many `events` of their journals and `edges` to their parents. oldest, newest: when the
    first and the last of them had finished; None where there were none. more: whether there may be more to prune now.
    """

    tasks: int = 0
    events: int = 0
    edges: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None
    more: bool = False

    def __add__(self, other: Pruned) -> Pruned:
        """Both together; whether there is more is for the later one to say."""
        oldest = [one.oldest for one in (self, other) if one.oldest is not None]
        newest = [one.newest for one in (self, other) if one.newest is not None]
        return Pruned(
            self.tasks + other.tasks,
            self.events + other.events,
            self.edges + other.edges,
            min(oldest, default=None),
            max(newest, default=None),
            other.more,
        )
