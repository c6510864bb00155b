"""Claim due tasks: those of no agent by priority, those of agents one head each."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from ..lifecycle import Event, Status
from .arrays import array
from .conditions import due_of_levels, met_levels
from .moves import INSTANT, Moves, literal

CLAIM_COLUMNS = (
    "id",
    "fence",
    "queue",
    "action",
    "agent",
    "account",
    "priority",
    "attempts",
    "max_attempts",
    "not_before",
    "lease_expires_at",
    "timeout",
    "created_at",
)


class Claiming(Moves):
    @functools.lru_cache(maxsize=32)  # noqa: B019
    def claim_due(self, size: int) -> sa.Select[Any]:
        """Claim at most `size` due tasks of no agent, best priority first within a queue.

        One level of LATERAL per (queue, priority) makes it a bounded range scan of claim_due: future rows, other
        priorities and a deep backlog cost nothing. `floor` bounds the range from below, so that dead entries that a
        forgotten transaction keeps alive are not walked again at every claim.

        Always returns at least one row, whose `id` is NULL when nothing was due: `server_now` comes with it.
        """
        t = self.tasks.c
        levels = (
            sa.func.unnest(
                array("queues", sa.Text),
                array("priorities", sa.SmallInteger),
                array("floors", INSTANT),
            )
            .table_valued("queue", "priority", "floor", with_ordinality="place", name="level")
            .render_derived()
        )
        limit = sa.literal_column(str(size), sa.Integer)
        first = (
            sa.select(t.id)
            .where(
                t.queue == levels.c.queue,
                t.priority == levels.c.priority,
                t.not_before.between(levels.c.floor, sa.func.now()),
                t.status == literal(Status.PENDING),
                t.agent.is_(None),
                sa.not_(t.blocked),
                t.requires == sa.literal_column("'{}'::text[]"),
            )
            .order_by(t.not_before, t.id)
            .limit(limit)
            # NO KEY: a foreign key somewhere that holds the row KEY SHARE must not hide the task.
            .with_for_update(key_share=True, skip_locked=True)
            .lateral("first")
        )
        due = sa.select(first.c.id).select_from(levels.join(first, sa.true())).limit(limit).cte("due")
        return self._claimed(due)

    @functools.lru_cache(maxsize=32)  # noqa: B019
    def claim_conditional(self, size: int) -> sa.Select[Any]:
        """As `claim_due`, of levels with a condition and without: one LATERAL per (queue, condition, priority).

        `conditions`: of each level, as the text of an array (see `met_levels`), NULL for tasks without one;
        `turns`: its place: the levels of one queue and priority have the same. Among those the one goes first whose
        first task has been due the longest, or, where `shuffled`, any. Brings `requires` after a claim's columns.
        """
        due = due_of_levels(self.schema.name, size).columns(sa.column("id", sa.Uuid)).cte("due")
        return self._claimed(due, sa.cast(self.tasks.c.requires, sa.Text).label("requires"))

    @functools.cached_property
    def met_levels(self) -> sa.TextClause:
        """The (queue, priority, condition) of pending tasks whose condition `offers` covers, with each one's first due.

        A walk over claim_conditional, per queue: one probe a step, at most `steps` of them, beginning after that
        queue's `conditions` and `priorities`. After a level whose condition is covered comes the next one in the
        index; after any other, the walk leaps to the least condition that could be: the part that is covered, and then
        the next offer in order. So an unmet condition costs one probe at the most, however many tasks have it, and all
        that begin alike cost one together. Conditions are compared as the index does it: as lists, in its collation.

        Rows: those levels, and where the walk was cut at `steps` its last one (`cut`), covered (`met`) or not.
        """
        return met_levels(self.schema.name)

    @functools.cached_property
    def claim_agents(self) -> sa.Select[Any]:
        """Claim the head of each agent in `agents`; the second of two statements.

        The first (`free_agents`) took the agents' advisory locks; this one has a fresh snapshot, so it looks again
        whether an agent is busy. The head is chosen by hopping from priority to priority, so that an agent's future
        tasks cost nothing, and locked outside the choice: a locked head skips its agent instead of sliding to the
        next task, out of order.
        """
        t = self.tasks.c
        chosen = _agent_heads(self.schema.name).columns(sa.column("id", sa.Uuid)).cte("chosen")
        due = (
            sa.select(t.id)
            .where(
                t.id == sa.any_(sa.func.array(sa.select(chosen.c.id).scalar_subquery())),
                t.status == literal(Status.PENDING),
            )
            .with_for_update(key_share=True, skip_locked=True)
            .cte("due")
        )
        return self._claimed(due)

    def _claimed(self, due: Any, *more: ColumnElement[Any]) -> sa.Select[Any]:
        t = self.tasks.c
        ids = sa.func.array(sa.select(due.c.id).scalar_subquery())
        moved = (
            self.move(Event.CLAIM)
            .where(t.id == sa.any_(ids))
            .returning(
                *(t[name] for name in CLAIM_COLUMNS),
                sa.cast(t.payload, sa.Text).label("payload"),
                sa.cast(t.metadata, sa.Text).label("metadata"),
                *more,
            )
            .cte("moved")
        )
        one = sa.select(sa.func.now().label("server_now")).subquery("one")
        return sa.select(one.c.server_now, *moved.c).select_from(one.outerjoin(moved, sa.true()))

    def free_agents(self, size: int) -> sa.TextClause:
        """Choose and lock agents that may have something due and are not busy; the first of two statements.

        Candidates: agents that the caller knows to be free, agents newly due (a page of due_agent after the last one
        seen, the longest due first), and a bounded step of a slow walk over all agents that have anything pending (a
        loose index scan: one probe per agent, however deep its backlog). The busy ones are dropped first, then those
        whose tasks are not due or whose conditions do not hold, and only then the advisory locks taken: whoever is
        chosen in vain takes the place of an agent that could run. A materialized CTE in between keeps that order
        (the planner would lock first, and 30,000 busy agents use up the server's lock table) and is read only as far
        as it takes to choose `size`.

        `rest`: who comes after the last one chosen, not yet asked; where all were asked, who somebody else has locked.
        """
        return _free_agents(self.schema.name, size)

    @functools.cached_property
    def agent_lock(self) -> sa.Select[Any]:
        """Take one agent's advisory lock, waiting for it: every claim of an agent's task goes through it."""
        key = sa.func.hashtextextended(
            sa.literal(f"{self.schema.name}:agent:") + sa.bindparam("agent", type_=sa.Text), 0
        )
        return sa.select(sa.func.pg_advisory_xact_lock(key))

    @functools.cached_property
    def next_due(self) -> sa.Select[Any]:
        """Seconds until the next task of these levels becomes due that is not due now; NULL when there is none.

        Of agents' tasks, whatever they require: to wake up too early is cheap.
        """
        t = self.tasks.c
        levels = (
            sa.func.unnest(
                array("queues", sa.Text),
                array("priorities", sa.SmallInteger),
            )
            .table_valued("queue", "priority", name="level")
            .render_derived()
        )
        one: ColumnElement[int] = sa.literal_column("1", sa.Integer)
        free = (
            sa.select(t.not_before)
            .where(
                t.queue == levels.c.queue,
                t.priority == levels.c.priority,
                t.not_before > sa.func.now(),
                t.status == literal(Status.PENDING),
                t.agent.is_(None),
                sa.not_(t.blocked),
                t.requires == sa.literal_column("'{}'::text[]"),
            )
            .order_by(t.not_before)
            .limit(one)
            .lateral("free")
        )
        of_agents = (
            sa.select(t.not_before)
            .where(
                t.queue == levels.c.queue,
                t.not_before > sa.func.now(),
                t.status == literal(Status.PENDING),
                t.agent.is_not(None),
                sa.not_(t.blocked),
            )
            .order_by(t.not_before)
            .limit(one)
            .lateral("of_agents")
        )
        met_levels = (
            sa.func.unnest(
                array("met_queues", sa.Text),
                array("met_priorities", sa.SmallInteger),
                array("met_conditions", sa.Text),
            )
            .table_valued("queue", "priority", "requires", name="met_level")
            .render_derived()
        )
        met = (
            sa.select(t.not_before)
            .where(
                t.queue == met_levels.c.queue,
                t.priority == met_levels.c.priority,
                t.requires == sa.cast(met_levels.c.requires, t.requires.type),
                t.not_before > sa.func.now(),
                t.status == literal(Status.PENDING),
                t.agent.is_(None),
                sa.not_(t.blocked),
                t.requires != sa.literal_column("'{}'::text[]"),
            )
            .order_by(t.not_before)
            .limit(one)
            .lateral("met")
        )
        every = sa.union_all(
            sa.select(free.c.not_before).select_from(levels.join(free, sa.true())),
            sa.select(of_agents.c.not_before)
            .select_from(levels.join(of_agents, sa.true()))
            .where(levels.c.priority == 0),
            sa.select(met.c.not_before).select_from(met_levels.join(met, sa.true())),
        ).subquery("every")
        wait = sa.func.min(every.c.not_before) - sa.func.clock_timestamp()
        return sa.select(sa.cast(sa.func.extract("epoch", wait), sa.Float))


@functools.lru_cache(maxsize=64)
def _free_agents(schema: str, size: int) -> sa.TextClause:
    # text(): a loose index scan with three sources reads as SQL, and does not as Core. It writes no status.
    # The schema name was checked against [a-z_][a-z0-9_]* and the size is one of CLAIM_SIZES.
    # Each step also sees the first task of the agent's best priority; where that is not due, and there is no other
    # priority, nothing of the agent is, and it need not be asked.
    walkable = "queue = :line and status = 'pending' and agent is not null and not blocked"
    return sa.text(f"""
with recursive newly as materialized (
  select not_before, agent from {schema}.tasks
  where :page > 0 and {walkable} and not_before <= now()
    and (not_before, agent) > (cast(:seen_at as timestamptz), cast(:seen_agent as text))
  order by not_before, agent limit 1000
), walk(agent, priority, not_before, step) as (
  (select agent, priority, not_before, 1 from {schema}.tasks
   where :walk > 0 and {walkable} and agent > cast(:walked_to as text)
   order by agent, priority desc, not_before limit 1)
  union all
  select next.*, step + 1
  from walk cross join lateral (
    select agent, priority, not_before from {schema}.tasks where {walkable} and agent > walk.agent
    order by agent, priority desc, not_before limit 1
  ) next
  where step < :walk
), walked as (
  select agent, step from walk
  where not_before <= now()
    or exists (select 1 from {schema}.tasks l where {walkable} and l.agent = walk.agent and l.priority < walk.priority)
), candidates as (
  select agent, min(place) as place
  from (select agent, place from unnest(cast(:known as text[])) with ordinality as known(agent, place)
        union all select agent, 10000 + row_number() over (order by not_before, agent) from newly
        union all select agent, 20000 + step from walked) every
  group by agent
), free as materialized (
  select agent, place from candidates c
  where not exists (select 1 from {schema}.tasks r where r.agent = c.agent and r.status = 'running')
  order by place
), claimable as materialized (
  select agent, place from free where exists ({_head(schema)})
), chosen as materialized (
  select agent, place from claimable
  where pg_try_advisory_xact_lock(hashtextextended('{schema}:agent:' || agent, 0))
  limit {size}
)
select (select array_agg(agent) from chosen) as agents,
       case when (select count(*) from chosen) = {size}
         then (select array_agg(agent order by place) from free where place > (select max(place) from chosen))
         else (select array_agg(agent) from claimable where agent not in (select agent from chosen))
       end as rest,
       (select count(*) from newly) as newly,
       (select not_before from newly order by not_before desc, agent desc limit 1) as seen_at,
       (select agent from newly order by not_before desc, agent desc limit 1) as seen_agent,
       (select max(agent) from walk) as walked_to,
       (select count(*) from walk) as walked,
       now() as server_now
""")  # noqa: S608


@functools.cache
def _agent_heads(schema: str) -> sa.TextClause:
    return sa.text(f"""
  select head.id
  from unnest(cast(:agents as text[])) as free(agent)
  cross join lateral ({_head(schema)}) head
  where not exists (select 1 from {schema}.tasks r where r.agent = free.agent and r.status = 'running')
""")  # noqa: S608


def _head(schema: str) -> str:
    """The id of the task that `free.agent` would run next, by hops.

    Each is two probes of claim_agent (queue, agent, priority desc, not_before, id): the next lower priority that has
    anything pending, and that priority's first row if it is due and its conditions are met.
    """
    pending = "queue = :line and agent = free.agent and status = 'pending' and agent is not null and not blocked"
    return f"""
    with recursive hop(priority) as (
      (select priority from {schema}.tasks where {pending} order by priority desc limit 1)
      union all
      select (select lower.priority from {schema}.tasks lower where {pending} and lower.priority < hop.priority
              order by lower.priority desc limit 1)
      from hop where hop.priority is not null
    )
    select first.id
    from hop cross join lateral (
      select found.id from {schema}.tasks found
      where {pending} and found.priority = hop.priority and found.not_before <= now()
        and found.requires <@ cast(:offers as text[])
      order by found.not_before, found.id limit 1
    ) first
    order by hop.priority desc limit 1
"""  # noqa: S608
