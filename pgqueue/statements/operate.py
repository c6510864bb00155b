"""What people and the reaper do to tasks that they do not hold, and the journal of it."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB

from ..lifecycle import Event, Status
from .arrays import array
from .moves import INSTANT, Moves, clock, literal


class Operating(Moves):
    @functools.lru_cache(maxsize=4)  # noqa: B019
    def lock(self, *, ending: bool) -> sa.Select[Any]:
        """Lock tasks in the order of their ids, FOR UPDATE if they may end, and read what a decision needs."""
        t = self.tasks.c
        return (
            sa.select(t.id, t.status, t.agent, t.dedupe_key, t.attempts, t.fence, t.lease_owner, t.queue, t.action)
            .where(self._ids())
            .order_by(t.id)
            .with_for_update(key_share=not ending)
        )

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def apply(self, event: Event) -> sa.Update:
        """Apply an event to the tasks in `ids`, which the caller has locked."""
        t = self.tasks.c
        return self.move(event).where(self._ids()).returning(t.id, t.status, t.attempts, t.fence, t.queue)

    @functools.cached_property
    def reschedule(self) -> sa.Update:
        """Write when a task that the caller has locked becomes due (if `moved`), and its priority (unless NULL).

        A past time becomes now, as at the enqueue. The priority alone leaves not_before as it is: the task keeps its
        place among those of its new priority, and where that is below the claims' floor their next full look finds it.
        """
        t = self.tasks.c
        moved = sa.bindparam("moved", type_=sa.Boolean)
        due = sa.func.coalesce(
            sa.bindparam("new_not_before", type_=INSTANT), clock() + sa.bindparam("new_delay", type_=sa.Interval)
        )
        return (
            sa.update(self.tasks)
            .values(
                not_before=sa.case((moved, sa.func.greatest(due, clock())), else_=t.not_before),
                priority=sa.func.coalesce(sa.bindparam("new_priority", type_=sa.SmallInteger), t.priority),
                updated_at=clock(),
            )
            .where(t.id == sa.bindparam("task_id", type_=sa.Uuid))
            .returning(t.not_before, t.priority)
        )

    @functools.cached_property
    def expired(self) -> sa.Select[Any]:
        """Lock leases that have run out, longest first; skips those whose holder is writing just now.

        `floor` bounds the index range from below, past dead entries. `settled` keeps the reaper away after the server's
        start: it counts only leases that it could have seen renewed.
        """
        t = self.tasks.c
        return (
            sa.select(t.id, t.lease_owner, t.agent, t.queue, t.lease_expires_at)
            .where(
                t.status == literal(Status.RUNNING),
                t.lease_expires_at.between(sa.bindparam("floor", type_=INSTANT), sa.func.now()),
                sa.func.now() >= sa.func.pg_postmaster_start_time() + sa.bindparam("settled", type_=sa.Interval),
            )
            .order_by(t.lease_expires_at)
            .limit(sa.bindparam("limit", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )

    @functools.cached_property
    def earliest_expiry(self) -> sa.Select[Any]:
        """(seconds until the earliest lease expires, when that is, the server's now); NULLs when nothing runs."""
        t = self.tasks.c
        earliest = (
            sa.select(t.lease_expires_at)
            .where(t.status == literal(Status.RUNNING), t.lease_expires_at >= sa.bindparam("floor", type_=INSTANT))
            .order_by(t.lease_expires_at)
            .limit(sa.literal_column("1"))
            .scalar_subquery()
        )
        wait = sa.cast(sa.func.extract("epoch", earliest - sa.func.clock_timestamp()), sa.Float)
        return sa.select(wait.label("wait"), earliest.label("earliest"), sa.func.now().label("server_now"))

    @functools.cached_property
    def record(self) -> sa.Insert:
        """Append to the journal, one row per position of the arrays."""
        kinds: dict[str, Any] = {
            "task_id": sa.Uuid(),
            "event": sa.Text(),
            "from_status": sa.Text(),
            "to_status": sa.Text(),
            "attempt": sa.Integer(),
            "fence": sa.Integer(),
            "by": sa.Text(),
            "detail": sa.Text(),
            "changes": sa.Text(),
        }
        rows = (
            sa.func.unnest(*(array(f"e_{n}", k) for n, k in kinds.items()))
            .table_valued(*kinds, name="e")
            .render_derived()
        )
        source: dict[str, Any] = {n: rows.c[n] for n in kinds} | {"changes": sa.cast(rows.c.changes, JSONB)}
        return sa.insert(self.events).from_select(list(source), sa.select(*source.values()))
