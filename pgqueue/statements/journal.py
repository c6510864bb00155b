"""The journal's setting, and what an audit reads."""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa

from ..journal import FULL
from .moves import Moves

TRIGGERS = {
    "enqueues_are_journalled": ("insert", "new table as inserted", "journal_enqueues"),
    "moves_are_journalled": ("update", "old table as before new table as after", "journal_moves"),
}
"""name → (after what, the rows that the function sees, function); the functions are the migration's."""


class Journalling(Moves):
    @functools.cached_property
    def journal(self) -> sa.Select[Any]:
        """(journal, full_since), one row."""
        return sa.select(self.schema.meta.c.journal, self.schema.meta.c.full_since)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def switch_triggers(self, *, on: bool) -> list[sa.TextClause]:
        """Lock tasks, and then make or drop the triggers that write the full journal's events.

        The lock waits for every open transaction that has written tasks (to drop: read them), and keeps others out
        until the commit: there is no task that was written half by the old setting.
        """
        tasks, schema = _name(self.tasks), self.schema.name
        if not on:
            return [
                sa.text(f"lock table {tasks} in access exclusive mode"),
                *(sa.text(f"drop trigger if exists {name} on {tasks}") for name in TRIGGERS),
            ]
        return [
            sa.text(f"lock table {tasks} in share row exclusive mode"),
            *(
                sa.text(
                    f"create or replace trigger {name} after {when} on {tasks} referencing {rows}"
                    f" for each statement execute function {schema}.{function}()"
                )
                for name, (when, rows, function) in TRIGGERS.items()
            ),
        ]

    @functools.cached_property
    def users(self) -> sa.TextClause:
        """Whose open transactions have used tasks: (pid, name, since when), the oldest first, at most 5."""
        return sa.text(
            "select a.pid, a.application_name as name, a.xact_start as since from pg_locks l"
            " join pg_stat_activity a on a.pid = l.pid"
            " where l.relation = cast(:tasks as regclass) and l.granted and l.pid <> pg_backend_pid()"
            " and (l.mode <> 'AccessShareLock' or not :write) order by a.xact_start limit 5"
        ).bindparams(sa.bindparam("tasks", _name(self.tasks)), sa.bindparam("write", type_=sa.Boolean))

    @functools.cached_property
    def set_journal(self) -> sa.Update:
        """Write the setting; a journal that is full already keeps its beginning."""
        m, mode = self.schema.meta.c, sa.bindparam("mode", type_=sa.Text)
        since = sa.case(
            (sa.and_(mode == FULL, m.journal == FULL), m.full_since), (mode == FULL, sa.func.clock_timestamp())
        )
        return sa.update(self.schema.meta).values(journal=mode, full_since=since)

    @functools.cached_property
    def audit(self) -> sa.TextClause:
        """The next `size` ids between `low` and `high` that have a row or events: row, edges and events of each.

        One statement, so that all are of one snapshot. `whole`: the task was made when the journal was full. Events
        from before that are left out. No row where the journal is not full; one of NULLs where there is nothing.
        """
        tasks, events, edges = (_name(table) for table in (self.tasks, self.events, self.dependencies))
        return sa.text(f"""
with meta as materialized (
  select full_since from {_name(self.schema.meta)} where journal = '{FULL}'
), ids as (
  (select id from {tasks} where id between :low and :high order by id limit :size)
  union
  (select distinct task_id from {events} where task_id between :low and :high order by task_id limit :size)
), page as materialized (
  select id from ids order by id limit :size
)
select meta.full_since, page.id, t.id is not null as present, t.created_at >= meta.full_since as whole,
  t.status, t.attempts, t.fence, t.priority, t.max_attempts, t.dedupe_key, t.cancel_requested, t.waiting_on,
  edges.waiting, journal.lines
from meta left join page on true left join {tasks} t on t.id = page.id
left join lateral (
  select count(*) as waiting from {edges} d where d.child_id = page.id and d.lifted_at is null
) edges on true
left join lateral (
  select cast(json_agg(
    json_build_array(e.id, e.event, e.from_status, e.to_status, e.attempt, e.fence, e.changes) order by e.id
  ) as text) as lines
  from {events} e where e.task_id = page.id and e.at >= meta.full_since
) journal on true
order by page.id
""").bindparams(  # noqa: S608 - names of tables, checked
            sa.bindparam("low", type_=sa.Uuid),
            sa.bindparam("high", type_=sa.Uuid),
            sa.bindparam("size", type_=sa.Integer),
        )


def _name(table: sa.Table) -> str:
    return f"{table.schema}.{table.name}"
