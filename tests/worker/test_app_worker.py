"""`with app.worker(…)`: a worker in threads of this process, for as long as the block runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from pgqueue import App, ConfigError, LifespanFailed, SchemaMismatch, Status
from pgqueue.worker import Worker

from ..support import eventually
from .conftest import QUICK


def fails(after: Callable[[], object], error: BaseException | None = None) -> None:
    after()
    raise error or KeyError("mine")


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("pgqueue")}


def test_it_claims_while_the_block_runs_and_has_ended_after_it(app: App) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    with app.worker(**QUICK) as worker:
        assert isinstance(worker, Worker)
        assert worker.started.is_set()
        assert double.enqueue(n=21).wait(30).result == 42
    assert worker.status == 0
    # A thread that was told to end takes a moment over it.
    eventually(lambda: not names())
    made = double.enqueue(n=1)
    assert app.client.get(made.id).status is Status.PENDING


def test_it_drains_what_runs_at_the_end(app: App, gate: threading.Event) -> None:
    running = threading.Event()

    @app.task
    def slow() -> str:
        running.set()
        assert gate.wait(30)
        return "done"

    made = slow.enqueue()
    with app.worker(**QUICK):
        assert running.wait(30)
        threading.Timer(0.05, gate.set).start()
    assert app.client.get(made.id).result == "done"


def test_settings_out_of_range_and_an_app_without_actions_are_refused_before_it_starts(app: App) -> None:
    with pytest.raises(ConfigError, match="this app has no actions"):
        app.worker().__enter__()
    app.task(name="a")(lambda: None)
    with pytest.raises(ConfigError, match="concurrency"):
        app.worker(concurrency=0).__enter__()
    with pytest.raises(ConfigError, match="unknown worker option 'concurency'"):
        app.worker(concurency=3)


def test_what_keeps_it_from_starting_is_raised_at_the_with(empty_database_url: str) -> None:
    app = App(empty_database_url)
    app.task(name="a")(lambda: None)
    with pytest.raises(SchemaMismatch), app.worker(**QUICK):
        pytest.fail("the block must not run")


def test_lifespan_that_fails_is_raised_at_the_with(app: App) -> None:
    def lifespan(app: App) -> Any:
        raise ValueError("no")

    app.lifespan = lifespan
    app.task(name="a")(lambda: None)
    with pytest.raises(LifespanFailed), app.worker(**QUICK):
        pytest.fail("the block must not run")
    assert names() == set()


def test_error_in_its_thread_is_raised_at_the_end_of_the_block(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    app.task(name="a")(lambda: None)

    def broken(self: Worker) -> None:
        raise RuntimeError("a bug in the loop")

    monkeypatch.setattr(Worker, "_work", broken)
    with pytest.raises(RuntimeError, match="a bug in the loop"), app.worker(**QUICK):
        pass
    with pytest.raises(KeyError) as raised, app.worker(**QUICK) as worker:
        fails(lambda: eventually(lambda: worker.status is not None))
    assert raised.value.__notes__ == ["the worker had failed: RuntimeError: a bug in the loop"]


def test_error_of_the_block_passes_and_what_runs_is_drained(app: App, gate: threading.Event) -> None:
    running = threading.Event()

    @app.task
    def slow() -> None:
        running.set()
        assert gate.wait(30)

    made = slow.enqueue()

    def block() -> None:
        assert running.wait(30)
        threading.Timer(0.05, gate.set).start()

    with pytest.raises(KeyError), app.worker(**QUICK):
        fails(block)
    assert (app.client.get(made.id).status, names()) == (Status.COMPLETED, set())


def test_interrupt_in_the_block_is_the_second_signal(app: App) -> None:
    running = threading.Event()

    @app.task
    async def slow() -> None:
        running.set()
        await asyncio.sleep(3600)

    made = slow.enqueue()
    with pytest.raises(KeyboardInterrupt), app.worker(**{**QUICK, "drain": 3600}):
        fails(lambda: running.wait(30), KeyboardInterrupt())
    task = app.client.get(made.id)
    assert (task.status, task.attempts) == (Status.PENDING, 0)
