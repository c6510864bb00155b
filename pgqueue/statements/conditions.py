"""Which conditions of pending tasks are met, and the due tasks of those: two looks that read as SQL, and not as Core.

Neither writes a status. The schema name was checked against [a-z_][a-z0-9_]*, and the size is one of CLAIM_SIZES.
"""

from __future__ import annotations

import functools

import sqlalchemy as sa

from .arrays import bound
from .moves import INSTANT

# The predicates of claim_due and of claim_conditional.
_FREE = "status = 'pending' and agent is null and not blocked and requires = '{}'"
_CONDITIONAL = "status = 'pending' and agent is null and not blocked and requires <> '{}'"


@functools.lru_cache(maxsize=64)
def due_of_levels(schema: str, size: int) -> sa.TextClause:
    """The ids of at most `size` due tasks, locked; see `Claiming.claim_conditional`."""

    # Each look has two sides, so that each has its partial index; the side that is not the level's is not begun.
    def due(condition: str) -> str:
        return f"""
          from {schema}.tasks t where {condition} and queue = level.queue and priority = level.priority
            and not_before between level.floor and now()"""

    free = due(f"level.condition is null and {_FREE}")
    met = due(f"{_CONDITIONAL} and requires = cast(level.condition as text[])")
    lock = f"order by not_before, id limit {size} for no key update skip locked"
    # The heads are looked up without a lock: most of them will not be claimed. The locks stand in selects of their own,
    # since PostgreSQL locks no rows of a union.
    statement = sa.text(f"""
  select first.id
  from (
    select level.* from unnest(
      cast(:turns as integer[]), cast(:queues as text[]), cast(:conditions as text[]), cast(:priorities as smallint[]),
      cast(:floors as timestamptz[])
    ) as level(turn, queue, condition, priority, floor)
    cross join lateral (
      (select not_before {free} order by not_before limit 1)
      union all
      (select not_before {met} order by not_before limit 1)
    ) head
    order by level.turn, case when :shuffled then random() end, head.not_before
  ) level
  cross join lateral (
    select id from (select id {free} {lock}) free
    union all
    select id from (select id {met} {lock}) met
  ) first
  limit {size}
""")  # noqa: S608
    return statement.bindparams(
        bound("turns", sa.Integer),
        bound("queues", sa.Text),
        bound("conditions", sa.Text),
        bound("priorities", sa.SmallInteger),
        bound("floors", INSTANT),
        sa.bindparam("shuffled", type_=sa.Boolean),
    )


@functools.cache
def met_levels(schema: str) -> sa.TextClause:
    """The walk of `Claiming.met_levels`."""
    offers = "cast(:offers as text[])"
    probe = f"""
      select requires, priority, not_before from {schema}.tasks
      where queue = line.queue and {_CONDITIONAL} and (requires, priority) > """  # noqa: S608
    following = "order by requires, priority, not_before limit 1"
    # Leads up: for each place up to the first name that is not offered, the next offer above the name there. The
    # rightmost place that has one gives the least list that could be covered; where none has, the walk ends.
    leap = f"""(
      select array(
        select kept.name from unnest(walk.requires) with ordinality kept(name, place)
        where kept.place < up.place order by kept.place
      ) || up.name
      from (
        select given.place, (select min(o.name) from unnest({offers}) o(name) where o.name > given.name) as name
        from unnest(walk.requires) with ordinality given(name, place)
        where given.place <= (
          select min(unmet.place) from unnest(walk.requires) with ordinality unmet(name, place)
          where unmet.name is null or unmet.name <> all({offers})
        )
      ) up
      where up.name is not null order by up.place desc limit 1
    )"""  # noqa: S608
    statement = sa.text(f"""
select line.queue, cast(found.requires as text) as requires, found.priority, found.not_before, found.met,
       found.step = :steps as cut, now() as server_now
from unnest(cast(:queues as text[]), cast(:conditions as text[]), cast(:priorities as smallint[]))
  as line(queue, condition, priority)
cross join lateral (
  with recursive walk(requires, priority, not_before, met, step) as (
    select first.*, first.requires <@ {offers}, 1
    from ({probe} (cast(line.condition as text[]), line.priority) {following}) first
    union all
    select next.*, next.requires <@ {offers}, walk.step + 1
    from walk cross join lateral ({probe} (
      case when walk.met then walk.requires else {leap} end,
      case when walk.met then walk.priority else cast(-32768 as smallint) end
    ) {following}) next
    where walk.step < :steps
  )
  select * from walk
) found
where found.met or found.step = :steps
""")  # noqa: S608
    return statement.bindparams(
        bound("queues", sa.Text),
        bound("conditions", sa.Text),
        bound("priorities", sa.SmallInteger),
        bound("offers", sa.Text),
    )
