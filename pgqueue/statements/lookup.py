"""Find a task by what it is for: its dedupe key, or its agent and action; and give one that waits another payload.

An agent's past may be deep (100,000 finished tasks of a week) and is never walked over: what waits is found through
the indexes of what waits, whose entries go when a task is claimed.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.sql.elements import ColumnElement

from ..lifecycle import Status
from .inspect import Inspecting
from .moves import clock, literal


class Lookups(Inspecting):
    @functools.lru_cache(maxsize=4)  # noqa: B019 - Statements live as long as the process
    def find_by_dedupe_key(self, *, has_agent: bool) -> sa.Select[Any]:
        """The newest task of (agent, key), whatever its status. `agent is not distinct from $1` uses no index."""
        t = self.tasks.c
        agent = t.agent == sa.bindparam("agent", type_=sa.Text) if has_agent else t.agent.is_(None)
        return (
            sa.select(*self.task_columns)
            .where(agent, t.dedupe_key == sa.bindparam("key", type_=sa.Text))
            .order_by(t.id.desc())
            .limit(sa.literal_column("1"))
        )

    @functools.cached_property
    def find_pending(self) -> sa.Select[Any]:
        """Of the pending tasks of `agent` and `action`, the one that is first in the line."""
        return sa.select(*self.task_columns).where(self.tasks.c.id == self._next_pending())

    @functools.cached_property
    def next_pending(self) -> sa.Select[Any]:
        """The id of what `find_pending` finds; NULL where there is none."""
        return sa.select(self._next_pending().label("id"))

    @functools.cached_property
    def has_active(self) -> sa.Select[Any]:
        """Whether any task of `agent` and `action` is pending or running."""
        t = self.tasks.c
        agent = sa.bindparam("agent", type_=sa.Text)
        # A range that is ordered, not an equality: where the planner knows no numbers, all of a partial index looks as
        # cheap as one entry of it, but for the sort.
        running = (
            sa.select(t.action)
            .where(t.status == literal(Status.RUNNING), t.agent >= agent, t.agent <= agent)
            .order_by(t.agent)
            .limit(sa.literal_column("1"))
            .scalar_subquery()
        )
        return sa.select(
            sa.or_(
                sa.func.coalesce(running == sa.bindparam("action", type_=sa.Text), sa.false()),
                self._next_pending().is_not(None),
            )
        )

    @functools.cached_property
    def replace_payload(self) -> sa.Update:
        """Write the payload of the task `task_id`, if it is still pending once its row is locked."""
        t = self.tasks.c
        return (
            sa.update(self.tasks)
            .values(payload=sa.cast(sa.bindparam("payload_text", type_=sa.Text), JSONB), updated_at=clock())
            .where(t.id == sa.bindparam("task_id", type_=sa.Uuid), t.status == literal(Status.PENDING))
            .returning(t.id, t.status, t.attempts, t.fence)
        )

    def _next_pending(self) -> ColumnElement[Any]:
        found = sa.text(_next_pending(self.schema.name)).columns(sa.column("id", sa.Uuid)).subquery("next_pending")
        return sa.select(found.c.id).scalar_subquery()


def _next_pending(schema: str) -> str:
    # text(): a loose index scan reads as SQL, and does not as Core. It writes no status. The schema name was checked
    # against [a-z_][a-z0-9_]*.
    # claim_agent begins with the queue, which the caller does not name, so the queues are hopped over: one probe each.
    # An index by (agent, action) would make every enqueue of an agent's task dearer for the sake of this.
    free = "status = 'pending' and agent is not null and not blocked"
    mine = "agent = cast(:agent as text) and action = cast(:action as text)"
    order = "order by priority desc, not_before, id limit 1"
    return f"""
  with recursive line(queue) as (
    (select queue from {schema}.tasks where {free} order by queue limit 1)
    union all
    select (select further.queue from {schema}.tasks further where {free} and further.queue > line.queue
            order by further.queue limit 1)
    from line where line.queue is not null
  )
  select id from (
    select head.* from line cross join lateral (
      select id, priority, not_before from {schema}.tasks waits where {free} and waits.queue = line.queue and {mine}
      {order}
    ) head
    union all
    (select id, priority, not_before from {schema}.tasks
     where status = 'pending' and blocked and agent is not null and {mine} {order})
  ) every {order}
"""  # noqa: S608
