"""The server is killed, frozen for longer than a lease, and made to drop everybody, under load and several times.

No worker exits; each goes on by itself. A task's effect and its completion are one transaction, so at the end every
task that was ever enqueued has exactly one effect, whatever was lost in between.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from pgqueue import App, Context, PgqueueError, embedded, migrate, new_id
from pgqueue.database import Database

from ..embedded.processes import FAST, kill, postmaster
from ..support import eventually

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
LEASE, FROZEN = 3.0, 5.0
AGENTS, WORKERS, BATCH = 7, 2, 20


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


class Server:
    """An embedded server of our own, and what can happen to it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._uses = [embedded.acquire(home, settings=FAST)]
        self.url = self._uses[0].url

    def close(self) -> None:
        for use in self._uses:
            use.release()
        embedded.stop(self.home, force=True)

    def kill(self) -> None:
        kill(postmaster(self.home))
        self._uses.append(embedded.acquire(self.home, settings=FAST))
        assert self._uses[-1].url == self.url

    def freeze(self) -> None:
        """The postmaster and its children: connections stay open, and nobody answers."""
        pids = [postmaster(self.home)]
        children = Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()
        pids += [int(pid) for pid in children]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        time.sleep(FROZEN)
        for pid in pids:
            _signal(pid, signal.SIGCONT)

    def drop_everybody(self) -> None:
        for _ in range(5):
            with psycopg.connect(self.url, autocommit=True) as connection:
                connection.execute(
                    "select pg_terminate_backend(pid) from pg_stat_activity"
                    " where backend_type = 'client backend' and pid <> pg_backend_pid()"
                )
            time.sleep(random.uniform(0.1, 0.5))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@pytest.fixture
def server() -> Iterator[Server]:
    room = Path(tempfile.mkdtemp(prefix="pgqueue-stress-", dir="/tmp"))
    room.chmod(0o711)
    server = Server(room / "home")
    yield server
    server.close()
    shutil.rmtree(room)


class Feed:
    """Enqueues all the time; what was not acknowledged is sent again under the same id."""

    def __init__(self, app: App) -> None:
        self.sent: set[UUID] = set()
        self._action = app.action("work")
        self._app = app
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for start in itertools.count(step=BATCH):
            batch = [
                self._action.using(id=new_id(), agent=f"host-{n % AGENTS}" if n % 2 else None).new()
                for n in range(start, start + BATCH)
            ]
            while not self._ends.wait(0.1):
                with contextlib.suppress(PgqueueError):
                    self.sent |= {made.id for made in self._app.client.enqueue_many(batch)}
                    break
            if self._ends.is_set():
                return

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


def asking(url: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(text.encode()).fetchall()


def effects(url: str) -> int:
    try:
        return int(str(asking(url, "select count(*) from effects")[0][0]))
    except psycopg.Error:
        return 0


def test_outages_under_load_lose_nothing_and_double_nothing(server: Server) -> None:
    database = Database(server.url)
    migrate.upgrade(database)
    database.dispose()
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create table effects (task_id uuid, agent text)")
    command = [sys.executable, "-c", f"import sys; from {__name__} import serve; serve(sys.argv[1])", server.url]
    workers = [subprocess.Popen(command, cwd=ROOT) for _ in range(WORKERS)]
    app = declare(server.url)
    feed = Feed(app)
    faults: list[Callable[[], None]] = [server.kill, server.freeze, server.drop_everybody] * 3
    random.shuffle(faults)
    try:
        for fault in faults:
            before = effects(server.url)
            eventually(lambda before=before: effects(server.url) > before + 50)  # type: ignore[misc]
            fault()
            assert [worker.poll() for worker in workers] == [None] * WORKERS
        feed.end()
        eventually(lambda: app.client.stats()["pending"] + app.client.stats()["running"] == 0, 60)
        for worker in workers:
            worker.terminate()
        assert [worker.wait(40) for worker in workers] == [0] * WORKERS
    finally:
        for worker in workers:
            worker.kill()
        app.client.close()

    tasks = asking(server.url, "select id, status from pgqueue.tasks")
    assert feed.sent <= {task_id for task_id, _ in tasks}
    assert {status for _, status in tasks} == {"completed"}
    assert asking(server.url, "select task_id from effects group by 1 having count(*) > 1") == []
    assert asking(server.url, "select count(*) from effects") == [(len(tasks),)]
