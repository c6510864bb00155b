"""SIGKILL 500 times under load: nothing is lost or doubled, and what a dead worker held runs again within a second.

One worker is never killed: in a fleet of which nobody lives for a third of a lease, no reaper is ever sure that holders
had the time to renew, and all of them wait.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from uuid import UUID

import pytest

from ..heavy.test_kills import active, assert_all_ended, declare, enqueue
from ..support import Sql, eventually
from ..support.executions import TABLE, assert_none_double_held, holds
from ..support.figures import percentile
from ..support.forks import Nursery

pytestmark = [pytest.mark.stress, pytest.mark.timeout(400)]

KILLS, WORKERS, PER_KILL, LEASE = 500, 4, 6, 1.5
WITHIN = 1.0
"""Seconds from a lease's expiry to the next execution, at the 99th percentile: the queue's own promise."""

WATCH = """
    create table expiries (task_id uuid, fence int, attempts int, agent text, expired_at timestamptz);
    create table claims (task_id uuid, fence int, claimed_at timestamptz);
    create function watch() returns trigger language plpgsql as $$ begin
      if new.status = 'running' then
        insert into claims values (new.id, new.fence, clock_timestamp());
      else
        insert into expiries values (old.id, old.fence, old.attempts, old.agent, old.lease_expires_at);
      end if;
      return null;
    end $$;
    create trigger claimed after update on pgqueue.tasks for each row
      when (old.status = 'pending' and new.status = 'running' and new.attempts > 1) execute function watch();
    create trigger expired after update on pgqueue.tasks for each row
      when (old.status = 'running' and new.status = 'pending' and old.lease_expires_at < clock_timestamp())
      execute function watch();
"""


@pytest.fixture
def forks(database_url: str, sql: Sql) -> Iterator[Nursery]:
    sql(TABLE)
    sql(WATCH)
    with Nursery(database_url, declare, concurrency=4, lease=LEASE, poll=0.2, maintenance=0.5, drain=20) as made:
        yield made


def test_five_hundred_killed_workers_lose_nothing_and_what_they_held_runs_again_within_a_second(
    forks: Nursery, database_url: str, sql: Sql
) -> None:
    app = declare(database_url)
    wanted: set[UUID] = set()
    survivor = forks.fork()
    forks.alive.clear()
    for _ in range(WORKERS - 1):
        forks.fork()
    killed: set[int] = set()
    for kill in range(KILLS):
        wanted |= enqueue(app, PER_KILL, kill * PER_KILL)
        time.sleep(random.uniform(0.02, 0.2))
        killed.add(forks.kill_one())
        forks.fork()
    assert len(killed) == KILLS
    eventually(lambda: active(app) == 0, timeout=90)
    app.client.close()
    forks.alive.append(survivor)
    forks.close(signal.SIGTERM)
    forks.alive.clear()

    fences = assert_all_ended(sql, wanted)
    by_task = assert_none_double_held(holds(sql), fences)
    again = [mine for mine in by_task.values() if len(mine) > 1]
    assert {mine[0].pid for mine in again} & killed
    waits = [
        float(seconds)
        for (seconds,) in sql(
            "select extract(epoch from c.claimed_at - e.expired_at) from expiries e"
            " join claims c on c.task_id = e.task_id and c.fence = e.fence + 1 where e.attempts = 1"
        )
    ]
    dead = sql("select count(*) from pgqueue.tasks where status = 'dead'")[0][0]
    p50, p99 = percentile(waits, 50), percentile(waits, 99)
    print(
        f"\n{KILLS} kills, {len(wanted)} tasks, {len(again)} run again, {dead} dead; from a first expiry to running"
        f" again ({len(waits)}): p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, most {max(waits) * 1000:.0f} ms"
    )
    assert len(waits) > 100, "too few kills hit a task in its first attempt: nothing was measured"
    # The promise is of a machine with two cores to itself; which this is not known to be.
    assert p99 <= 5 * WITHIN, f"p99 {p99:.2f} s: far beyond the promised {WITHIN:g} s"
