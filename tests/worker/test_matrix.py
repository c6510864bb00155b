"""Every way in which a handler can end, on every executor: what the row, the journal and the log say about it."""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue import App, ConfigError, Status, Task
from pgqueue.config import Limits
from pgqueue.database import Database
from pgqueue.ids import tail

from ..support import databases, eventually
from . import matrix_app as cells
from .conftest import InThread
from .matrix_app import EXECUTORS, LOOP, PROCESS, PROCESS_ASYNC, STUCK, THREAD

COMPLETED, DEAD, CANCELLED, PENDING = Status.COMPLETED, Status.DEAD, Status.CANCELLED, Status.PENDING
GRACE = 0.5
NO_PROCESS = (THREAD, LOOP)


@dataclasses.dataclass(frozen=True)
class Expected:
    """status, event: the last. error: what last_error starts with; None: there is none. result: the row's.

    log: what the log says of the task; None: nothing.
    """

    status: Status
    event: str
    error: str | None = None
    result: Any = None
    attempts: int = 1
    log: str | None = None


def fails(error: str, **more: Any) -> Expected:
    return Expected(DEAD, "fail", error, log="failed in attempt 1 of 1", **more)


TIMED_OUT = "timed out after 300ms"
KILLED = f"{TIMED_OUT}; it did not stop, and its process was killed"
ENDED_OVER_IT = f"{TIMED_OUT}; its thread did not stop, and the worker ended over it"
A_COROUTINE = "TypeError: the handler returned a coroutine"

EXPECTED: dict[str, Expected] = {
    "return": Expected(COMPLETED, "complete", result={"n": 1}),
    "not-json": Expected(DEAD, "bury", "the work is done, but its result cannot be kept", log="failed in attempt 1"),
    "snooze": Expected(PENDING, "snooze", attempts=0),
    "permanent": Expected(DEAD, "bury", "no such parcel", log="failed in attempt 1 of 3: no such parcel"),
    "retry-after": Expected(PENDING, "fail", "429 from the courier", log="failed in attempt 1 of 3: 429"),
    "exception": fails("LookupError: no such order\n"),
    "base-exception": fails("tests.worker.matrix_app.Bang: boom\n"),
    "system-exit": fails("SystemExit: 3\n"),
    "keyboard-interrupt": fails("KeyboardInterrupt\n"),
    "hostile-str": fails("tests.worker.matrix_app.Hostile: (tests.worker.matrix_app.Hostile: its str() raised"),
    "nul": fails("ValueError: a\ufffdb\ufffdc\n"),
    "ten-megabytes": fails("ValueError: xxxx"),
    "os-exit": fails("its process died: exited with 3"),
    "segfault": fails("its process died: killed by SIGSEGV"),
    "memory": fails("out of memory: it may use 512 MiB\n"),
    "coroutine": fails(A_COROUTINE),
    "blocked": Expected(COMPLETED, "complete"),
    "timeout": fails(TIMED_OUT),
    "leaks-threads": Expected(COMPLETED, "complete", result=3),
    "lost": Expected(Status.RUNNING, "claim", log="complete refused: the lease on task"),
    "cancel-obeys": Expected(CANCELLED, "acknowledge"),
    "cancel-returns": Expected(COMPLETED, "complete", result="the last step"),
}
STOPPED: dict[str, tuple[Expected, Expected]] = {
    # In a process, and elsewhere: there the worker ends over it, with 70, for its supervisor to start another.
    "never-returns": (fails(KILLED), fails(ENDED_OVER_IT)),
    "swallows": (fails(KILLED), fails(ENDED_OVER_IT)),
    "cancel-ignores": (
        Expected(CANCELLED, "acknowledge", log="did not end within 500ms of being asked to (cancelled)"),
        Expected(CANCELLED, "release", attempts=0),
    ),
}
CELLS = [(executor, name) for executor in EXECUTORS for name in cells.SYNC if cells.has(executor, name)]


class Matrix:
    """All cells, run once: one task each, by a worker for what runs here, one for processes, one for each stuck one."""

    def __init__(self, url: str) -> None:
        cells.app.database = Database(url, schema="pgqueue")
        cells.app._client = None
        self.app = cells.app
        self.client = cells.app.client
        self.client.set_journal("full")
        self.ids = {cell: self.app.action("/".join(cell)).enqueue().id for cell in CELLS}
        self.theirs: dict[UUID, Any] = {}
        self.lines: list[str] = []
        self.stuck: dict[tuple[str, str], InThread] = {}
        self.exits: dict[tuple[str, str], int] = {}
        self.workers: list[InThread] = []

    def run(self) -> None:
        common = {"lease": cells.LEASE, "cancel_grace": GRACE, "drain": 0}
        queues = {executor: [executor, f"{executor}/lost"] for executor in EXECUTORS}
        blocked = [f"{executor}/blocked" for executor in NO_PROCESS]
        self.workers = [
            InThread(self.app, {**common, "queues": blocked, "concurrency": 2}),
            InThread(self.app, {**common, "queues": [*queues[THREAD], *queues[LOOP]], "concurrency": 60}),
            InThread(self.app, {**common, "queues": [*queues[PROCESS], *queues[PROCESS_ASYNC]], "concurrency": 8}),
        ]
        for executor in NO_PROCESS:
            for name in STUCK:
                options = {**common, "queues": [f"{executor}/{name}"], "concurrency": 1}
                self.stuck[executor, name] = InThread(self.app, options)
        waiting = {cell for cell in CELLS if cell[1].startswith("cancel-") or cell[1] == "lost"}
        ends = time.monotonic() + 50
        while not all(map(self.settled, CELLS)):
            assert time.monotonic() < ends, [cell for cell in CELLS if not self.settled(cell)]
            for cell in sorted(waiting):
                if self.task(cell).message == "begun":
                    waiting.discard(cell)
                    self.meddle(cell)
            time.sleep(0.05)
        for cell, worker in self.stuck.items():
            self.exits[cell] = worker.join()
        eventually(lambda: sum("complete refused" in line for line in self.lines) == len(EXECUTORS))

    def meddle(self, cell: tuple[str, str]) -> None:
        """What somebody else does to a task that runs."""
        if cell[1] == "lost":
            with self.app.database.begin() as connection:
                client = self.client.on(connection)
                client.evict(self.ids[cell], by="me")
                (theirs,) = client.claim_batch("/".join(cell), limit=1, owner="somebody-else", lease=3600)
                self.theirs[theirs.id] = theirs
            return
        self.client.cancel(self.ids[cell], by="me")
        if cell in self.stuck:
            self.stuck[cell].stop()

    def task(self, cell: tuple[str, str]) -> Task:
        return self.client.get(self.ids[cell])

    def settled(self, cell: tuple[str, str]) -> bool:
        task = self.task(cell)
        if task.status is Status.RUNNING:
            return task.lease_owner == "somebody-else"
        return task.status is not PENDING or task.fence > 0

    def said(self, cell: tuple[str, str]) -> list[str]:
        whole = self.ids[cell]
        return [line for line in self.lines if str(whole) in line or tail(whole) in line]


class Collect(logging.Handler):
    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@pytest.fixture(scope="module")
def matrix(migrated: databases.Databases) -> Iterator[Matrix]:
    with migrated.one() as url:
        matrix = Matrix(url)
        collect = Collect(matrix.lines)
        logging.getLogger("pgqueue.worker").addHandler(collect)
        try:
            matrix.run()
            yield matrix
        finally:
            cells.gate.set()
            for worker in (*matrix.workers, *matrix.stuck.values()):
                worker.stop()
                worker.stop()
            for worker in (*matrix.workers, *matrix.stuck.values()):
                worker._thread.join(30)
            logging.getLogger("pgqueue.worker").removeHandler(collect)
            matrix.client.close()
            cells.app.database.dispose()


@pytest.mark.parametrize(("executor", "name"), CELLS, ids=["/".join(cell) for cell in CELLS])
def test_ending(matrix: Matrix, executor: str, name: str) -> None:
    cell = executor, name
    if name in STOPPED:
        expected = STOPPED[name][0 if executor.startswith("process") else 1]
    else:
        expected = EXPECTED[name]
    task = matrix.task(cell)
    assert (task.status, task.attempts) == (expected.status, expected.attempts)
    assert (None if task.result_text is None else json.loads(task.result_text)) == expected.result
    if expected.error is None:
        assert task.last_error is None
    else:
        assert task.last_error is not None
        assert task.last_error.startswith(expected.error)
        assert len(task.last_error.encode()) <= Limits.ERROR_BYTES
    events = [event.event for event in matrix.client.events(task.id)]
    assert events[-1] == expected.event, events
    said = matrix.said(cell)
    if expected.log is None:
        assert not said
    else:
        assert any(expected.log in line for line in said), said
    if cell in matrix.stuck:
        assert matrix.exits[cell] == 70
    if expected.status is PENDING:
        assert task.not_before - task.updated_at > timedelta(minutes=50)


def test_worker_outlives_all_that_its_handlers_do(matrix: Matrix) -> None:
    """But for those whose threads were stuck; none of the others has ended, nor been told that it should."""
    assert [worker.alive for worker in matrix.workers] == [True] * 3
    assert all(matrix.exits[cell] == 70 for cell in matrix.stuck)


@pytest.mark.parametrize("options", [{}, {"isolation": "thread"}], ids=str)
def test_memory_limit_without_a_process_is_refused(options: dict[str, Any]) -> None:
    app = App("postgresql://nowhere/")

    def work() -> None: ...

    with pytest.raises(ConfigError, match='add isolation="process"'):
        app.task(memory=cells.MEMORY, **options)(work)
