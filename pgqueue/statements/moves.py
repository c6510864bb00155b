"""The one builder that writes a status, and what every other statement is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from ..backoff import CAP, FIRST
from ..lifecycle import TERMINAL, Event, Guard, Status, moves_of, source_of
from ..schema import Schema
from .arrays import array

LEVELS: tuple[int, ...] = tuple(range(9, -10, -1))
"""The priorities, best first."""

CLAIM_SIZES: tuple[int, ...] = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""A LIMIT is written as a literal (a bound one costs the plan, as a bound status does), so claims come in these
sizes: few texts, each prepared once."""

JSON_COLUMNS = ("payload", "result", "trigger", "metadata")
"""Fetched as text and decoded row by row: one row that another client wrote must not fail the whole batch."""

INSTANT = sa.DateTime(timezone=True)

_LAST = 2**31 - 2
"""The largest integer to which one can be added."""


def channel(schema: str) -> str:
    """The NOTIFY channel of a schema; at most 63 bytes, since LISTEN truncates longer names without a word."""
    return f"{schema[:48]}_tasks"


def literal(status: Status) -> ColumnElement[str]:
    return sa.literal_column(f"'{status.value}'", sa.Text)


def clock() -> ColumnElement[Any]:
    return sa.func.clock_timestamp(type_=INSTANT)


def backoff_sql(attempts: ColumnElement[int]) -> ColumnElement[Any]:
    """`backoff.backoff_for`, computed by the server; a test compares the two."""
    # Bounded before the power, so that a huge count cannot overflow.
    doublings = sa.func.least(sa.func.greatest(attempts, 1), 20) - 1
    seconds = sa.func.least(CAP.total_seconds(), FIRST.total_seconds() * sa.func.power(2.0, doublings))
    return sa.func.make_interval(0, 0, 0, 0, 0, 0, seconds, type_=sa.Interval)


class Moves:
    """The table, and the events as UPDATEs of it. Methods that take arguments are cached; none does I/O."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.tasks = schema.tasks
        self.events = schema.events
        self.dependencies = schema.dependencies
        t = schema.tasks.c
        self._guards: Mapping[Guard, ColumnElement[bool]] = {
            Guard.CANCEL_REQUESTED: t.cancel_requested,
            Guard.EXHAUSTED: t.attempts >= t.max_attempts,
        }

    def target(self, event: Event) -> ColumnElement[str]:
        """The status that the event leads to, as the locked row decides."""
        *guarded, last = moves_of(event)
        if not guarded:
            return literal(last.target)
        return sa.case(*((self._guards[m.guard], literal(m.target)) for m in guarded), else_=literal(last.target))

    def move(self, event: Event) -> sa.Update:
        """UPDATE that applies an event: status, lease, finished_at, and the source it must be in. Add the rows' ids."""
        moves = moves_of(event)
        target = self.target(event)
        values: dict[str, object] = {"status": target, "updated_at": clock()}
        ends = [m.target in TERMINAL for m in moves]
        if all(ends):
            values["finished_at"] = clock()
        elif any(ends):
            values["finished_at"] = sa.case((target == literal(Status.PENDING), sa.null()), else_=clock())
        elif source_of(event) in TERMINAL:
            values["finished_at"] = sa.null()
        if source_of(event) is Status.RUNNING and event is not Event.REQUEST_CANCEL:
            # lease_token stays until the next claim, so that a settle sent twice recognises its own success.
            values |= {"lease_owner": sa.null(), "lease_expires_at": sa.null()}
        values.update(self._also(event, target))
        statement = sa.update(self.tasks).values(values).where(self._source(event))
        if moves[-1].guard is not Guard.ALWAYS:
            statement = statement.where(sa.or_(*(self._guards[m.guard] for m in moves)))
        return statement

    def _source(self, event: Event) -> ColumnElement[bool]:
        t = self.tasks.c
        source = source_of(event)
        return t.lease_expires_at.is_not(None) if source is Status.RUNNING else t.status == literal(source)

    def _also(self, event: Event, target: ColumnElement[str]) -> Mapping[str, object]:
        """What else an event writes, besides status, lease and finished_at."""
        t = self.tasks.c
        # Bounded, for rows that were written by hand: one that cannot be moved would fail every batch that holds it.
        given_back = {"attempts": sa.func.greatest(t.attempts - 1, 0)}
        goes_on = target == literal(Status.PENDING)
        match event:
            case Event.CLAIM:
                return {
                    "attempts": sa.func.least(t.attempts, _LAST) + 1,
                    "fence": sa.func.least(t.fence, _LAST) + 1,
                    "lease_token": sa.bindparam("token", type_=sa.Uuid),
                    "lease_owner": sa.bindparam("owner", type_=sa.Text),
                    "lease_expires_at": clock() + sa.bindparam("lease", type_=sa.Interval),
                    "started_at": clock(),
                    "progress": 0,
                    "message": sa.null(),
                }
            case Event.COMPLETE:
                return {"progress": 100, "message": sa.null(), "last_error": sa.null()}
            case Event.RELEASE | Event.SNOOZE:
                return dict(given_back)
            case Event.EVICT:
                return given_back | {"lease_token": sa.null()}
            case Event.EXPIRE:
                # One crash says nothing about the task, a second does.
                wait = sa.case(
                    (sa.and_(goes_on, t.attempts > 1), clock() + backoff_sql(t.attempts - 1)), else_=t.not_before
                )
                return {"lease_token": sa.null(), "not_before": wait, "last_error": self._expired()}
            case Event.REQUEST_CANCEL:
                return {"cancel_requested": sa.true()}
            case Event.REVIVE:
                return {
                    "attempts": 0,
                    "not_before": clock(),
                    "cancel_requested": sa.false(),
                    "last_error": sa.null(),
                    "progress": 0,
                    "message": sa.null(),
                }
            case _:
                return {}

    def _expired(self) -> ColumnElement[str]:
        t = self.tasks.c
        return sa.func.format(
            "lease expired: %s stopped renewing (attempt %s of %s)", t.lease_owner, t.attempts, t.max_attempts
        )

    def _ids(self) -> ColumnElement[bool]:
        return self.tasks.c.id == sa.any_(array("ids", sa.Uuid))
