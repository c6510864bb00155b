"""What people and the reaper do to tasks that they do not hold, and the journal of it."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa

from ..lifecycle import Event, Status
from .arrays import array
from .moves import INSTANT, Moves, literal


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
        }
        rows = (
            sa.func.unnest(*(array(f"e_{n}", k) for n, k in kinds.items()))
            .table_valued(*kinds, name="e")
            .render_derived()
        )
        return sa.insert(self.events).from_select(list(kinds), sa.select(*(rows.c[n] for n in kinds)))
