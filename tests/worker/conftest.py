"""An app over the test's database, and workers that run in threads until the test is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from pgqueue import App, Status, Task
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

from ..support import eventually
from ..support.waiting import PATIENCE

QUICK: dict[str, Any] = {"listen": False, "poll": 0.05, "maintenance": 0.2, "drain": 20, "cancel_grace": 5}


class InThread:
    """A worker in a thread; `join` gives its exit status, or raises what it raised."""

    def __init__(self, app: App, options: dict[str, Any]) -> None:
        self.worker = Worker(app, WorkerConfig(**{**QUICK, **options}))
        self.stop = self.worker.stop
        self.status: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.status = self.worker.run()
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> int:
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the worker did not end"
        if self.error is not None:
            raise self.error
        assert self.status is not None
        return self.status


def became(app: App, task_id: UUID, status: Status) -> Task:
    """The task, once it has that status."""

    def look() -> Task | None:
        task = app.client.get(task_id)
        return task if task.status is status else None

    task = eventually(look)
    assert task is not None
    return task


Start: TypeAlias = Callable[..., InThread]
Burst: TypeAlias = Callable[..., int]


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    app = App(database_url)
    yield app
    app.client.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Something for handlers to wait for; opened at the end, so that no thread is left waiting."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def start(app: App, gate: threading.Event) -> Iterator[Start]:
    """`start(**options)`: a worker of `app` in a thread, ended after the test."""
    started: list[InThread] = []

    def start(**options: Any) -> InThread:
        started.append(InThread(app, options))
        return started[-1]

    yield start
    gate.set()
    for one in started:
        one.stop()
        one.stop()
    for one in started:
        one._thread.join(PATIENCE)
        assert not one.alive, "the worker did not end"


@pytest.fixture
def burst(app: App) -> Burst:
    """`burst(**options)`: run a worker of `app` here until nothing is due; its exit status."""

    def burst(**options: Any) -> int:
        return Worker(app, WorkerConfig(**{**QUICK, "burst": True, **options})).run()

    return burst
