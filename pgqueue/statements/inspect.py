"""Read tasks: one, a page, counts, events."""

from __future__ import annotations

import functools
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from ..lifecycle import ACTIVE, Status
from .moves import JSON_COLUMNS, Moves, literal

TASK_COLUMNS = (
    "id",
    "queue",
    "action",
    "agent",
    "account",
    "status",
    "priority",
    "attempts",
    "max_attempts",
    "fence",
    "not_before",
    "waiting_on",
    "requires",
    "on_parent_failure",
    "dedupe_key",
    "dedupe_forever",
    "lease_owner",
    "lease_expires_at",
    "cancel_requested",
    "progress",
    "message",
    "last_error",
    "timeout",
    "created_at",
    "updated_at",
    "started_at",
    "finished_at",
)

EVENT_COLUMNS = ("id", "task_id", "at", "event", "from_status", "to_status", "attempt", "fence", "by", "detail")


class Inspecting(Moves):
    @functools.cached_property
    def task_columns(self) -> tuple[ColumnElement[Any], ...]:
        t = self.tasks.c
        return (
            *(t[name] for name in TASK_COLUMNS),
            *(sa.cast(t[name], sa.Text).label(name) for name in JSON_COLUMNS),
        )

    @functools.cached_property
    def get(self) -> sa.Select[Any]:
        return sa.select(*self.task_columns).where(self.tasks.c.id == sa.bindparam("id", type_=sa.Uuid))

    @functools.cached_property
    def events_of(self) -> sa.Select[Any]:
        e = self.events.c
        return (
            sa.select(
                *(e[name] for name in EVENT_COLUMNS),
                sa.cast(e.changes, sa.Text).label("changes"),
            )
            .where(e.task_id == sa.bindparam("id", type_=sa.Uuid))
            .order_by(e.id)
        )

    @functools.cached_property
    def stats(self) -> sa.Select[Any]:
        t = self.tasks.c
        return sa.select(t.status, sa.func.count().label("n")).group_by(t.status)

    def conditions(self, **wanted: Any) -> list[ColumnElement[bool]]:
        """The WHERE of a filtered listing; unset (None) filters are left out."""
        t = self.tasks.c
        clauses: list[ColumnElement[bool]] = []
        statuses = wanted.get("status")
        if statuses is not None:
            clauses.append(sa.or_(*(t.status == literal(Status(s)) for s in statuses)))
        for name in ("queue", "action", "agent", "account", "dedupe_key"):
            if wanted.get(name) is not None:
                clauses.append(t[name] == wanted[name])
        if wanted.get("since") is not None:
            clauses.append(t.created_at >= wanted["since"])
        if wanted.get("error_contains") is not None:
            clauses.append(t.last_error.contains(wanted["error_contains"], autoescape=True))
        return clauses

    def by_id_text(
        self, *, low: UUID | None, high: UUID | None, tail: str | None, statuses: frozenset[Status] | None
    ) -> sa.Select[Any]:
        """Find ids by a range (a prefix) or by their last digits, newest first, at most 20."""
        t = self.tasks.c
        found = sa.select(t.id, t.action, t.status, t.created_at, t.agent)
        if low is not None and high is not None:
            found = found.where(t.id.between(low, high))
        if tail is not None:
            found = found.where(sa.cast(t.id, sa.Text).endswith(tail, autoescape=True))
        if statuses == ACTIVE:
            found = found.where(t.active)
        elif statuses is not None:
            found = found.where(sa.or_(*(t.status == literal(status) for status in sorted(statuses))))
        return found.order_by(t.id.desc()).limit(20)
