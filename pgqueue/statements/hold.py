"""What the holder of a lease writes, fenced by its token."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..lifecycle import ENDS, Event, Status
from .arrays import array
from .moves import Moves, backoff_sql, clock, literal


class Holding(Moves):
    @functools.lru_cache(maxsize=64)  # noqa: B019
    def settle(self, event: Event, *, skip_locked: bool) -> sa.Select[Any] | sa.Update:
        """Apply a holder's event to the leases in `ids` and `tokens` (arrays of one length), with their `details`.

        `details`: COMPLETE: the results as JSON text; FAIL, BURY: the errors; else ignored. `delays`: FAIL: instead of
        the backoff; SNOOZE: from now. Rows are locked in the order of their ids before any is written, FOR UPDATE
        where the event may end a task. Returns (id, status, attempts, fence) of those that were moved.
        """
        t = self.tasks.c
        given = (
            sa.func.unnest(
                array("ids", sa.Uuid),
                array("tokens", sa.Uuid),
                array("details", sa.Text),
                array("delays", sa.Interval),
            )
            .table_valued("id", "token", "detail", "delay", name="given")
            .render_derived()
        )
        mine = (
            sa.select(t.id, given.c.detail, given.c.delay, t.lease_owner)
            .select_from(self.tasks.join(given, t.id == given.c.id))
            .where(t.lease_token == given.c.token, t.lease_expires_at.is_not(None))
            .order_by(t.id)
            .with_for_update(of=self.tasks, skip_locked=skip_locked, key_share=event not in ENDS)
            .cte("mine")
        )
        moved = self.move(event).where(t.id == mine.c.id)
        goes_on = self.target(event) == literal(Status.PENDING)
        match event:
            case Event.COMPLETE:
                moved = moved.values(result=sa.cast(mine.c.detail, JSONB))
            case Event.FAIL:
                wait = sa.func.coalesce(mine.c.delay, backoff_sql(t.attempts))
                moved = moved.values(
                    last_error=mine.c.detail, not_before=sa.case((goes_on, clock() + wait), else_=t.not_before)
                )
            case Event.BURY:
                moved = moved.values(last_error=mine.c.detail)
            case Event.SNOOZE:
                moved = moved.values(not_before=sa.case((goes_on, clock() + mine.c.delay), else_=t.not_before))
            case Event.RELEASE | Event.ACKNOWLEDGE:
                pass
            case _:
                raise AssertionError(f"{event} is not a holder's")
        return moved.returning(t.id, t.status, t.attempts, t.fence, mine.c.lease_owner.label("owner"))

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def renew(self, *, skip_locked: bool) -> sa.Update:
        """Extend leases; returns (id, lease_expires_at, cancel_requested) of those still held."""
        t = self.tasks.c
        mine = self._held(skip_locked=skip_locked)
        return (
            sa.update(self.tasks)
            .values(lease_expires_at=clock() + sa.bindparam("lease", type_=sa.Interval), updated_at=clock())
            .where(t.id == mine.c.id)
            .returning(t.id, t.lease_expires_at, t.cancel_requested)
        )

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def report(self, *, skip_locked: bool) -> sa.Update:
        """Write progress and message of held tasks."""
        t = self.tasks.c
        given = (
            sa.func.unnest(
                array("ids", sa.Uuid),
                array("percents", sa.SmallInteger),
                array("messages", sa.Text),
            )
            .table_valued("id", "percent", "message", name="report")
            .render_derived()
        )
        mine = self._held(skip_locked=skip_locked)
        return (
            sa.update(self.tasks)
            .values(progress=given.c.percent, message=sa.func.coalesce(given.c.message, t.message), updated_at=clock())
            .where(t.id == mine.c.id, given.c.id == mine.c.id)
            .returning(t.id, t.lease_expires_at, t.cancel_requested)
        )

    def _held(self, *, skip_locked: bool) -> Any:
        t = self.tasks.c
        given = (
            sa.func.unnest(
                array("ids", sa.Uuid),
                array("tokens", sa.Uuid),
            )
            .table_valued("id", "token", name="given")
            .render_derived()
        )
        return (
            sa.select(t.id)
            .select_from(self.tasks.join(given, t.id == given.c.id))
            .where(t.lease_token == given.c.token, t.lease_expires_at.is_not(None))
            .order_by(t.id)
            .with_for_update(of=self.tasks, key_share=True, skip_locked=skip_locked)
            .cte("mine")
        )

    @functools.cached_property
    def holders(self) -> sa.Select[Any]:
        """How the tasks in `ids` stand, read without a lock: the answer to "why did my write change nothing?"."""
        t = self.tasks.c
        return sa.select(
            t.id,
            t.status,
            t.lease_token,
            t.lease_owner,
            t.lease_expires_at,
            t.started_at,
            t.updated_at,
            t.cancel_requested,
            t.attempts,
        ).where(self._ids())
