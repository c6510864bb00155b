"""Edges between tasks: hang a child on its parents, lift the edges of what has ended, look at what was left over.

Who may write an edge: whoever has its child's row locked (lifts, gates, the sweep), and whoever is ending its parent,
who only leaves word for the sweep where the child's row cannot be had (`mark`). Only a gate ever waits for a lock,
its task's and then its edges'; an ending does not, however long others' transactions stay open.

A row that has both lifted_at and look_at is no edge but a *reminder*: the edge itself was locked by somebody who was
replacing it and may roll back. It asks the sweep to look at all edges of its child; its parent_id means nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import sqlalchemy as sa
from sqlalchemy.sql.elements import ColumnElement

from ..lifecycle import Event, Status
from .arrays import array
from .moves import INSTANT, Moves, clock, literal


class Depending(Moves):
    @functools.lru_cache(maxsize=2)  # noqa: B019
    def link(self, *, gate: bool) -> sa.Insert:
        """Insert the edges in `children` and `parents`; those of them that are `done` are lifted from the start.

        The arrays are of one length. The children were inserted, or locked and unlinked, by this transaction, with the
        other edges counted in waiting_on: a plain INSERT, so that a role that may only insert can enqueue children.
        gate: the edges may close a circle that nobody saw, so the sweep looks at them; so it does where others already
        wait for the child.
        """
        given = (
            sa.func.unnest(array("children", sa.Uuid), array("parents", sa.Uuid), array("done", sa.Boolean))
            .table_valued("child", "parent", "done", name="given")
            .render_derived()
        )
        waited_for = self.dependencies.alias("waited_for")
        others = sa.exists().where(waited_for.c.parent_id == given.c.child, waited_for.c.lifted_at.is_(None))
        waits = sa.not_(given.c.done)
        look = waits if gate else sa.and_(waits, others)
        return sa.insert(self.dependencies).from_select(
            ["child_id", "parent_id", "lifted_at", "look_at"],
            sa.select(
                given.c.child, given.c.parent, sa.case((given.c.done, clock())), sa.case((look, clock()))
            ).select_from(given),
        )

    @functools.cached_property
    def completed(self) -> sa.Select[Any]:
        """Those of `ids` that have completed: nothing leads out of that status."""
        return sa.select(self.tasks.c.id).where(self._ids(), self.tasks.c.status == literal(Status.COMPLETED))

    @functools.cached_property
    def named_as_parents(self) -> sa.Select[Any]:
        """Those of `ids` that somebody waits for; a look at one edge each, however many there are."""
        d = self.dependencies.c
        given = sa.func.unnest(array("ids", sa.Uuid)).table_valued("id", name="given").render_derived()
        edge = (
            sa.select(sa.literal_column("1"))
            .where(d.parent_id == given.c.id, d.lifted_at.is_(None))
            .limit(sa.literal_column("1"))
            .lateral("edge")
        )
        return sa.select(given.c.id).select_from(given.join(edge, sa.true()))

    @functools.cached_property
    def unlink(self) -> sa.Delete:
        """Remove all edges of the children in `ids`, whose rows the caller has locked."""
        d = self.dependencies.c
        return sa.delete(self.dependencies).where(d.child_id == sa.any_(array("ids", sa.Uuid)))

    @functools.cached_property
    def gate(self) -> sa.Update:
        """Write the gates of one task, locked by the caller, with all its parents counted; `link` comes next."""
        t = self.tasks.c
        return (
            sa.update(self.tasks)
            .values(
                waiting_on=sa.bindparam("waiting_on", type_=sa.Integer),
                requires=array("requires", sa.Text),
                on_parent_failure=sa.bindparam("on_failure", type_=sa.Text),
                # It may be claimable now, and the claims' floors are past the time at which it was due.
                not_before=sa.func.greatest(t.not_before, clock()),
                updated_at=clock(),
            )
            .where(t.id == sa.bindparam("task_id", type_=sa.Uuid))
        )

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def lift(self, *, failed: bool) -> sa.CompoundSelect[Any]:
        """Deal with the edges of the tasks in `ids`, which an earlier statement of this transaction has ended.

        A statement of its own: its snapshot is younger than the lock on the parents' rows, so that it sees every edge
        whose transaction found its parent alive. One level: the children that are cancelled here are the `ids` of the
        next call. Edges that the sweep is to look at now are left to it; without that rule this would not end while
        somebody keeps enqueueing children. A child that somebody has locked is passed over; `missed` counts its edges.

        failed: whether some of them are dead or cancelled, so that children may end. Rows: (what, id, queue, attempts,
        fence, why, n); what: "freed", "cancelled", or "missed" (one row, n edges).
        """
        d = self.dependencies.c
        parent = self.tasks.alias("parent")
        edges = (
            sa.select(
                d.child_id,
                d.parent_id,
                (parent.c.status != literal(Status.COMPLETED)).label("fails"),
                sa.func.format("its parent %s (%s) is %s", d.parent_id, parent.c.action, parent.c.status).label("why"),
            )
            .select_from(self.dependencies.join(parent, parent.c.id == d.parent_id))
            .where(
                d.parent_id == sa.any_(array("ids", sa.Uuid)),
                d.lifted_at.is_(None),
                sa.or_(d.look_at.is_(None), d.look_at > sa.func.now()),
            )
            .cte("edges")
        )
        held = (
            self._with_children(edges)
            .with_for_update(of=self.tasks, key_share=not failed, skip_locked=True)
            .cte("held")
        )
        return self._resolved(edges, held)

    @functools.cached_property
    def resolve(self) -> sa.CompoundSelect[Any]:
        """Deal with the edges in the arrays, whose children the caller has locked FOR UPDATE. Rows as of `lift`."""
        given = (
            sa.func.unnest(
                array("children", sa.Uuid),
                array("parents", sa.Uuid),
                array("fails", sa.Boolean),
                array("whys", sa.Text),
            )
            .table_valued("child_id", "parent_id", "fails", "why", name="given")
            .render_derived()
        )
        edges = sa.select(given.c.child_id, given.c.parent_id, given.c.fails, given.c.why).cte("edges")
        return self._resolved(edges, self._with_children(edges).cte("held"))

    def _with_children(self, edges: Any) -> sa.Select[Any]:
        t = self.tasks.c
        return sa.select(
            edges.c.child_id, edges.c.parent_id, edges.c.fails, edges.c.why, t.status, t.on_parent_failure
        ).select_from(sa.join(edges, self.tasks, t.id == edges.c.child_id))

    def _resolved(self, edges: Any, held: Any) -> sa.CompoundSelect[Any]:
        d, t = self.dependencies.c, self.tasks.c
        lifted = (
            sa.update(self.dependencies)
            .values(lifted_at=clock(), look_at=sa.null())
            # Whether it is lifted need not be asked: whoever could have done it needs the locks that are held here.
            .where(d.child_id == held.c.child_id, d.parent_id == held.c.parent_id)
            .returning(d.child_id, held.c.fails, held.c.why, held.c.status, held.c.on_parent_failure)
            .cte("lifted")
        )
        ends = sa.and_(
            lifted.c.fails,
            lifted.c.status == literal(Status.PENDING),
            lifted.c.on_parent_failure == sa.literal_column("'cancel'"),
        )
        # Two parents of one child may end at once: counted per child.
        fate = (
            sa.select(
                lifted.c.child_id,
                _count().label("n"),
                sa.func.bool_or(ends).label("ends"),
                sa.func.min(lifted.c.why).filter(lifted.c.fails).label("why"),
            )
            .select_from(lifted)
            .group_by(lifted.c.child_id)
            .cte("fate")
        )
        # Bounded, for rows that were written by hand.
        left = sa.func.greatest(t.waiting_on - fate.c.n, 0)
        free = sa.and_(t.status == literal(Status.PENDING), t.waiting_on <= fate.c.n)
        counted = (
            sa.update(self.tasks)
            .values(
                waiting_on=left,
                # Its place in the line is the moment when it could have been claimed; below, the floors hide it.
                not_before=sa.case((free, sa.func.greatest(t.not_before, clock())), else_=t.not_before),
                updated_at=sa.case((t.status == literal(Status.PENDING), clock()), else_=t.updated_at),
            )
            .where(t.id == fate.c.child_id, sa.not_(fate.c.ends))
            .returning(t.id, t.queue, t.waiting_on, t.status)
            .cte("counted")
        )
        cancelled = (
            self.move(Event.CASCADE)
            .values(waiting_on=left, last_error=sa.literal("cancelled: ") + fate.c.why)
            .where(t.id == fate.c.child_id, fate.c.ends)
            .returning(t.id, t.queue, t.attempts, t.fence, t.last_error)
            .cte("cancelled")
        )
        none: ColumnElement[Any] = sa.null()
        zero: ColumnElement[int] = sa.literal_column("0", sa.Integer)
        missed = (
            sa.select(_count()).select_from(edges).scalar_subquery()
            - sa.select(_count()).select_from(lifted).scalar_subquery()
        )
        return sa.union_all(
            sa.select(
                sa.literal_column("'freed'", sa.Text).label("what"),
                counted.c.id,
                counted.c.queue,
                zero.label("attempts"),
                zero.label("fence"),
                sa.cast(none, sa.Text).label("why"),
                zero.label("n"),
            ).where(counted.c.waiting_on == 0, counted.c.status == literal(Status.PENDING)),
            sa.select(
                sa.literal_column("'cancelled'", sa.Text),
                cancelled.c.id,
                cancelled.c.queue,
                cancelled.c.attempts,
                cancelled.c.fence,
                cancelled.c.last_error,
                zero,
            ),
            sa.select(
                sa.literal_column("'missed'", sa.Text),
                sa.cast(none, sa.Uuid),
                sa.cast(none, sa.Text),
                zero,
                zero,
                sa.cast(none, sa.Text),
                missed,
            ).where(missed > 0),
        )

    @functools.cached_property
    def mark(self) -> sa.Insert:
        """Leave to the sweep what is left of the edges of `ids`, whose rows the caller has locked FOR UPDATE.

        An edge that somebody has locked is not waited for: he is replacing it, in a transaction that may stay open for
        long. Should he commit, the new one is looked at; in case that he rolls back, there is a reminder.
        """
        d = self.dependencies.c
        edge = self.dependencies.alias("edge")
        left = (
            sa.select(edge.c.child_id, edge.c.parent_id)
            .where(
                edge.c.parent_id == sa.any_(array("ids", sa.Uuid)),
                edge.c.lifted_at.is_(None),
                sa.or_(edge.c.look_at.is_(None), edge.c.look_at > sa.func.now()),
            )
            .cte("left")
        )
        had = (
            sa.select(d.child_id, d.parent_id)
            .where(d.child_id == left.c.child_id, d.parent_id == left.c.parent_id, _unlifted(d))
            .with_for_update(of=self.dependencies, skip_locked=True)
            .cte("had")
        )
        marked = (
            sa.update(self.dependencies)
            .values(look_at=clock())
            .where(d.child_id == had.c.child_id, d.parent_id == had.c.parent_id)
            .returning(d.child_id)
            .cte("marked")
        )
        # Counted: an anti-join, planned for one row of each, would pair ten thousand with ten thousand.
        counted = sa.union_all(
            sa.select(left.c.child_id, sa.literal_column("1").label("n")),
            sa.select(marked.c.child_id, sa.literal_column("-1").label("n")),
        ).subquery("counted")
        return sa.insert(self.dependencies).from_select(
            ["child_id", "parent_id", "lifted_at", "look_at"],
            sa.select(counted.c.child_id, sa.func.gen_random_uuid(), clock(), clock())
            .group_by(counted.c.child_id)
            .having(sa.func.sum(counted.c.n) > 0),
        )

    @functools.lru_cache(maxsize=16)  # noqa: B019
    def to_look_at(self, size: int) -> sa.Select[Any]:
        """Lock the children of edges whose time has come, the longest due first, at most `size` edges.

        Passes over children that somebody has locked: counted, a hundred of them would hide all others.
        """
        d, t = self.dependencies.c, self.tasks.c
        return (
            sa.select(d.child_id)
            .select_from(self.dependencies.join(self.tasks, t.id == d.child_id))
            .where(self._is_due())
            .order_by(d.look_at)
            .limit(sa.literal_column(str(size)))
            .with_for_update(of=self.tasks, skip_locked=True)
        )

    @functools.cached_property
    def strays(self) -> sa.Select[Any]:
        """Edges whose time has come and whose child is gone: (child_id); only SQL written by hand leaves such."""
        d, t = self.dependencies.c, self.tasks.c
        return sa.select(d.child_id).where(self._is_due(), ~sa.exists().where(t.id == d.child_id)).order_by(d.look_at)

    def _is_due(self) -> ColumnElement[bool]:
        return self.dependencies.c.look_at.between(sa.bindparam("floor", type_=INSTANT), sa.func.now())

    @functools.cached_property
    def next_look(self) -> sa.Select[Any]:
        """(seconds until the earliest look_at, when that is); NULLs when no edge is to be looked at."""
        d = self.dependencies.c
        earliest = (
            sa.select(d.look_at)
            .where(d.look_at >= sa.bindparam("floor", type_=INSTANT))
            .order_by(d.look_at)
            .limit(sa.literal_column("1"))
            .scalar_subquery()
        )
        wait = sa.cast(sa.func.extract("epoch", earliest - sa.func.clock_timestamp()), sa.Float)
        return sa.select(wait.label("wait"), earliest.label("earliest"))

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def rows(self, *, lock: bool) -> sa.Select[Any]:
        """(id, status, attempts, fence) of `ids`; lock: FOR UPDATE, in their order, but those that somebody has."""
        t = self.tasks.c
        found = sa.select(t.id, t.status, t.attempts, t.fence).where(self._ids()).order_by(t.id)
        return found.with_for_update(skip_locked=True) if lock else found

    @functools.cached_property
    def edges_due(self) -> sa.Select[Any]:
        """Lock the edges, and reminders, of the children in `ids` whose time has come: (child, parent, reminder)."""
        d = self.dependencies.c
        return (
            sa.select(d.child_id, d.parent_id, d.lifted_at.is_not(None).label("reminder"))
            .where(d.child_id == sa.any_(array("ids", sa.Uuid)), d.look_at <= sa.func.now())
            .order_by(d.child_id, d.parent_id)
            .with_for_update(skip_locked=True)
        )

    @functools.cached_property
    def late(self) -> sa.Update:
        """The edges of the children in `ids`, locked by the caller, whose parents have ended: look at them now."""
        d = self.dependencies.c
        edge, query = self._late()
        late = query.with_for_update(of=edge, skip_locked=True).cte("late")
        return (
            sa.update(self.dependencies)
            .values(look_at=sa.func.now())
            .where(d.child_id == late.c.child_id, d.parent_id == late.c.parent_id)
        )

    @functools.cached_property
    def forget(self) -> sa.Delete:
        """Remove the reminders of the children in `ids`, unless one of their edges still has to be made due."""
        d = self.dependencies.c
        late = self._late()[1].subquery("late")
        return sa.delete(self.dependencies).where(
            d.child_id == sa.any_(array("ids", sa.Uuid)),
            d.lifted_at.is_not(None),
            d.look_at <= sa.func.now(),
            ~sa.exists().where(late.c.child_id == d.child_id),
        )

    def _late(self) -> tuple[Any, sa.Select[Any]]:
        """(alias, query): edges of `ids` that nobody looks at now, though their parents have ended, or were pruned."""
        edge, parent = self.dependencies.alias("edge"), self.tasks.alias("parent")
        return edge, (
            sa.select(edge.c.child_id, edge.c.parent_id)
            .select_from(edge.outerjoin(parent, parent.c.id == edge.c.parent_id))
            .where(
                edge.c.child_id == sa.any_(array("ids", sa.Uuid)),
                _unlifted(edge.c),
                sa.or_(
                    sa.and_(edge.c.look_at.is_(None), parent.c.active.is_not(sa.true())),
                    sa.and_(edge.c.look_at > sa.func.now(), parent.c.active.is_(sa.false())),
                ),
            )
        )

    @functools.cached_property
    def put_off(self) -> sa.Update:
        """What is due of the children in `ids`, locked by the caller, is looked at `delay` from now."""
        d = self.dependencies.c
        edge = self.dependencies.alias("edge")
        due = (
            sa.select(edge.c.child_id, edge.c.parent_id)
            .where(edge.c.child_id == sa.any_(array("ids", sa.Uuid)), edge.c.look_at <= sa.func.now())
            .with_for_update(skip_locked=True)
            .cte("due")
        )
        return (
            sa.update(self.dependencies)
            .values(look_at=clock() + sa.bindparam("delay", type_=sa.Interval))
            .where(d.child_id == due.c.child_id, d.parent_id == due.c.parent_id)
        )

    @functools.cached_property
    def parents_alive(self) -> sa.Select[Any]:
        """Hold the parents in `ids` against their ending, but for those that somebody is ending: (id, status)."""
        t = self.tasks.c
        return (
            sa.select(t.id, t.status)
            .where(self._ids())
            .order_by(t.id)
            .with_for_update(read=True, key_share=True, skip_locked=True)
        )

    @functools.cached_property
    def looked_at(self) -> sa.Update:
        """The edges in the arrays need no more looking at: their parents are alive."""
        d = self.dependencies.c
        given = (
            sa.func.unnest(array("children", sa.Uuid), array("parents", sa.Uuid))
            .table_valued("child", "parent", name="given")
            .render_derived()
        )
        return (
            sa.update(self.dependencies)
            .values(look_at=sa.null())
            .where(d.child_id == given.c.child, d.parent_id == given.c.parent)
        )

    @functools.cached_property
    def ancestors(self) -> sa.Select[Any]:
        """Every edge, not yet lifted, on a way up from `ids`: (child_id, parent_id)."""
        d = self.dependencies.c
        base = sa.select(d.child_id, d.parent_id).where(d.child_id == sa.any_(array("ids", sa.Uuid)), _unlifted(d))
        up = base.cte("up", recursive=True)
        above = self.dependencies.alias("above")
        up = up.union(
            sa.select(above.c.child_id, above.c.parent_id)
            .select_from(above.join(up, above.c.child_id == up.c.parent_id))
            .where(_unlifted(above.c))
        )
        return sa.select(up.c.child_id, up.c.parent_id)

    @functools.cached_property
    def cascade(self) -> sa.Update:
        """Cancel the tasks in `ids`, locked FOR UPDATE by the caller, with `why`."""
        t = self.tasks.c
        return (
            self.move(Event.CASCADE)
            .values(last_error=sa.literal("cancelled: ") + sa.bindparam("why", type_=sa.Text))
            .where(self._ids())
            .returning(t.id, t.attempts, t.fence, t.last_error)
        )

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def parents(self, *, results: bool) -> sa.Select[Any]:
        """The parents of a task, in the order of their ids, with what became of them; NULL for results left out."""
        d, t = self.dependencies.c, self.tasks.c
        result = sa.cast(t.result if results else sa.null(), sa.Text).label("result")
        return (
            sa.select(d.parent_id, t.action, t.status, result, t.last_error, d.lifted_at, d.look_at)
            .select_from(self.dependencies.outerjoin(self.tasks, t.id == d.parent_id))
            .where(d.child_id == sa.bindparam("id", type_=sa.Uuid), sa.or_(d.lifted_at.is_(None), d.look_at.is_(None)))
            .order_by(d.parent_id)
        )


def _unlifted(edge: Any) -> ColumnElement[bool]:
    """For edges that are found by their child: with `lifted_at is null` the planner takes the index of that predicate,
    which begins with the parent, and walks over all of it.
    """
    return sa.func.num_nulls(edge.lifted_at) == sa.literal_column("1")


def _count() -> ColumnElement[int]:
    return sa.cast(sa.func.count(), sa.Integer)
