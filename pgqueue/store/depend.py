"""Tasks that wait for others: what an ending does to them, and the sweep over what it could not reach."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import keys
from ..config import Limits
from ..edges import Fate, circle, fate, knotted
from ..errors import CircularDependency
from ..ids import tail
from ..journal import Entry
from ..lifecycle import Event, Status
from ..options import Enqueued, parent_ids
from ..task import Gated, Parent
from .base import Base
from .values import LONG_AGO, Swept, claim_size

EDGES = ""
"""What NOTIFY says, in a queue's place, when there are edges to look at."""

_OBJECTS_AGAIN = timedelta(minutes=1)
"""How long the sweep leaves a child alone whose row objected: first in line for ever, a few would hide all others."""


class Depending(Base):
    def _ended(self, connection: Connection, ended: Mapping[UUID, Status]) -> None:
        """Lift the edges of tasks that this transaction has just ended; cancel children whose parent ended badly.

        Children that somebody has locked are left to the sweep; so are all, where one objects to being written: its
        parent ends all the same. Hints to the queues of what became claimable.
        """
        # Most tasks are nobody's parent: one probe of one index says so.
        parents = list(connection.execute(self.sql.named_as_parents, {"ids": list(ended)}).scalars()) if ended else []
        if not parents:
            return
        failed = any(ended[parent] is not Status.COMPLETED for parent in parents)
        try:
            with connection.begin_nested():
                freed, missed = self._lift(connection, parents, failed=failed)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
            freed, missed = set(), parents
        if missed:
            connection.execute(self.sql.mark, {"ids": missed})
            freed.add(EDGES)
        if freed:
            connection.execute(self.sql.hint, {"queues": sorted(freed)}).all()

    def _lift(self, connection: Connection, parents: Sequence[UUID], *, failed: bool) -> tuple[set[str], list[UUID]]:
        """Level by level, each look in a statement of its own, until one finds nothing.

        Returns the queues in which something became claimable, and those whose children were not all to be had.
        """
        freed: set[str] = set()
        missed: list[UUID] = []
        cascaded: list[tuple[UUID, str, int, int, str | None, str | None]] = []
        while parents:
            rows = connection.execute(self.sql.lift(failed=failed), {"ids": list(parents)}).all()
            if any(row.what == "missed" for row in rows):
                missed += parents
            freed.update(row.queue for row in rows if row.what == "freed")
            parents = [row.id for row in rows if row.what == "cancelled"]
            cascaded += _cascaded(rows)
            failed = True
        self._record(connection, Event.CASCADE, cascaded)
        return freed, missed

    def _completed(self, connection: Connection, parents: Iterable[Sequence[UUID]]) -> set[UUID]:
        """Those of the parents that have completed: edges to them are lifted from the start, and not counted."""
        ids = {"ids": sorted({parent for of_child in parents for parent in of_child})}
        return set(connection.execute(self.sql.completed, ids).scalars()) if ids["ids"] else set()

    def _link(
        self,
        connection: Connection,
        parents: Mapping[UUID, Sequence[UUID]],
        *,
        done: Collection[UUID],
        gate: bool = False,
    ) -> None:
        """Write the edges of children that this transaction has inserted, or locked and unlinked.

        Their waiting_on counts the parents that are not among `done`.
        """
        pairs = [(child, parent) for child, of_child in parents.items() for parent in of_child]
        if pairs:
            connection.execute(
                self.sql.link(gate=gate),
                {
                    "children": [child for child, _ in pairs],
                    "parents": [parent for _, parent in pairs],
                    "done": [parent in done for _, parent in pairs],
                },
            )

    def _refuse_circle(
        self, connection: Connection, parents: Mapping[UUID, Sequence[UUID]], *, gate: bool = False
    ) -> None:
        """CircularDependency where new edges would close a circle that can be seen now.

        gate: the edges of tasks that are there; else of an enqueue, which adopts an id that is there already, whatever
        its edges were to be.
        """
        above = {parent for of_child in parents.values() for parent in of_child}
        named = above.intersection(parents)
        named.update(connection.execute(self.sql.named_as_parents, {"ids": list(parents)}).scalars())
        if named and not gate:
            there = {row.id for row in connection.execute(self.sql.rows(lock=False), {"ids": list(parents)})}
            parents = {child: of_child for child, of_child in parents.items() if child not in there}
            named -= there
        if not named:
            return
        graph: dict[UUID, list[UUID]] = {child: list(parents[child]) for child in parents}
        for child, parent in connection.execute(self.sql.ancestors, {"ids": sorted(above)}):
            if child not in parents:
                graph.setdefault(child, []).append(parent)
        for child in sorted(named & self._knots(connection, graph, new=parents)):
            path = circle(child, graph)
            if path:
                raise CircularDependency(
                    f"task {tail(child)} would wait for itself: {_path(path)}; leave one of these edges out",
                    task_id=child,
                    path=path,
                )

    def set_gate(
        self,
        connection: Connection,
        task_id: UUID,
        /,
        *,
        depends_on: Iterable[UUID | Enqueued] = (),
        requires: Iterable[str] = (),
        on_parent_failure: Literal["cancel", "run"] = "cancel",
        by: str | None = None,
    ) -> Gated:
        """Make a pending task's gates exactly these, whatever it had before; none at all lets it go.

        A parent need not exist yet: gate first, then enqueue it with that id. A task that is not pending is left as it
        is; the answer, true only where the gates were set, says what it is instead. A caller who gates a task that was
        there before, to keep it behind one that he is about to enqueue, must give up where the answer is false: it runs
        already, ungated.

        Raises CircularDependency where the circle can be seen (where two calls close one at once, the sweep cancels its
        youngest member), InputError for the task itself or more than 10,000 parents.
        """
        keys.check_id(task_id)
        parents = parent_ids(depends_on)
        names = keys.check_names(requires, field="requires")
        keys.check_choice(on_parent_failure, field="on_parent_failure", choices=("cancel", "run"))
        if task_id in parents:
            raise keys.refuse("depends_on", f"names task {task_id} itself", "leave it out")
        row = connection.execute(self.sql.lock(ending=False), {"ids": [task_id]}).first()
        if row is None or row.status != Status.PENDING:
            return Gated(task_id, None if row is None else Status(row.status))
        self._refuse_circle(connection, {task_id: parents}, gate=True)
        connection.execute(self.sql.unlink, {"ids": [task_id]})
        done = self._completed(connection, [parents])
        waits_for = len(parents) - len(done)
        connection.execute(
            self.sql.gate,
            {"task_id": task_id, "waiting_on": waits_for, "requires": names, "on_failure": on_parent_failure},
        )
        self._link(connection, {task_id: parents}, done=done, gate=True)
        says = f"{len(parents)} parent(s), requires {', '.join(names) or 'nothing'}"
        self._note(connection, Entry.GATE, [(task_id, row.status, row.attempts, row.fence, by, says)])
        connection.execute(self.sql.hint, {"queues": [row.queue]}).all()
        return Gated(task_id, Status.PENDING)

    def parents(self, connection: Connection, task_id: UUID, /, *, results: bool = True) -> list[Parent]:
        """The tasks that this one depends on, in the order of their ids, with what became of them; may be empty.

        A parent that was pruned, or never appeared, is there with status None. results: off, to leave out what the
        parents returned: there may be 10,000 of them, each with as much as 1 MiB.
        """
        keys.check_id(task_id)
        return [
            Parent(
                row.parent_id,
                row.action,
                None if row.status is None else Status(row.status),
                row.result,
                row.last_error,
                row.lifted_at,
                row.look_at,
            )
            for row in connection.execute(self.sql.parents(results=results), {"id": task_id})
        ]

    def sweep(
        self,
        connection: Connection,
        *,
        limit: int = 100,
        floor: datetime = LONG_AGO,
        children: Sequence[UUID] | None = None,
    ) -> list[Swept]:
        """Look at edges whose time has come: what a commit or an ending had to leave, and parents that are absent.

        limit: 1 … 1,000 edges, about. children: only theirs, as many as they are. Returns what became of each edge:
        `Fate.LATER` where somebody has the parent locked, or one of `children`; other children that somebody has locked
        are passed over. A child that cannot be written holds up nobody else.
        """
        keys.check_int(limit, field="limit", low=1, high=Limits.BATCH)
        keys.check_instant(floor, field="floor")
        for child in children or ():
            keys.check_id(child, field="children")
        if children is not None:
            return self._each_isolated(connection, children, self._sweep) if children else []
        size = claim_size(limit)
        found = connection.execute(self.sql.to_look_at(size), {"floor": floor}).scalars().all()
        if len(found) < size:
            strays = connection.execute(self.sql.strays, {"floor": floor}).scalars().all()
            found = [*found, *strays]
        children = sorted(set(found))
        if not children:
            return []
        went: set[UUID] = set()

        def sweep(connection: Connection, children: Sequence[UUID]) -> list[Swept]:
            swept = self._sweep(connection, children)
            went.update(children)
            return swept

        swept: list[Swept] = self._each_isolated(connection, children, sweep)
        objected = sorted(set(children) - went)
        if objected:
            connection.execute(self.sql.put_off, {"ids": objected, "delay": _OBJECTS_AGAIN})
        return swept

    def _sweep(self, connection: Connection, children: Sequence[UUID]) -> list[Swept]:
        held = {row.id: row for row in connection.execute(self.sql.rows(lock=True), {"ids": list(children)})}
        passed_over = [child for child in children if child not in held]
        swept = self._passed_over(connection, passed_over) if passed_over else []
        if not held:
            return swept
        edges = self._due_edges(connection, sorted(held))
        if not edges:
            return swept
        fates, whys = self._fates(connection, edges)
        waiting = [edge for edge in edges if fates[edge] is Fate.WAIT]
        broken, unbroken = self._break_circles(connection, sorted({child for child, _ in waiting}))
        fates |= {edge: Fate.LATER for edge in waiting if edge[0] in unbroken}
        waiting = [edge for edge in waiting if edge[0] not in unbroken]
        if waiting:
            pairs = {"children": [child for child, _ in waiting], "parents": [parent for _, parent in waiting]}
            connection.execute(self.sql.looked_at, pairs)
        ended = [edge for edge in edges if fates[edge] in (Fate.LIFT, Fate.FAIL, Fate.LET_GO)]
        again = sorted({child for child, parent in edges if fates[child, parent] is Fate.LATER})
        gone = set(broken)
        if ended:
            rows = connection.execute(
                self.sql.resolve,
                {
                    "children": [child for child, _ in ended],
                    "parents": [parent for _, parent in ended],
                    "fails": [fates[edge] is Fate.FAIL for edge in ended],
                    "whys": [whys[edge] for edge in ended],
                },
            ).all()
            self._note(
                connection,
                Entry.LET_GO,
                [
                    (child, Status.PENDING.value, held[child].attempts, held[child].fence, None, whys[child, parent])
                    for child, parent in ended
                    if fates[child, parent] is Fate.LET_GO
                    and held[child].status == Status.PENDING
                    and child not in broken
                ],
            )
            self._record(connection, Event.CASCADE, _cascaded(rows))
            freed = sorted({row.queue for row in rows if row.what == "freed"})
            if freed:
                connection.execute(self.sql.hint, {"queues": freed}).all()
            gone |= {row.id for row in rows if row.what == "cancelled"}
        if again:
            # To the end of the line.
            connection.execute(self.sql.put_off, {"ids": again, "delay": timedelta(0)})
        self._ended(connection, dict.fromkeys(sorted(gone), Status.CANCELLED))
        return swept + [Swept(child, parent, fates[child, parent]) for child, parent in edges]

    def _due_edges(self, connection: Connection, children: Sequence[UUID]) -> list[tuple[UUID, UUID]]:
        """The edges of these children, which the caller has locked, that are due; first those of which a reminder says
        that they are.
        """
        ids = {"ids": list(children)}
        rows = connection.execute(self.sql.edges_due, ids).all()
        reminded = sorted({row.child_id for row in rows if row.reminder})
        if reminded:
            connection.execute(self.sql.late, {"ids": reminded})
            connection.execute(self.sql.forget, {"ids": reminded})
            rows = connection.execute(self.sql.edges_due, ids).all()
        return [(row.child_id, row.parent_id) for row in rows if not row.reminder]

    def _passed_over(self, connection: Connection, children: Sequence[UUID]) -> list[Swept]:
        """Children that could not be locked: somebody has them, or they are gone and so must their edges be."""
        there = {row.id for row in connection.execute(self.sql.rows(lock=False), {"ids": list(children)})}
        gone = [child for child in children if child not in there]
        if gone:
            connection.execute(self.sql.unlink, {"ids": gone})
        return [Swept(child, None, Fate.LATER if child in there else Fate.LET_GO) for child in children]

    def _fates(
        self, connection: Connection, edges: Sequence[Any]
    ) -> tuple[dict[tuple[UUID, UUID], Fate], dict[tuple[UUID, UUID], str]]:
        ids = {"ids": sorted({parent for _, parent in edges})}
        alive = {row.id for row in connection.execute(self.sql.parents_alive, ids)}
        # Read after they were locked: what is held cannot end any more, and of the others the answer is as of now.
        status = {row.id: Status(row.status) for row in connection.execute(self.sql.rows(lock=False), ids)}
        fates = {(child, parent): fate(status.get(parent), locked=parent in alive) for child, parent in edges}
        return fates, {edge: _why(edge[1], status.get(edge[1])) for edge in fates}

    def _break_circles(self, connection: Connection, children: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
        """Cancel the youngest member of each circle that these are part of.

        Returns whom, and those of the children whose circle could not be broken: somebody has that member locked.
        """
        cancelled: set[UUID] = set()
        unbroken: set[UUID] = set()
        if not children:
            return cancelled, unbroken
        graph = self._graph(connection, children)
        for child in sorted(self._knots(connection, graph).intersection(children)):
            path = circle(child, graph)
            if not path or cancelled.intersection(path):
                continue
            youngest = max(path)
            held = connection.execute(self.sql.rows(lock=True), {"ids": [youngest]}).first()
            # Looked at again: its gates may have been changed before it was locked.
            again = self._graph(connection, [youngest]) if held is not None else {}
            path = circle(youngest, again) if youngest in self._knots(connection, again) else ()
            if not path or max(path) != youngest:
                unbroken.add(child)
                continue
            why = f"it waits for itself: {_path(path)}"
            for row in connection.execute(self.sql.cascade, {"ids": [youngest], "why": why}).all():
                cancelled.add(row.id)
                self._record(
                    connection, Event.CASCADE, [(row.id, "cancelled", row.attempts, row.fence, None, row.last_error)]
                )
        return cancelled, unbroken

    def _graph(self, connection: Connection, children: Iterable[UUID]) -> dict[UUID, list[UUID]]:
        graph: dict[UUID, list[UUID]] = {}
        for child, parent in connection.execute(self.sql.ancestors, {"ids": list(children)}):
            graph.setdefault(child, []).append(parent)
        return graph

    def _knots(self, connection: Connection, graph: dict[UUID, list[UUID]], *, new: Collection[UUID] = ()) -> set[UUID]:
        """Who waits for himself, by the graph, from which it takes those who wait for nobody any more.

        A task that was cancelled keeps its edges. new: who is not there yet.
        """
        knots: set[UUID] = knotted(graph)
        there = sorted(knots.difference(new))
        if there:
            rows = connection.execute(self.sql.rows(lock=False), {"ids": there})
            ended = [row.id for row in rows if row.status != Status.PENDING]
            for task_id in ended:
                del graph[task_id]
            knots = knotted(graph) if ended else knots
        return knots

    def next_look(self, connection: Connection, *, floor: datetime = LONG_AGO) -> tuple[float | None, datetime | None]:
        """(seconds until the earliest edge is to be looked at, the instant), or (None, None) when there is none."""
        row = connection.execute(self.sql.next_look, {"floor": floor}).one()
        return row.wait, row.earliest


def _cascaded(rows: Iterable[Any]) -> list[tuple[UUID, str, int, int, str | None, str | None]]:
    return [
        (row.id, Status.CANCELLED.value, row.attempts, row.fence, None, row.why)
        for row in rows
        if row.what == "cancelled"
    ]


def _why(parent: UUID, status: Status | None) -> str:
    return f"its parent {parent} never appeared" if status is None else f"its parent {parent} is {status.value}"


def _path(path: Sequence[UUID]) -> str:
    return " → ".join(str(task_id) for task_id in path)
