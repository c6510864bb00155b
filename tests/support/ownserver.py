"""An embedded server of a test's own, and what can happen to it; and a worker's work whose effects can be counted."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import psycopg

from pgqueue import App, PgqueueError, embedded, migrate, new_id
from pgqueue.database import Database

from ..embedded.processes import FAST, kill, postmaster

__all__ = ["Feed", "OwnServer", "asking", "own_server"]


class OwnServer:
    """A running server with the queue's schema in it."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._uses = [embedded.acquire(home, settings=FAST)]
        self.url = self._uses[0].url
        database = Database(self.url)
        migrate.upgrade(database)
        database.dispose()

    def close(self) -> None:
        for use in self._uses:
            use.release()
        embedded.stop(self.home, force=True)

    def stop(self) -> None:
        embedded.stop(self.home, force=True)

    def start(self) -> None:
        self._uses.append(embedded.acquire(self.home, settings=FAST))
        assert self._uses[-1].url == self.url

    def kill(self) -> None:
        kill(postmaster(self.home))
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The postmaster and its children: connections stay open, and nobody answers."""
        pids = [postmaster(self.home)]
        children = Path(f"/proc/{pids[0]}/task/{pids[0]}/children").read_text().split()
        pids += [int(pid) for pid in children]
        for pid in pids:
            _signal(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in pids:
                _signal(pid, signal.SIGCONT)

    def freeze(self, seconds: float) -> None:
        with self.frozen():
            time.sleep(seconds)

    def drop_everybody(self) -> None:
        for _ in range(5):
            asking(self.url, f"select pg_terminate_backend(pid) {_OTHERS}")
            time.sleep(random.uniform(0.1, 0.5))

    def drop_one(self) -> int:
        """Returns how many that were: none where nobody is connected."""
        return len(asking(self.url, f"select pg_terminate_backend(pid) {_OTHERS} order by random() limit 1"))


_BACKLOG = 300
"""Tasks that may wait before a feed holds back: the end of a test is not to be about a slow machine's backlog."""
_OTHERS = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    room = Path(tempfile.mkdtemp(prefix="pgqueue-stress-", dir="/tmp"))
    room.chmod(0o711)
    server = OwnServer(room / "home")
    try:
        yield server
    finally:
        server.close()
        shutil.rmtree(room)


def asking(url: str, text: str) -> list[tuple[object, ...]]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


class Feed:
    """Enqueues the action all the time, half of it for agents; what was not acknowledged is sent again, same id.

    It holds back where the workers do not keep up.
    """

    def __init__(self, app: App, action: str, *, agents: int = 7, batch: int = 20) -> None:
        self.sent: set[UUID] = set()
        self._action = app.action(action)
        self._app = app
        self._agents, self._batch = agents, batch
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for start in itertools.count(step=self._batch):
            batch = [
                self._action.using(id=new_id(), agent=f"host-{n % self._agents}" if n % 2 else None).new()
                for n in range(start, start + self._batch)
            ]
            while not self._ends.wait(0.1):
                with contextlib.suppress(PgqueueError):
                    if self._app.client.stats()["pending"] > _BACKLOG:
                        continue
                    self.sent |= {made.id for made in self._app.client.enqueue_many(batch)}
                    break
            if self._ends.is_set():
                return

    def end(self) -> None:
        self._ends.set()
        self._thread.join(60)
        assert not self._thread.is_alive()
