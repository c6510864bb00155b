"""Insert tasks, and hint to their queues."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB, insert
from sqlalchemy.sql.elements import ColumnElement

from .arrays import array
from .moves import INSTANT, JSON_COLUMNS, Moves, channel, clock

_ENQUEUE_TYPES: dict[str, Any] = {
    "id": sa.Uuid(),
    "queue": sa.Text(),
    "action": sa.Text(),
    "agent": sa.Text(),
    "account": sa.Text(),
    "priority": sa.SmallInteger(),
    "payload": sa.Text(),
    "max_attempts": sa.Integer(),
    "not_before": INSTANT,
    "waiting_on": sa.Integer(),
    "requires": sa.Text(),
    "on_parent_failure": sa.Text(),
    "dedupe_key": sa.Text(),
    "dedupe_forever": sa.Boolean(),
    "timeout": sa.Interval(),
    "trigger": sa.Text(),
    "metadata": sa.Text(),
}


class Enqueueing(Moves):
    @functools.cached_property
    def enqueue(self) -> sa.Select[Any]:
        """Insert one task and hint to its queue, in one statement; no row when an id or a key is taken.

        A past not_before becomes now: the line is ordered by when a task became due, and a task that turns up
        below the claims' floor would wait for the next full look.
        """
        names = [c.name for c in self.tasks.columns if c.name in _ENQUEUE_TYPES]
        b = {name: sa.bindparam(f"new_{name}", type_=_ENQUEUE_TYPES[name]) for name in names}
        values: dict[str, Any] = dict(b)
        values["not_before"] = self._due(b["not_before"], sa.bindparam("new_delay", type_=sa.Interval))
        values |= _cast(values)
        new = (
            insert(self.tasks)
            .values(values)
            .on_conflict_do_nothing()
            .returning(self.tasks.c.id, self.tasks.c.queue)
            .cte("new")
        )
        return sa.select(new.c.id, self._hint(new.c.queue))

    @functools.cached_property
    def enqueue_many(self) -> sa.Select[Any]:
        """Insert one row per position of the arrays, in their order; returns the ids that were inserted."""
        arrays = [array(f"new_{name}", kind) for name, kind in _ENQUEUE_TYPES.items()]
        rows = (
            sa.func.unnest(*arrays, array("new_delay", sa.Interval))
            .table_valued(*_ENQUEUE_TYPES, "delay", with_ordinality="place", name="new")
            .render_derived()
        )
        source: dict[str, Any] = {name: rows.c[name] for name in _ENQUEUE_TYPES}
        source["not_before"] = self._due(rows.c.not_before, rows.c.delay)
        source |= _cast(source)
        new = (
            insert(self.tasks)
            .from_select(list(source), sa.select(*source.values()).order_by(rows.c.place))
            .on_conflict_do_nothing()
            .returning(self.tasks.c.id, self.tasks.c.queue)
            .cte("new")
        )
        return sa.select(new.c.id, new.c.queue)

    def _due(self, not_before: ColumnElement[Any], delay: ColumnElement[Any]) -> ColumnElement[Any]:
        return sa.func.greatest(sa.func.coalesce(not_before, clock() + delay, clock()), clock())

    def _hint(self, queue: ColumnElement[str]) -> ColumnElement[Any]:
        """NOTIFY with the queue's name, at most one in flight per queue.

        NOTIFY takes a lock of the whole database at COMMIT: in every statement it leaves a third of the commit
        rate with 64 committers, gated like this four fifths. Whoever is muted relies on the workers' polls.
        """
        gate = sa.func.pg_try_advisory_xact_lock(
            sa.func.hashtextextended(sa.literal(f"{self.schema.name}:") + queue, 0)
        )
        notify = sa.cast(sa.func.pg_notify(channel(self.schema.name), queue), sa.Text)
        return sa.case((gate, notify)).label("hint")

    @functools.cached_property
    def hint(self) -> sa.Select[Any]:
        """Hint to the queues of an array."""
        queues = sa.func.unnest(array("queues", sa.Text)).table_valued("queue", name="q").render_derived()
        return sa.select(self._hint(queues.c.queue))

    @functools.lru_cache(maxsize=4)  # noqa: B019 - Statements live as long as the process
    def key_holder(self, *, has_agent: bool) -> sa.Select[Any]:
        """Who holds (agent, key) now. `agent is not distinct from $1` uses no index, hence two forms."""
        t = self.tasks.c
        return self._of_key(has_agent=has_agent).where(t.active)

    @functools.lru_cache(maxsize=4)  # noqa: B019
    def key_user(self, *, has_agent: bool) -> sa.Select[Any]:
        """Who has used (agent, key) for ever, whatever became of it."""
        return self._of_key(has_agent=has_agent).where(self.tasks.c.dedupe_forever)

    def _of_key(self, *, has_agent: bool) -> sa.Select[Any]:
        t = self.tasks.c
        agent = t.agent == sa.bindparam("agent", type_=sa.Text) if has_agent else t.agent.is_(None)
        return sa.select(t.id, t.status).where(agent, t.dedupe_key == sa.bindparam("key", type_=sa.Text))


def _cast(values: Mapping[str, Any]) -> dict[str, Any]:
    """What travels as text and is none; and what need not be sent where no task of a chunk has it."""
    cast: dict[str, Any] = {name: sa.cast(values[name], JSONB) for name in JSON_COLUMNS if name != "result"}
    cast["requires"] = sa.func.coalesce(sa.cast(values["requires"], sa.ARRAY(sa.Text)), sa.text("'{}'::text[]"))
    cast["waiting_on"] = sa.func.coalesce(values["waiting_on"], 0)
    cast["on_parent_failure"] = sa.func.coalesce(values["on_parent_failure"], sa.text("'cancel'"))
    cast["dedupe_forever"] = sa.func.coalesce(values["dedupe_forever"], sa.false())
    return cast
