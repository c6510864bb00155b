"""200 rolling restarts under load, half of them with a second signal: nobody pays for a deployment.

A graceful stop burns no attempt, and what has finished is not run again. After a second signal a thread cannot be
stopped: its task is given back just before the process ends, so in that moment, and only then, its handler may come to
its end in vain; how often that was is printed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import deque
from collections.abc import Iterator
from uuid import UUID

import pytest

from pgqueue import App, Context

from ..heavy.test_kills import active
from ..support import Sql, eventually
from ..support.executions import TABLE, assert_none_double_held, holds, notes
from ..support.forks import Nursery, exists

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

RESTARTS, WORKERS, AGENTS, PER_RESTART, BACKLOG = 200, 3, 7, 12, 60
ACTIONS = ("work", "awork", "work", "awork", "sleeper", "asleeper", "deaf", "work")


def declare(url: str) -> App:
    app = App(url)
    starts, ends = notes(url)

    @app.task
    def work(ctx: Context) -> None:
        starts(ctx)
        time.sleep(random.uniform(0.005, 0.05))
        ends(ctx)

    @app.task
    async def awork(ctx: Context) -> None:
        starts(ctx)
        await asyncio.sleep(random.uniform(0.005, 0.05))
        ends(ctx)

    @app.task
    def sleeper(ctx: Context) -> None:
        starts(ctx)
        ctx.sleep(random.uniform(0.2, 0.6))
        ctx.check()
        ends(ctx)

    @app.task
    async def asleeper(ctx: Context) -> None:
        starts(ctx)
        await asyncio.sleep(random.uniform(0.2, 0.6))
        ends(ctx)

    @app.task
    def deaf(ctx: Context) -> None:
        """It does not look whether it is to stop."""
        starts(ctx)
        time.sleep(random.uniform(0.2, 1.5))
        ends(ctx)

    return app


@pytest.fixture
def forks(database_url: str, sql: Sql) -> Iterator[Nursery]:
    sql(TABLE)
    with Nursery(database_url, declare, concurrency=8, lease=30, poll=0.2, maintenance=0.5, drain=20) as made:
        yield made


def enqueue(app: App, start: int) -> set[UUID]:
    return {
        made.id
        for made in app.client.enqueue_many(
            app.action(ACTIONS[n % len(ACTIONS)]).using(agent=f"host-{n % AGENTS}" if n % 3 == 0 else None).new()
            for n in range(start, start + PER_RESTART)
        )
    }


def test_two_hundred_rolling_restarts_burn_no_attempt_and_repeat_nothing(
    forks: Nursery, database_url: str, sql: Sql
) -> None:
    app = declare(database_url)
    wanted: set[UUID] = set()
    for _ in range(WORKERS):
        forks.fork()
    stopped: deque[int] = deque()
    twice: set[int] = set()
    for number in range(RESTARTS):
        forks.fork()
        pid = forks.alive.pop(0)
        # It has begun: a signal before that ends a program that is only loading, and nothing is at stake.
        while True:
            if active(app) < BACKLOG:
                wanted |= enqueue(app, len(wanted))
            if sql("select 1 from executions where pid = %s limit 1", pid):
                break
            time.sleep(0.05)
        os.kill(pid, signal.SIGTERM)
        stopped.append(pid)
        if number % 2:
            time.sleep(random.uniform(0.02, 0.2))
            twice.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        while len(stopped) > 4:
            last = stopped.popleft()
            eventually(lambda last=last: not exists(last))  # type: ignore[misc]
    eventually(lambda: active(app) == 0, timeout=60)
    app.client.close()
    forks.close(signal.SIGTERM)
    eventually(lambda: not any(exists(pid) for pid in stopped))

    statuses = forks.statuses()
    assert len(statuses) == RESTARTS + WORKERS
    assert {status for pid, status in statuses.items() if pid not in twice} == {0}
    assert {statuses[pid] for pid in twice} <= {0, 70}

    tasks = sql("select id, status, attempts, fence from pgqueue.tasks")
    assert {task_id for task_id, *_ in tasks} == wanted
    assert {(status, attempts) for _, status, attempts, _ in tasks} == {("completed", 1)}, "a stop burnt an attempt"
    assert sql("select event, count(*) from pgqueue.task_events where event in ('expire', 'fail') group by 1") == []
    by_task = assert_none_double_held(holds(sql), {task_id: fence for task_id, _, _, fence in tasks})
    in_vain = sql(
        "select x.pid, t.action from executions x join pgqueue.tasks t on t.id = x.task_id"
        " where x.ended_at is not null and x.fence < t.fence"
    )
    wrongly = [(pid, action) for pid, action in in_vain if statuses[pid] != 70 or action != "deaf"]
    assert wrongly == [], "what had finished was run again, and no thread was left behind"
    again = sum(len(mine) > 1 for mine in by_task.values())
    assert again, "no second signal cut anything short"
    behind = sum(status == 70 for status in statuses.values())
    print(
        f"\n{RESTARTS} restarts, {len(twice)} with a second signal ({behind} left a thread behind), {len(tasks)} tasks,"
        f" {again} given back and run again, {len(in_vain)} ended in the last moment, in vain; 0 attempts burnt"
    )
