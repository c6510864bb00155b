"""Who ran what, from when until when: written by the handlers of `noted`, and read back together with the journal.

What somebody holds, he holds from the start of his execution until its end or, where there is none, until the reaper
took it from him or he gave it back.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import psycopg

from pgqueue import Context

from .databases import Sql

__all__ = ["TABLE", "Hold", "assert_none_double_held", "holds", "notes"]

TABLE = """
    create table executions (
        task_id uuid, fence int, agent text, pid int,
        started_at timestamptz default clock_timestamp(), ended_at timestamptz,
        primary key (task_id, fence))
"""
_START = "insert into executions (task_id, fence, agent, pid) values (%(id)s, %(fence)s, %(agent)s, %(pid)s)"
_END = "update executions set ended_at = clock_timestamp() where task_id = %(id)s and fence = %(fence)s"


def notes(url: str) -> tuple[Callable[[Context], None], Callable[[Context], None]]:
    """`(starts, ends)` for handlers to call; each thread has a connection of its own."""
    local = threading.local()

    def note(text: bytes, ctx: Context) -> None:
        if not hasattr(local, "connection"):
            local.connection = psycopg.connect(url, autocommit=True)
        local.connection.execute(text, {"id": ctx.id, "fence": ctx.fence, "agent": ctx.agent, "pid": os.getpid()})

    return lambda ctx: note(_START.encode(), ctx), lambda ctx: note(_END.encode(), ctx)


class Hold(NamedTuple):
    """One execution: who ran what, from when, and until when the task was his."""

    task_id: UUID
    fence: int
    agent: str | None
    pid: int
    begins: datetime
    ends: datetime | None


def holds(sql: Sql) -> list[Hold]:
    rows = sql(
        """
        select x.task_id, x.fence, x.agent, x.pid, x.started_at, coalesce(e.at, x.ended_at)
        from executions x
        left join (select task_id, fence, min(at) as at from pgqueue.task_events
                   where event in ('expire', 'fail', 'release') group by 1, 2) e using (task_id, fence)
        order by x.started_at
        """
    )
    # Without those that began when they held nothing any more: a stalled machine may do that, and the fence is for it.
    return [hold for row in rows if (hold := Hold(*row)).ends is None or hold.begins < hold.ends]


def assert_none_double_held(seen: Iterable[Hold], fences: dict[UUID, int]) -> dict[UUID, list[Hold]]:
    """No task is held by two, nor any agent; later executions have later fences. Returns the holds by task."""
    by_task: dict[UUID, list[Hold]] = defaultdict(list)
    by_agent: dict[str, list[Hold]] = defaultdict(list)
    for hold in seen:
        assert hold.ends is not None, f"a hold never ended: {hold}"
        by_task[hold.task_id].append(hold)
        if hold.agent is not None:
            by_agent[hold.agent].append(hold)
    for task_id, mine in by_task.items():
        order = [hold.fence for hold in mine]
        assert order == sorted(set(order)), "a later execution had an earlier fence"
        assert order[-1] <= fences[task_id]
        assert _overlaps(mine) == []
    for agent, mine in by_agent.items():
        assert _overlaps(mine) == [], agent
    return by_task


def _overlaps(mine: list[Hold]) -> list[tuple[Any, Any]]:
    """Pairs, in the order of their starts, of which the second began before the first had ended."""
    return [(one, other) for one, other in itertools.pairwise(mine) if one.ends and other.begins < one.ends]
