"""Fifty workers killed at random under load: every task ends, none is held by two, none runs more often than it may.

Each execution writes its start and its end into a table; the journal says when a lease ran out.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from pgqueue import App, Context, Status

from ..support import Sql, eventually
from ..support.executions import TABLE, assert_none_double_held, holds, notes
from ..support.forks import Nursery

pytestmark = pytest.mark.heavy

KILLS, WORKERS, CONCURRENCY, LEASE = 50, 4, 4, 1.5
TASKS, AGENTS, MAX_ATTEMPTS = 1200, 12, 6
OF_ACTION = ("work", "awork")


def declare(url: str) -> App:
    """The app of every worker: half its handlers are `def`, half `async def`."""
    import asyncio

    app = App(url)
    starts, ends = notes(url)

    @app.task(max_attempts=MAX_ATTEMPTS, backoff=lambda n: 0.1)
    def work(ctx: Context, n: int) -> int:
        starts(ctx)
        time.sleep(random.uniform(0.005, 0.06))
        ends(ctx)
        return n

    @app.task(max_attempts=MAX_ATTEMPTS, backoff=lambda n: 0.1)
    async def awork(ctx: Context, n: int) -> int:
        starts(ctx)
        await asyncio.sleep(random.uniform(0.005, 0.06))
        ends(ctx)
        return n

    return app


@pytest.fixture
def forks(database_url: str, sql: Sql) -> Iterator[Nursery]:
    sql(TABLE)
    with Nursery(
        database_url, declare, concurrency=CONCURRENCY, lease=LEASE, poll=0.2, maintenance=0.5, drain=20
    ) as made:
        yield made


def enqueue(app: App, count: int, start: int) -> set[UUID]:
    made = app.client.enqueue_many(
        app.action(OF_ACTION[n % 2]).using(agent=f"host-{n // 4 % AGENTS}" if n % 4 < 2 else None).new(n=n)
        for n in range(start, start + count)
    )
    return {one.id for one in made}


def assert_all_ended(sql: Sql, wanted: set[UUID]) -> dict[UUID, int]:
    """Every task is terminal, within its attempts and for a reason; returns their fences."""
    tasks = sql("select id, status, attempts, max_attempts, fence from pgqueue.tasks")
    assert {task_id for task_id, *_ in tasks} == wanted
    assert {status for _, status, *_ in tasks} <= {Status.COMPLETED, Status.DEAD}
    assert [row for row in tasks if not row[2] <= row[3] or (row[1] == Status.DEAD and row[2] < row[3])] == []
    assert sum(status == Status.COMPLETED for _, status, *_ in tasks) > 0.9 * len(tasks)
    return {task_id: fence for task_id, *_, fence in tasks}


def active(app: App) -> int:
    stats: dict[str, Any] = app.client.stats()
    return int(stats["pending"] + stats["running"])


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
    eventually(lambda: active(app) == 0, timeout=60)
    app.client.close()
    forks.close(signal.SIGTERM)
    forks.alive.clear()

    fences = assert_all_ended(sql, wanted)
    by_task = assert_none_double_held(holds(sql), fences)
    assert len({mine[0].agent for mine in by_task.values()} - {None}) == AGENTS
    # Else nothing was proved: kills hit tasks that were running, and others took them over.
    again = [mine for mine in by_task.values() if len(mine) > 1]
    assert again, "no kill hit anything"
    assert {mine[0].pid for mine in again} & set(killed)
