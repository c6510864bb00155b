"""The server is killed, frozen for longer than a lease, and made to drop everybody, under load and several times.

No worker exits; each goes on by itself. A task's effect and its completion are one transaction, so at the end every
task that was ever enqueued has exactly one effect, whatever was lost in between.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from pgqueue import App, Context

from ..support import eventually
from ..support.ownserver import Feed, OwnServer, asking

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
LEASE, FROZEN, WORKERS = 3.0, 5.0, 2


def declare(url: str) -> App:
    app = App(url)

    @app.task(max_attempts=1000, backoff=lambda n: 0.2)
    def work(ctx: Context) -> None:
        time.sleep(random.uniform(0, 0.03))
        with psycopg.connect(url, connect_timeout=5) as connection:
            connection.execute("insert into effects (task_id, agent) values (%s, %s)", [ctx.id, ctx.agent])
            ctx.complete(connection=connection)

    return app


def serve(url: str) -> None:
    sys.exit(declare(url).run_worker(concurrency=10, lease=LEASE, drain=20))


def effects(url: str) -> int:
    try:
        return int(str(asking(url, "select count(*) from effects")[0][0]))
    except psycopg.Error:
        return 0


@contextlib.contextmanager
def under_load(url: str) -> Iterator[Callable[[], None]]:
    """Workers and a feed. What it gives looks whether all of them are alive; at the end everything gets done, once."""
    asking(url, "create table effects (task_id uuid, agent text)")
    command = [sys.executable, "-c", f"import sys; from {__name__} import serve; serve(sys.argv[1])", url]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(WORKERS)]
    app = declare(url)
    feed = Feed(app, "work")

    def nobody_left() -> None:
        assert [worker.poll() for worker in workers] == [None] * WORKERS

    try:
        yield nobody_left
        feed.end()
        eventually(lambda: app.client.stats()["pending"] + app.client.stats()["running"] == 0, 60)
        for worker in workers:
            worker.terminate()
        assert [worker.wait(40) for worker in workers] == [0] * WORKERS
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        app.client.close()
    assert_exactly_once(url, feed.sent)


def assert_exactly_once(url: str, sent: set[UUID]) -> None:
    tasks = asking(url, "select id, status from pgqueue.tasks")
    assert sent <= {task_id for task_id, _ in tasks}
    assert {status for _, status in tasks} == {"completed"}
    assert asking(url, "select task_id from effects group by 1 having count(*) > 1") == []
    assert asking(url, "select count(*) from effects") == [(len(tasks),)]


def more_effects(url: str, count: int = 50) -> None:
    before = effects(url)
    eventually(lambda: effects(url) > before + count)


def test_outages_under_load_lose_nothing_and_double_nothing(own_server: OwnServer) -> None:
    faults: list[Callable[[], None]] = [own_server.kill, lambda: own_server.freeze(FROZEN), own_server.drop_everybody]
    faults *= 3
    random.shuffle(faults)
    with under_load(own_server.url) as nobody_left:
        for fault in faults:
            more_effects(own_server.url)
            fault()
            nobody_left()
