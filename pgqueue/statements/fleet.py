"""Who works and what is paused. Writes no status."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from .moves import Moves, channel, clock

COUNTED = 1000
"""Up to how many pending tasks of an agent are counted in each queue."""


class Fleet(Moves):
    @functools.cached_property
    def tell(self) -> sa.Select[Any]:
        """NOTIFY with `payload`, whoever else does. For what is rare: at COMMIT it takes a lock of the database."""
        payload = sa.bindparam("payload", type_=sa.Text)
        return sa.select(sa.cast(sa.func.pg_notify(channel(self.schema.name), payload), sa.Text))

    @functools.cached_property
    def pause(self) -> sa.Insert:
        new = {name: sa.bindparam(f"new_{name}", type_=sa.Text) for name in ("kind", "name", "by")}
        return insert(self.schema.pauses).values(new).on_conflict_do_nothing()

    @functools.cached_property
    def resume(self) -> Any:
        p = self.schema.pauses.c
        return sa.delete(self.schema.pauses).where(*self._named()).returning(p.name)

    @functools.cached_property
    def pause_of(self) -> sa.Select[Any]:
        p = self.schema.pauses.c
        return sa.select(p.kind, p.name, p.by, p.since).where(*self._named())

    @functools.cached_property
    def pauses_of(self) -> sa.Select[Any]:
        """All of them, queues first."""
        p = self.schema.pauses.c
        return sa.select(p.kind, p.name, p.by, p.since).order_by(p.kind.desc(), p.name)

    @functools.cached_property
    def pauses_mark(self) -> Any:
        """Two values of which one changes, all but surely, when a pause comes or goes."""
        p = self.schema.pauses.c
        return sa.select(sa.func.count(), sa.func.max(p.since)).select_from(self.schema.pauses)

    def _named(self) -> tuple[Any, ...]:
        p = self.schema.pauses.c
        return p.kind == sa.bindparam("of_kind", type_=sa.Text), p.name == sa.bindparam("of_name", type_=sa.Text)

    @functools.cached_property
    def register(self) -> sa.Insert:
        """Say that a worker is there, at its first beat and at every one after."""
        w = self.schema.workers
        texts = sa.ARRAY(sa.Text)
        new: dict[str, Any] = {
            "id": sa.bindparam("worker_id", type_=sa.Uuid),
            **{name: sa.bindparam(f"w_{name}", type_=sa.Text) for name in ("name", "host", "version")},
            **{name: sa.bindparam(f"w_{name}", type_=sa.Integer) for name in ("pid", "concurrency")},
            **{name: sa.bindparam(f"w_{name}", type_=texts) for name in ("queues", "actions", "offers")},
        }
        return insert(w).values(new).on_conflict_do_update(index_elements=[w.c.id], set_={"seen_at": clock()})

    @functools.cached_property
    def unregister(self) -> sa.Delete:
        w = self.schema.workers
        return sa.delete(w).where(w.c.id == sa.bindparam("worker_id", type_=sa.Uuid))

    @functools.cached_property
    def forget_workers(self) -> sa.Delete:
        """Delete what was not seen for `ago`; what somebody else deletes just now is left to them."""
        w = self.schema.workers
        old = (
            sa.select(w.c.id)
            .where(w.c.seen_at < sa.func.now() - sa.bindparam("ago", type_=sa.Interval))
            .with_for_update(skip_locked=True)
            .scalar_subquery()
        )
        return sa.delete(w).where(w.c.id == sa.any_(sa.func.array(old)))

    @functools.cached_property
    def workers_of(self) -> sa.Select[Any]:
        w = self.schema.workers.c
        stale = w.seen_at < sa.func.clock_timestamp() - sa.bindparam("ago", type_=sa.Interval)
        return sa.select(*self.schema.workers.columns, stale.label("stale")).order_by(w.name, w.started_at, w.id)

    @functools.cached_property
    def agents_of(self) -> sa.TextClause:
        """Agents with anything pending or running, after `after`, by name, at most `limit`.

        A loose index scan: a step is the least agent after the last one in any of the indexes of what runs, what is
        blocked, and what each queue has, one probe each. So history and deep backlogs cost nothing.
        """
        return _agents(self.schema.name)


@functools.cache
def _agents(schema: str) -> sa.TextClause:
    # text(): a loose index scan reads as SQL, and does not as Core. The schema name was checked.
    walkable = "status = 'pending' and agent is not null and not blocked"
    blocked = "status = 'pending' and blocked and agent is not null"

    def following(agent: str) -> str:
        return f"""(
      select min(agent) from (
        (select agent from {schema}.tasks where status = 'running' and agent is not null and agent > {agent}
         order by agent limit 1)
        union all
        (select agent from {schema}.tasks where {blocked} and agent > {agent} order by agent limit 1)
        union all
        select near.agent from lines cross join lateral (
          select agent from {schema}.tasks where {walkable} and queue = lines.queue and agent > {agent}
          order by agent limit 1
        ) near
      ) nearest
    )"""  # noqa: S608

    return sa.text(f"""
with recursive lines(queue) as (
  (select queue from {schema}.tasks where {walkable} order by queue limit 1)
  union all
  select (select queue from {schema}.tasks where {walkable} and queue > lines.queue order by queue limit 1)
  from lines where lines.queue is not null
), walk(agent, step) as (
  select {following("cast(:after as text)")}, 1
  union all
  select {following("walk.agent")}, walk.step + 1 from walk where walk.agent is not null and walk.step < :limit
)
select walk.agent,
       (select coalesce(sum(n), 0) from lines cross join lateral (
          select count(*) as n from (
            select from {schema}.tasks where {walkable} and queue = lines.queue and agent = walk.agent limit {COUNTED}
          ) few
        ) counted)
       + (select count(*) from (
            select from {schema}.tasks where {blocked} and agent = walk.agent limit {COUNTED}
          ) few) as pending,
       runs.id as running, runs.action, runs.lease_owner as owner, runs.started_at,
       (select since from {schema}.pauses where kind = 'agent' and name = walk.agent) as paused_at
from walk left join lateral (
  select id, action, lease_owner, started_at from {schema}.tasks where status = 'running' and agent = walk.agent
) runs on true
where walk.agent is not null
order by walk.step
""")  # noqa: S608
