"""The tables, as SQLAlchemy values. Migrations repeat this as literal DDL; a test holds the two together.

Names of statuses come from `lifecycle`; the CHECKs below make hand-written SQL unable to leave a row that
contradicts itself. One `Schema` per schema name; building one does no I/O.
"""

from __future__ import annotations

import dataclasses
import functools

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from .config import Limits
from .lifecycle import TERMINAL, Status

__all__ = ["REVISION", "VERSION_TABLE", "Schema", "schema_for"]

REVISION = "0002"
"""The revision that this program is written for; equal to the newest file in alembic/versions."""

VERSION_TABLE = "schema_version"
"""Alembic's bookkeeping, in our schema, so that it never meets the application's own."""


def _quoted(values: list[str]) -> str:
    return ", ".join(f"'{value}'" for value in values)


_STATUSES = _quoted([status.value for status in Status])
_TERMINAL = _quoted([status.value for status in Status if status in TERMINAL])
_INSTANT = "'1970-01-01 00:00:00+00' and '9999-01-01 00:00:00+00'"
_NAMES = ("queue", "action", "agent", "account", "dedupe_key", "lease_owner")
_INSTANTS = ("not_before", "created_at", "updated_at", "started_at", "finished_at", "lease_expires_at")

CHECKS: dict[str, str] = {
    "status_known": f"status in ({_STATUSES})",
    "leased_while_running": "(status = 'running') = (lease_expires_at is not null)"
    " and (status = 'running') = (lease_owner is not null)"
    " and (status <> 'running' or lease_token is not null)",
    "finished_when_terminal": f"(status in ({_TERMINAL})) = (finished_at is not null)",
    "no_cancel_request_on_pending": "not (cancel_requested and status = 'pending')",
    "waiting_on_counts": "waiting_on >= 0 and (waiting_on = 0 or status in ('pending', 'cancelled'))",
    "attempts_within_fence": "attempts between 0 and fence",
    "max_attempts_range": f"max_attempts between {Limits.MAX_ATTEMPTS[0]} and {Limits.MAX_ATTEMPTS[1]}",
    "priority_range": f"priority between {Limits.PRIORITY[0]} and {Limits.PRIORITY[1]}",
    "progress_range": "progress between 0 and 100",
    "on_parent_failure_known": "on_parent_failure in ('cancel', 'run')",
    "forever_needs_a_key": "dedupe_key is not null or not dedupe_forever",
    # Python has no word for an interval of a million years, nor for infinity.
    "timeout_positive": "timeout > interval '0' and timeout < interval '4000 days'",
    # One expression for six columns: CHECKs run again at every update of the row, and a regular expression each
    # would be the dearest part of it.
    "names_printable": "("
    + " || ".join(name if name in ("queue", "action") else f"coalesce({name}, '')" for name in _NAMES)
    + r") !~ '[\x01-\x1f\x7f]'",
    "names_length": " and ".join(f"octet_length({name}) between 1 and {Limits.NAME_BYTES}" for name in _NAMES),
    # Beyond these years Python cannot read the row back, and one such row would fail every batch that holds it.
    "instants_readable": " and ".join(f"{name} between {_INSTANT}" for name in _INSTANTS),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Schema:
    """The tables of one schema name."""

    name: str
    metadata: sa.MetaData
    tasks: sa.Table
    dependencies: sa.Table
    events: sa.Table
    workers: sa.Table
    pauses: sa.Table
    meta: sa.Table


def _instant(name: str, *, default: bool = False, nullable: bool = True) -> sa.Column[object]:
    return sa.Column(
        name,
        sa.DateTime(timezone=True),
        nullable=nullable and not default,
        server_default=sa.text("clock_timestamp()") if default else None,
    )


@functools.cache
def schema_for(name: str = "pgqueue") -> Schema:
    """The tables under that schema name; the same object for the same name."""
    metadata = sa.MetaData(schema=name)
    text, integer, small = sa.Text, sa.Integer, sa.SmallInteger
    tasks = sa.Table(
        "tasks",
        metadata,
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("queue", text, nullable=False),
        sa.Column("action", text, nullable=False),
        sa.Column("agent", text),
        sa.Column("account", text),
        sa.Column("status", text, nullable=False, server_default=sa.text("'pending'")),
        sa.Column(
            "active",
            sa.Boolean,
            sa.Computed("status in ('pending', 'running')", persisted=True),
            nullable=False,
        ),
        sa.Column("priority", small, nullable=False, server_default=sa.text("0")),
        sa.Column("payload", JSONB),
        sa.Column("result", JSONB),
        sa.Column("attempts", integer, nullable=False, server_default=sa.text("0")),
        sa.Column("max_attempts", integer, nullable=False, server_default=sa.text("3")),
        sa.Column("fence", integer, nullable=False, server_default=sa.text("0")),
        _instant("not_before", default=True),
        sa.Column("waiting_on", integer, nullable=False, server_default=sa.text("0")),
        # In the predicates instead of waiting_on, so that counting down an edge can stay a HOT update.
        sa.Column("blocked", sa.Boolean, sa.Computed("waiting_on > 0", persisted=True), nullable=False),
        sa.Column("requires", sa.ARRAY(text), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("on_parent_failure", text, nullable=False, server_default=sa.text("'cancel'")),
        sa.Column("dedupe_key", text),
        sa.Column("dedupe_forever", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("lease_token", sa.Uuid),
        sa.Column("lease_owner", text),
        _instant("lease_expires_at"),
        sa.Column("cancel_requested", sa.Boolean, nullable=False, server_default=sa.text("false")),
        sa.Column("progress", small, nullable=False, server_default=sa.text("0")),
        sa.Column("message", text),
        sa.Column("last_error", text),
        sa.Column("timeout", sa.Interval),
        sa.Column("trigger", JSONB),
        sa.Column("metadata", JSONB),
        _instant("created_at", default=True),
        _instant("updated_at", default=True),
        _instant("started_at"),
        _instant("finished_at"),
        *(sa.CheckConstraint(sa.text(condition), name=f"tasks_{check}") for check, condition in CHECKS.items()),
    )
    _task_indexes(tasks)
    dependencies = sa.Table(
        "task_dependencies",
        metadata,
        sa.Column("child_id", sa.Uuid, primary_key=True),
        sa.Column("parent_id", sa.Uuid, primary_key=True),
        _instant("look_at"),
        _instant("lifted_at"),
        sa.CheckConstraint("child_id <> parent_id", name="task_dependencies_no_self"),
    )
    sa.Index("task_dependencies_parent", dependencies.c.parent_id, postgresql_where=sa.text("lifted_at is null"))
    sa.Index("task_dependencies_look_at", dependencies.c.look_at, postgresql_where=sa.text("look_at is not null"))
    events = sa.Table(
        "task_events",
        metadata,
        sa.Column("id", sa.BigInteger, sa.Identity(always=True), primary_key=True),
        sa.Column("task_id", sa.Uuid, nullable=False),
        _instant("at", default=True),
        sa.Column("event", text, nullable=False),
        sa.Column("from_status", text),
        sa.Column("to_status", text, nullable=False),
        sa.Column("attempt", integer, nullable=False, server_default=sa.text("0")),
        sa.Column("fence", integer, nullable=False, server_default=sa.text("0")),
        sa.Column("by", text),
        sa.Column("detail", text),
        sa.Column("changes", JSONB),
    )
    sa.Index("task_events_task", events.c.task_id, events.c.id)
    workers = sa.Table(
        "workers",
        metadata,
        sa.Column("id", sa.Uuid, primary_key=True),
        sa.Column("name", text, nullable=False),
        sa.Column("host", text, nullable=False),
        sa.Column("pid", integer, nullable=False),
        sa.Column("version", text, nullable=False),
        sa.Column("queues", sa.ARRAY(text), nullable=False),
        sa.Column("actions", sa.ARRAY(text), nullable=False),
        sa.Column("offers", sa.ARRAY(text), nullable=False, server_default=sa.text("'{}'")),
        sa.Column("concurrency", integer, nullable=False),
        _instant("started_at", default=True),
        _instant("seen_at", default=True),
    )
    pauses = sa.Table(
        "pauses",
        metadata,
        sa.Column("kind", text, primary_key=True),
        sa.Column("name", text, primary_key=True),
        sa.Column("by", text),
        _instant("since", default=True),
        sa.CheckConstraint("kind in ('queue', 'agent')", name="pauses_kind_known"),
    )
    meta = sa.Table(
        "meta",
        metadata,
        sa.Column("single_row", sa.Boolean, primary_key=True, server_default=sa.text("true")),
        sa.Column("oldest_program", text, nullable=False),
        sa.Column("journal", text, nullable=False, server_default=sa.text("'failures'")),
        sa.Column("orphan_grace", sa.Interval, nullable=False, server_default=sa.text("interval '5 minutes'")),
        _instant("full_since"),
        sa.CheckConstraint("single_row", name="meta_one_row"),
        sa.CheckConstraint("journal in ('failures', 'full')", name="meta_journal_known"),
        sa.CheckConstraint("orphan_grace >= interval '0'", name="meta_orphan_grace_positive"),
    )
    return Schema(name, metadata, tasks, dependencies, events, workers, pauses, meta)


def _task_indexes(tasks: sa.Table) -> None:
    """Their predicates are the design: an entry is paid only when a row enters one."""
    c = tasks.c

    def index(name: str, *columns: object, where: str, **options: object) -> None:
        sa.Index(name, *columns, postgresql_where=sa.text(where), **options)  # type: ignore[arg-type]

    due = "status = 'pending' and agent is null and not blocked and requires = '{}'"
    due_agent = "status = 'pending' and agent is not null and not blocked"
    index("uniq_running_per_agent", c.agent, where="status = 'running' and agent is not null", unique=True)
    index("by_agent", c.agent, c.id.desc(), where="agent is not null")
    index("dedupe_history", c.agent, c.dedupe_key, c.id.desc(), where="dedupe_key is not null")
    index(
        "uniq_active_dedupe",
        c.agent,
        c.dedupe_key,
        where="active and dedupe_key is not null",
        unique=True,
        postgresql_nulls_not_distinct=True,
    )
    index(
        "uniq_forever_dedupe",
        c.agent,
        c.dedupe_key,
        where="dedupe_forever and dedupe_key is not null",
        unique=True,
        postgresql_nulls_not_distinct=True,
    )
    index("claim_due", c.queue, c.priority, c.not_before, c.id, where=due)
    index("claim_agent", c.queue, c.agent, c.priority.desc(), c.not_before, c.id, where=due_agent)
    index("due_agent", c.queue, c.not_before, c.agent, where=due_agent)
    index(
        "claim_conditional",
        c.queue,
        c.requires,
        c.priority,
        c.not_before,
        c.id,
        where="status = 'pending' and agent is null and not blocked and requires <> '{}'",
    )
    index("running", c.lease_expires_at, where="status = 'running'")
    index("blocked", c.id, where="status = 'pending' and blocked")
    index("blocked_agent", c.agent, c.action, where="status = 'pending' and blocked and agent is not null")
    index("dead", c.id.desc(), where="status = 'dead'")
    index("prunable", c.finished_at, where="status in ('completed', 'cancelled') and not dedupe_forever")
