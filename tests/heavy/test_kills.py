"""Fifty workers killed at random under load: every task ends, none is held by two, none runs more often than it may.

The workers are forks of one warmed process, which imported everything and used the database before its first fork.
Each execution writes its start and its end into a table; the journal says when a lease ran out. What somebody holds,
he holds from the start of his execution until its end or, where there is none, until the reaper took it from him.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import UUID

import psycopg
import pytest

from pgqueue import App, Context, Status

from ..support import Sql, eventually

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
KILLS, WORKERS, CONCURRENCY, LEASE = 50, 4, 4, 1.5
TASKS, AGENTS, MAX_ATTEMPTS = 1200, 12, 6
OF_ACTION = ("work", "awork")


# -- the warmed process and its forks


def declare(url: str) -> App:
    """The app of every worker: half its handlers are `def`, half `async def`."""
    import asyncio

    app = App(url)
    local = threading.local()

    def note(text: str, ctx: Context) -> None:
        if not hasattr(local, "connection"):
            local.connection = psycopg.connect(url, autocommit=True)
        local.connection.execute(text, {"id": ctx.id, "fence": ctx.fence, "agent": ctx.agent, "pid": os.getpid()})

    start = "insert into executions (task_id, fence, agent, pid) values (%(id)s, %(fence)s, %(agent)s, %(pid)s)"
    end = "update executions set ended_at = clock_timestamp() where task_id = %(id)s and fence = %(fence)s"

    @app.task(max_attempts=MAX_ATTEMPTS, backoff=lambda n: 0.1)
    def work(ctx: Context, n: int) -> int:
        note(start, ctx)
        time.sleep(random.uniform(0.005, 0.06))
        note(end, ctx)
        return n

    @app.task(max_attempts=MAX_ATTEMPTS, backoff=lambda n: 0.1)
    async def awork(ctx: Context, n: int) -> int:
        note(start, ctx)
        await asyncio.sleep(random.uniform(0.005, 0.06))
        note(end, ctx)
        return n

    return app


def nursery(url: str) -> None:
    """Fork a worker for each line on stdin and say its pid; ends with stdin."""
    app = declare(url)
    app.client.stats()  # an engine with an open connection, which no fork may use
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            os._exit(app.run_worker(concurrency=CONCURRENCY, lease=LEASE, poll=0.2, maintenance=0.5, drain=20))
        app.client.stats()
        print(pid, flush=True)
    app.client.close()


class Nursery:
    """The warmed process, as the test sees it."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; from {__name__} import nursery; nursery(sys.argv[1])", url],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.alive: list[int] = []

    def fork(self) -> int:
        stdin, stdout = self._pipes()
        stdin.write("fork\n")
        stdin.flush()
        assert select.select([stdout], [], [], 30)[0], "the warmed process does not answer"
        self.alive.append(int(stdout.readline()))
        return self.alive[-1]

    def kill_one(self) -> int:
        pid = self.alive.pop(random.randrange(len(self.alive)))
        os.kill(pid, signal.SIGKILL)
        return pid

    def close(self, number: signal.Signals) -> None:
        for pid in self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        eventually(lambda: not any(Path(f"/proc/{pid}").exists() or _exists(pid) for pid in self.alive))
        stdin, stdout = self._pipes()
        stdin.close()
        stdout.close()
        assert self._process.wait(30) == 0

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# -- what was seen


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


def overlaps(mine: list[Hold]) -> list[tuple[Hold, Hold]]:
    """Pairs, in the order of their starts, of which the second began before the first had ended."""
    return [(one, other) for one, other in itertools.pairwise(mine) if one.ends and other.begins < one.ends]


@pytest.fixture
def forks(database_url: str, sql: Sql) -> Iterator[Nursery]:
    sql(
        """
        create table executions (
            task_id uuid, fence int, agent text, pid int,
            started_at timestamptz default clock_timestamp(), ended_at timestamptz,
            primary key (task_id, fence))
        """
    )
    made = Nursery(database_url)
    yield made
    made.close(signal.SIGKILL)


def enqueue(app: App, count: int, start: int) -> set[UUID]:
    made = app.client.enqueue_many(
        app.action(OF_ACTION[n % 2]).using(agent=f"host-{n // 4 % AGENTS}" if n % 4 < 2 else None).new(n=n)
        for n in range(start, start + count)
    )
    return {one.id for one in made}


def test_fifty_killed_workers_lose_nothing_and_double_nothing(forks: Nursery, database_url: str, sql: Sql) -> None:
    app = declare(database_url)
    wanted: set[UUID] = set()
    killed: list[int] = []
    for _ in range(WORKERS):
        forks.fork()
    for kill in range(KILLS):
        # Under load: there is always something due, and half of what is running is an agent's.
        wanted |= enqueue(app, TASKS // KILLS, kill * (TASKS // KILLS))
        # No moment is special: neither that of a fork nor any within a task.
        time.sleep(random.uniform(0.02, 0.25))
        killed.append(forks.kill_one())
        forks.fork()
    assert len(set(killed)) == KILLS

    def active() -> int:
        stats: dict[str, Any] = app.client.stats()
        return int(stats["pending"] + stats["running"])

    eventually(lambda: active() == 0, timeout=60)
    app.client.close()
    forks.close(signal.SIGTERM)
    forks.alive.clear()

    tasks = sql("select id, status, attempts, max_attempts, fence, agent from pgqueue.tasks")
    assert {task_id for task_id, *_ in tasks} == wanted
    assert {status for _, status, *_ in tasks} <= {Status.COMPLETED, Status.DEAD}
    assert [row for row in tasks if not row[2] <= row[3] or (row[1] == Status.DEAD and row[2] < row[3])] == []
    assert sum(status == Status.COMPLETED for _, status, *_ in tasks) > 0.9 * TASKS

    seen = holds(sql)
    assert [hold for hold in seen if hold.ends is None] == [], "somebody's hold never ended"
    by_task: dict[UUID, list[Hold]] = defaultdict(list)
    by_agent: dict[str, list[Hold]] = defaultdict(list)
    for hold in seen:
        by_task[hold.task_id].append(hold)
        if hold.agent is not None:
            by_agent[hold.agent].append(hold)
    fences = {task_id: fence for task_id, _, _, _, fence, _ in tasks}
    for task_id, mine in by_task.items():
        order = [hold.fence for hold in mine]
        assert order == sorted(set(order)), "a later execution had an earlier fence"
        assert order[-1] <= fences[task_id]
        assert overlaps(mine) == []
    assert len(by_agent) == AGENTS
    for agent, mine in by_agent.items():
        assert overlaps(mine) == [], agent
    # Else nothing was proved: kills hit tasks that were running, and others took them over.
    again = [mine for mine in by_task.values() if len(mine) > 1]
    assert again, "no kill hit anything"
    assert {mine[0].pid for mine in again} & set(killed)
