"""Delete what has ended long enough ago."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection

from .. import keys
from ..config import DEFAULTS, Limits
from ..options import Duration
from ..statements.prune import Kind
from ..task import Pruned
from .base import Base
from .values import LONG_AGO


class Pruning(Base):
    def prune(
        self,
        connection: Connection,
        *,
        retention: Duration = DEFAULTS.retention,
        dead: Duration | None = None,
        forever: bool = False,
        limit: int = Limits.BATCH,
        dry_run: bool = False,
        floor: datetime = LONG_AGO,
    ) -> Pruned:
        """Delete tasks that ended long ago, with their events and their edges to parents; a batch per call.

        retention: how long ago, by the server's clock, completed and cancelled tasks must have finished; 0: all of
        them. dead: the same for dead tasks, which are kept unless it is given. forever: also those that use up a key of
        `dedupe="forever"`, which can then be used again. limit: 1 … 1,000 tasks of one call; `more` says whether to
        call again. dry_run: count exactly what all such calls together would delete, and write nothing. floor: what
        finished earlier is not looked at.

        A task stays while another one waits for it, and while somebody has its row locked. Negative: InputError.
        """
        age = keys.check_duration(retention, field="retention")
        dead_age = None if dead is None else keys.check_duration(dead, field="dead")
        keys.check_int(limit, field="limit", low=1, high=Limits.BATCH)
        keys.check_instant(floor, field="floor")
        kinds: tuple[Kind, ...] = ("finished", "forever") if forever else ("finished",)
        if dead_age is not None:
            kinds = (*kinds, "all dead" if forever else "dead")
        bound = {"retention": age} | ({} if dead_age is None else {"dead": dead_age})
        if dry_run:
            return Pruned(**connection.execute(self.sql.count_prunable(kinds), bound).mappings().one())
        ids: list[object] = []
        for kind in kinds:
            if len(ids) < limit:
                query = self.sql.prunable(kind)
                ids += connection.execute(query, bound | {"floor": floor, "limit": limit - len(ids)}).scalars()
        if not ids:
            return Pruned()
        # The second statement sees what became a parent before the row was locked.
        gone = connection.execute(self.sql.delete_tasks, {"ids": ids}).all()
        if not gone:
            return Pruned(more=len(ids) == limit)
        names = {"ids": [row.id for row in gone]}
        edges = connection.execute(self.sql.delete_edges, names).one()
        events = connection.execute(self.sql.delete_events, names).scalar_one()
        finished = [row.finished_at for row in gone]
        # A parent that only these tasks held may go now.
        more = len(ids) == limit or edges.held > 0
        return Pruned(len(gone), events, edges.edges, min(finished), max(finished), more)
