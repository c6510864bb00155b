"""Who works, and what is paused."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, cast, get_args
from uuid import UUID

from sqlalchemy import Connection

from .. import keys
from ..errors import RetryTransaction
from ..fleet import FORGET, STALE, AgentInfo, Pause, PauseKind, WorkerInfo
from .base import Base

RESUMED = "\x01resumed"
"""The notification after a resume: look again at everything. No name of a queue can be like it."""
ASKED = "\x01asked"
"""The notification where the holder of a running task has something to learn: a cancel request, an eviction."""


class Fleet(Base):
    def pause(self, connection: Connection, kind: PauseKind, name: str, /, *, by: str | None = None) -> Pause:
        """Have nobody claim tasks of a queue or an agent until it is resumed; what runs goes on.

        kind: "queue" or "agent"; the name need not be known. Counts for every claim that begins after the commit.
        Returns the pause; one that is there already stays as it is, with its `by` and `since`.
        """
        named = _named(kind, name)
        by = None if by is None else keys.check_name(by, field="by")
        for _ in range(2):
            connection.execute(self.sql.pause, {"new_kind": kind, "new_name": name, "new_by": by})
            row = connection.execute(self.sql.pause_of, named).first()
            if row is not None:
                return _pause(row)
        raise RetryTransaction(f"{kind} {name} is being resumed just now: pause it again")

    def resume(self, connection: Connection, kind: PauseKind, name: str, /) -> bool:
        """Have the tasks of a paused queue or agent claimed again. Returns whether it was paused.

        Workers are told, and look at once.
        """
        resumed = connection.execute(self.sql.resume, _named(kind, name)).first() is not None
        if resumed:
            self._tell(connection, RESUMED)
        return resumed

    def pauses(self, connection: Connection) -> list[Pause]:
        """All queues and agents that are paused: queues first, then by name."""
        return [_pause(row) for row in connection.execute(self.sql.pauses_of)]

    def pause_of(self, connection: Connection, kind: PauseKind, name: str) -> Pause | None:
        """The pause of that queue or agent, if it is paused."""
        row = connection.execute(self.sql.pause_of, _named(kind, name)).first()
        return None if row is None else _pause(row)

    def pauses_mark(self, connection: Connection) -> tuple[int, datetime | None]:
        """A value that changes when a pause comes or goes; for workers that hear no notifications."""
        count, newest = connection.execute(self.sql.pauses_mark).one()
        return int(count), newest

    def workers(self, connection: Connection) -> list[WorkerInfo]:
        """The workers, by name, as each said last (every 15 s).

        A worker that was not seen for 45 s is `stale`, and leaves the list after an hour; one that stops cleanly leaves
        it at once.
        """
        lists = ("queues", "actions", "offers")
        return [
            WorkerInfo(**{**row, **{name: tuple(row[name]) for name in lists}})
            for row in connection.execute(self.sql.workers_of, {"ago": STALE}).mappings()
        ]

    def agents(self, connection: Connection, *, after: str | None = None, limit: int = 100) -> list[AgentInfo]:
        """The agents that have anything pending or running, by name, at most `limit` (1 … 1,000).

        after: the last agent of the page before. Costs a few index probes an agent, whatever the history.
        """
        keys.check_int(limit, field="limit", low=1, high=1000)
        start = "" if after is None else keys.check_name(after, field="after")
        rows = connection.execute(self.sql.agents_of, {"after": start, "limit": limit}).mappings()
        return [AgentInfo(**{**row, "pending": int(row["pending"])}) for row in rows]

    def register(
        self,
        connection: Connection,
        worker_id: UUID,
        *,
        name: str,
        host: str,
        pid: int,
        version: str,
        queues: Sequence[str],
        actions: Sequence[str],
        offers: Sequence[str],
        concurrency: int,
    ) -> None:
        """Say that a worker is there; after the first time only its `seen_at` is written."""
        values: dict[str, Any] = {"w_name": name, "w_host": host, "w_pid": pid, "w_version": version}
        values |= {"w_queues": list(queues), "w_actions": list(actions), "w_offers": list(offers)}
        connection.execute(self.sql.register, {"worker_id": worker_id, "w_concurrency": concurrency, **values})

    def unregister(self, connection: Connection, worker_id: UUID) -> None:
        """Say that it is gone."""
        connection.execute(self.sql.unregister, {"worker_id": worker_id})

    def forget_workers(self, connection: Connection) -> int:
        """Delete the rows of workers that were not seen for long; returns how many."""
        return connection.execute(self.sql.forget_workers, {"ago": FORGET}).rowcount

    def _tell(self, connection: Connection, payload: str) -> None:
        connection.execute(self.sql.tell, {"payload": payload}).all()


def _named(kind: PauseKind, name: str) -> dict[str, str]:
    if kind not in get_args(PauseKind):
        raise keys.refuse("kind", f"must be queue or agent, not {keys.shown(kind)}", 'write "queue" or "agent"')
    return {"of_kind": kind, "of_name": keys.check_name(name, field="name")}


def _pause(row: Any) -> Pause:
    return Pause(cast("PauseKind", row.kind), row.name, row.by, row.since)
