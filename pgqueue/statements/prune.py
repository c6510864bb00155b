"""Delete what has ended long enough ago, with its edges and events.

Each kind of rows is found through an index that holds that kind alone, in the order of the index: a pass over what may
go never walks over what stays.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, TypeAlias

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from ..lifecycle import FINAL, Status
from .arrays import array
from .moves import INSTANT, Moves, literal

Kind: TypeAlias = Literal["finished", "forever", "dead", "all dead"]
"""Final tasks without, and with, a key that is used up for ever; dead ones without such a key, and all dead ones."""


class Pruning(Moves):
    @functools.lru_cache(maxsize=8)  # noqa: B019 - Statements live as long as the process
    def prunable(self, kind: Kind) -> sa.Select[Any]:
        """Lock at most `limit` tasks of that kind that finished `retention` ago; skips what somebody has locked.

        `floor` bounds the index range from below, past the dead entries of earlier batches.
        """
        t = self.tasks.c
        # Dead tasks have an index by id, which is nearly by age; what is forever's has none by time.
        order = {"finished": [t.finished_at], "forever": []}.get(kind, [t.id])
        return (
            sa.select(t.id)
            .where(
                *self._old(kind), t.finished_at >= sa.bindparam("floor", type_=INSTANT), self._parent_of_nobody(t.id)
            )
            .order_by(*order)
            .limit(sa.bindparam("limit", type_=sa.Integer))
            .with_for_update(skip_locked=True)
        )

    @functools.cached_property
    def delete_tasks(self) -> Any:
        """Delete the tasks in `ids`, which the caller has locked, but for those that became parents meanwhile."""
        t = self.tasks.c
        return sa.delete(self.tasks).where(self._ids(), self._parent_of_nobody(t.id)).returning(t.id, t.finished_at)

    @functools.cached_property
    def delete_edges(self) -> Any:
        """Delete the edges from the tasks in `ids` to their parents: how many, and how many of them held a parent."""
        d = self.schema.dependencies
        gone = sa.delete(d).where(d.c.child_id == sa.any_(self._id_array())).returning(d.c.lifted_at).cte("gone")
        return sa.select(
            sa.func.count().label("edges"),
            sa.func.count().filter(gone.c.lifted_at.is_(None)).label("held"),
        ).select_from(gone)

    @functools.cached_property
    def delete_events(self) -> sa.Select[Any]:
        """Delete the journal of the tasks in `ids`: how many events."""
        e = self.events
        gone = sa.delete(e).where(e.c.task_id == sa.any_(self._id_array())).returning(e.c.id).cte("gone")
        return sa.select(sa.func.count()).select_from(gone)

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def count_prunable(self, kinds: tuple[Kind, ...]) -> Any:
        """What pruning those kinds, batch after batch until nothing is left, would delete. Writes nothing.

        A child that goes takes its edges with it, and then its parent may go: so what stays is found from below, by
        following edges that hold from what stays.
        """
        t, d, e = self.tasks.c, self.schema.dependencies.c, self.events.c
        may = sa.union_all(*(sa.select(t.id, t.finished_at).where(*self._old(kind)) for kind in kinds)).cte("may")
        holds = d.lifted_at.is_(None)
        child_goes = sa.exists().where(may.c.id == d.child_id)
        stays = (
            sa.select(d.parent_id.label("id"))
            .where(holds, d.parent_id.in_(sa.select(may.c.id)), ~child_goes)
            .cte("stays", recursive=True)
        )
        stays = stays.union(sa.select(d.parent_id).where(holds, d.child_id == stays.c.id))
        goes = sa.select(may).where(may.c.id.not_in(sa.select(stays.c.id))).cte("goes")

        def belonging(column: ColumnElement[Any]) -> ColumnElement[int]:
            return sa.select(sa.func.count()).where(column.in_(sa.select(goes.c.id))).scalar_subquery()

        return sa.select(
            sa.func.count().label("tasks"),
            belonging(e.task_id).label("events"),
            belonging(d.child_id).label("edges"),
            sa.func.min(goes.c.finished_at).label("oldest"),
            sa.func.max(goes.c.finished_at).label("newest"),
        ).select_from(goes)

    def _old(self, kind: Kind) -> tuple[ColumnElement[bool], ...]:
        """What is of that kind and old enough, in the words of the index that holds it."""
        t = self.tasks.c
        final = t.status.in_([literal(status) for status in Status if status in FINAL])
        # Not now(): with no retention all that has ended goes, in this very transaction too.
        ago = sa.func.statement_timestamp(type_=INSTANT)
        dead = t.status == literal(Status.DEAD)
        words: dict[Kind, tuple[ColumnElement[bool], ...]] = {
            "finished": (final, sa.not_(t.dedupe_forever)),
            "forever": (final, t.dedupe_forever, t.dedupe_key.is_not(None)),
            "dead": (dead, sa.not_(t.dedupe_forever)),
            "all dead": (dead,),
        }
        retention = "dead" if kind in ("dead", "all dead") else "retention"
        age = sa.cast(sa.bindparam(retention, type_=sa.Interval), sa.Interval)
        return (*words[kind], t.finished_at <= ago - age)

    def _parent_of_nobody(self, task_id: ColumnElement[Any]) -> ColumnElement[bool]:
        """No edge that is not lifted names it. One probe per task: `not exists` would become a join over all edges.

        Of `is null` the planner expects that hardly a row passes, and sorts them all instead of going by the index.
        """
        d = self.schema.dependencies.c
        held: ColumnElement[Any] = (
            sa.select(sa.true())
            .where(d.parent_id == task_id, d.lifted_at.is_(None))
            .limit(sa.literal_column("1"))
            .correlate(self.tasks)
            .scalar_subquery()
        )
        return held.is_not(sa.true())

    def _id_array(self) -> ColumnElement[Any]:
        return array("ids", sa.Uuid)
