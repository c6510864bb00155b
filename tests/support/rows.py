"""Rows of `tasks` as raw SQL writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import sqlalchemy as sa
from sqlalchemy import Connection

from pgqueue.ids import new_id
from pgqueue.lifecycle import TERMINAL, Status
from pgqueue.schema import schema_for

TASKS = schema_for("pgqueue").tasks
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


def row(status: Status = Status.PENDING, /, **changes: Any) -> dict[str, Any]:
    """A lawful row of that status, with `changes` on top, lawful or not."""
    values: dict[str, Any] = {"id": new_id(), "queue": "default", "action": "noop", "status": status.value}
    values |= {"not_before": LONG_AGO, "created_at": LONG_AGO, "updated_at": LONG_AGO}
    if status is not Status.PENDING:
        values |= {"attempts": 1, "fence": 1, "lease_token": uuid4(), "started_at": LONG_AGO}
    if status is Status.RUNNING:
        values |= {"lease_owner": "holder", "lease_expires_at": LONG_AGO}
    if status in TERMINAL:
        values |= {"finished_at": LONG_AGO}
    return values | changes


def insert(connection: Connection, values: dict[str, Any]) -> UUID:
    connection.execute(sa.insert(TASKS).values(values))
    return UUID(str(values["id"]))


def read(connection: Connection, task_id: UUID) -> Any:
    """The row as it is, a value per column."""
    return connection.execute(sa.select(TASKS).where(TASKS.c.id == task_id)).one()


def exact(connection: Connection, task_id: UUID) -> Any:
    """The row's text and where it lies: equal only if nobody wrote it, not even with the same values."""
    query = sa.text("select t::text, t.xmin::text, t.ctid::text from pgqueue.tasks t where id = :id")
    return tuple(connection.execute(query, {"id": task_id}).one())
