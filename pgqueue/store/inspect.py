"""Look at tasks: one, a page, counts, the journal, and the id that a person means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import Connection

from .. import keys
from ..errors import AmbiguousId, InputError, PayloadError, TaskNotFound
from ..lifecycle import Status
from ..payload import JSON, decode
from ..task import Page, Task, TaskEvent
from .base import Base, no_task, statuses

LOOK_BACK = 20_000
"""Over how many rows a page of a listing looks back at the most."""


class Inspecting(Base):
    def get(self, connection: Connection, task_id: UUID, /) -> Task:
        """The task as it stands. TaskNotFound when it never existed or was pruned."""
        row = connection.execute(self.sql.get, {"id": keys.check_id(task_id)}).mappings().first()
        if row is None:
            raise no_task(task_id)
        return Task.of(row)

    def list_tasks(
        self,
        connection: Connection,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        queue: str | None = None,
        action: str | None = None,
        agent: str | None = None,
        account: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        error_contains: str | None = None,
        limit: int = 50,
        before: UUID | None = None,
    ) -> Page:
        """Tasks that fit all given filters, newest first. `before`: a page's `next`, for the following page.

        Looks back over a bounded number of rows, so that a rare filter does not read the whole history; `Page.looked`
        says over how many.
        """
        keys.check_int(limit, field="limit", low=1, high=10_000)
        t = self.sql.tasks.c
        wanted = self.sql.conditions(
            status=statuses(status),
            queue=queue,
            action=action,
            agent=agent,
            account=account,
            dedupe_key=key,
            since=since,
            error_contains=error_contains,
        )
        window = sa.select(t.id).order_by(t.id.desc())
        if before is not None:
            window = window.where(t.id < before)
        # An agent, a key and the statuses that are rare by nature have an index of their own to look through.
        indexed = agent is not None or key is not None or statuses(status) in (("dead",), ("running",))
        if indexed or not wanted:
            window, look = window.where(*wanted).limit(limit + 1), limit
        else:
            look = max(LOOK_BACK, limit)
            window = window.limit(look)
        looked = window.subquery("looked")
        query = (
            sa.select(*self.sql.task_columns)
            .select_from(self.sql.tasks.join(looked, t.id == looked.c.id))
            .where(*wanted)
            .order_by(t.id.desc())
            .limit(limit + 1)
        )
        tasks = [Task.of(row) for row in connection.execute(query).mappings()]
        if len(tasks) > limit:
            return Page(tasks[:limit], tasks[limit - 1].id, look)
        if indexed or not wanted:
            return Page(tasks, None, len(tasks))
        oldest = sa.select(looked.c.id).order_by(looked.c.id).limit(1).scalar_subquery()
        last, count = connection.execute(sa.select(oldest, sa.func.count()).select_from(looked)).one()
        return Page(tasks, last if count >= look else None, count)

    def count_tasks(
        self,
        connection: Connection,
        *,
        status: Status | str | Sequence[Status | str] | None = None,
        queue: str | None = None,
        action: str | None = None,
        agent: str | None = None,
        account: str | None = None,
        key: str | None = None,
        since: datetime | None = None,
        error_contains: str | None = None,
    ) -> int:
        """How many tasks fit all given filters, exactly. Reads what it counts."""
        wanted = self.sql.conditions(
            status=statuses(status),
            queue=queue,
            action=action,
            agent=agent,
            account=account,
            dedupe_key=key,
            since=since,
            error_contains=error_contains,
        )
        return int(
            connection.execute(sa.select(sa.func.count()).select_from(self.sql.tasks).where(*wanted)).scalar_one()
        )

    def stats(self, connection: Connection) -> dict[str, int]:
        """How many tasks per status: all five, zeros included, in their order, then "total"."""
        found = {row.status: row.n for row in connection.execute(self.sql.stats)}
        counts = {status.value: int(found.get(status.value, 0)) for status in Status}
        return counts | {"total": sum(counts.values())}

    def events(self, connection: Connection, task_id: UUID, /) -> list[TaskEvent]:
        """The task's journal, oldest first; empty when nothing but the ordinary happened."""
        return [
            TaskEvent(
                **{
                    **row,
                    "from_status": None if row["from_status"] is None else Status(row["from_status"]),
                    "to_status": Status(row["to_status"]),
                    "changes": _changes(row["changes"]),
                }
            )
            for row in connection.execute(self.sql.events_of, {"id": keys.check_id(task_id)}).mappings()
        ]

    def find(
        self, connection: Connection, text: str, /, *, statuses: Iterable[Status] | None = None, days: float = 7
    ) -> UUID:
        """The id that a person means: a whole id, a unique prefix, or a tail of at least 6 digits.

        A prefix or tail is looked for first among rows in `statuses` (those that the verb can act on), then among the
        last `days`. Raises TaskNotFound or AmbiguousId, whose text lists the candidates; InputError for what cannot be
        part of an id.
        """
        wanted = text.strip().lstrip("…").lower()
        digits = wanted.replace("-", "")
        if not digits or len(digits) > 32 or set(digits) - set("0123456789abcdef"):
            raise InputError(f"{text!r} is no task id: give the whole id, its start, or its last 6 digits", field="id")
        if len(digits) == 32:
            return self.get(connection, UUID(digits)).id
        if len(digits) < 6:
            raise InputError(f"{text!r} is too short to find a task by: give at least 6 digits", field="id")
        asked = None if statuses is None else frozenset(statuses)
        for among, since in ((asked, None), (None, days)):
            if among is None and since is None:
                continue
            rows = self._candidates(connection, wanted, digits, among, since)
            if len(rows) == 1:
                return UUID(str(rows[0].id))
            if rows:
                raise AmbiguousId(
                    f"{text!r} fits {len(rows)} tasks, nothing was done; name one of: "
                    + ", ".join(f"{r.id} ({r.action}, {r.status})" for r in rows[:10]),
                    matches=[r.id for r in rows],
                )
        raise TaskNotFound(
            f"no task {text!r} among those of the last {days:g} days; see `pgqueue list`, or give the whole id",
            task_id=text,
        )

    def _candidates(
        self, connection: Connection, wanted: str, digits: str, statuses: frozenset[Status] | None, days: float | None
    ) -> list[Any]:
        low = UUID(digits.ljust(32, "0"))
        high = UUID(digits.ljust(32, "f"))
        tail_text = wanted if "-" in wanted else _dashed_tail(digits)
        found = {
            r.id: r for r in connection.execute(self.sql.by_id_text(low=low, high=high, tail=None, statuses=statuses))
        }
        newest = None
        if days is not None:
            ago = int((datetime.now(UTC) - timedelta(days=days)).timestamp() * 1000)
            newest = UUID(int=max(ago, 0) << 80)
        by_tail = self.sql.by_id_text(
            low=newest, high=None if newest is None else UUID(int=2**128 - 1), tail=tail_text, statuses=statuses
        )
        found |= {r.id: r for r in connection.execute(by_tail)}
        return sorted(found.values(), key=lambda r: r.id, reverse=True)


def _dashed_tail(digits: str) -> str:
    """The last digits as they stand in an id's text: 8-4-4-4-12."""
    text = digits[-12:]
    rest = digits[:-12]
    while rest:
        text, rest = f"{rest[-4:]}-{text}", rest[:-4]
    return text


def _changes(text: str | None) -> JSON:
    try:
        return None if text is None else decode(text)
    except PayloadError:  # written by another client: jsonb holds numbers that Python does not read
        return text
