"""How a worker begins and ends: settings, the first connection, drains, signals, the loss of its connections."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, ConfigError, Context, DatabaseError, Interrupted, SchemaMismatch, Status
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker
from pgqueue.worker.execute import Executor

from ..support import Sql, eventually
from .conftest import Burst, Start

LEASE = timedelta(seconds=0.6)
ROOT = Path(__file__).resolve().parents[2]


def running(app: App, count: int = 1) -> None:
    eventually(lambda: app.client.stats()["running"] == count)


# -- the beginning


def test_first_connection_that_is_impossible_raises() -> None:
    app = App("postgresql://somebody:hush@127.0.0.1:1/nowhere")

    @app.task
    def work() -> None: ...

    with pytest.raises(DatabaseError) as refused:
        app.run_worker()
    assert "cannot be reached" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_schema_that_is_missing_raises_and_says_what_to_run(empty_database_url: str) -> None:
    app = App(empty_database_url)

    @app.task
    def work() -> None: ...

    with pytest.raises(SchemaMismatch, match="pgqueue db upgrade"):
        app.run_worker(burst=True)


def test_app_without_actions_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"no actions: import the modules that declare them with @app\.task"):
        App("postgresql://nowhere/").run_worker()


BAD: list[tuple[str, object, str]] = [
    ("concurrency", 0, "1 to 10,000"),
    ("concurrency", 10_001, "1 to 10,000"),
    ("concurrency", 2.5, "1 to 10,000"),
    ("concurrency", True, "1 to 10,000"),
    ("batch", 0, "1 to 1,000"),
    ("batch", 1001, "1 to 1,000"),
    ("lease", 0.4, "500ms to 1d"),
    ("lease", 86_401, "500ms to 1d"),
    ("lease", "60s", "500ms to 1d"),
    ("poll", 0, "10ms to 1h"),
    ("poll", 3601, "10ms to 1h"),
    ("drain", -1, "0s to 1d"),
    ("drain", float("nan"), "0s to 1d"),
    ("cancel_grace", float("inf"), "0s to 1d"),
    ("maintenance", 0, "50ms to 1h"),
    ("queues", "default", "a sequence of names"),
    ("queues", ("",), "at least one character"),
    ("queues", ("a\nb",), "control character"),
    ("queues", ("é" * 257,), "512"),
    ("name", "", "at least one character"),
    ("colour", "red", "the options are: batch, burst"),
]


@pytest.mark.parametrize(("field", "value", "says"), BAD, ids=[f"{field}={str(value)[:12]}" for field, value, _ in BAD])
def test_setting_out_of_range_names_the_field_and_the_range(field: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        WorkerConfig.of({field: value})
    assert refused.value.field == field
    assert field in str(refused.value)
    assert says in str(refused.value)


def test_setting_that_is_none_is_not_set() -> None:
    assert WorkerConfig.of({"lease": None, "queues": None, "name": None}) == WorkerConfig()
    assert WorkerConfig.of({"queues": ["b", "a", "b"]}).queues == ("b", "a")


def test_hello_names_queues_actions_and_the_masked_database(
    app: App, burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    with caplog.at_level(logging.INFO, "pgqueue"):
        burst(name="worker-1")
    hello = caplog.records[0].getMessage()
    assert "worker-1" in hello
    assert "queues mail, actions send, concurrency 20" in hello
    assert app.database.masked in hello


# -- the end


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_stop_lets_running_handlers_finish_and_claims_no_more(
    app: App, start: Start, gate: threading.Event, kind: str
) -> None:
    begun = threading.Event()

    if kind == "def":

        @app.task(name="work")
        def work() -> str:
            begun.set()
            gate.wait(30)
            return "finished"
    else:

        @app.task(name="work")
        async def awork() -> str:
            begun.set()
            await asyncio.to_thread(gate.wait, 30)
            return "finished"

    made = app.action("work").enqueue()
    worker = start()
    assert begun.wait(30)
    worker.stop()
    eventually(worker.worker._reaper._stopping.is_set)
    later = app.action("work").enqueue()
    gate.set()
    assert worker.join() == 0
    assert app.client.get(made.id).result_text == '"finished"'
    task = app.client.get(later.id)
    assert (task.status, task.fence) == (Status.PENDING, 0)


def test_drain_that_takes_too_long_asks_handlers_to_stop_and_gives_their_tasks_back(app: App, start: Start) -> None:
    heard: list[str] = []
    begun = [threading.Event(), threading.Event()]

    @app.task
    def work(ctx: Context) -> None:
        begun[0].set()
        try:
            ctx.sleep(60)
        except Interrupted:
            heard.append("def")
            raise

    @app.task
    async def awork() -> None:
        begun[1].set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            heard.append("async")
            raise

    work.enqueue()
    awork.enqueue()
    worker = start(drain=0.05)
    assert all(event.wait(30) for event in begun)
    worker.stop()
    assert worker.join() == 0
    assert sorted(heard) == ["async", "def"]
    for task in app.client.list_tasks().tasks:
        assert (task.status, task.attempts, task.fence) == (Status.PENDING, 0, 1)


def test_second_stop_releases_at_once(app: App, start: Start) -> None:
    @app.task
    def work(ctx: Context) -> None:
        ctx.sleep(60)

    @app.task
    async def awork() -> None:
        await asyncio.sleep(60)

    work.enqueue()
    awork.enqueue()
    worker = start(drain=3600, cancel_grace=3600)
    running(app, 2)
    worker.stop()
    worker.stop()
    assert worker.join() == 0
    assert {(task.status, task.attempts) for task in app.client.list_tasks().tasks} == {(Status.PENDING, 0)}


def test_second_stop_while_handlers_unwind_releases_at_once(app: App, start: Start) -> None:
    begun, unwinding = threading.Event(), threading.Event()

    @app.task
    async def slow_to_unwind() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            unwinding.set()
            await asyncio.sleep(60)

    made = slow_to_unwind.enqueue()
    worker = start(drain=0, cancel_grace=3600)
    assert begun.wait(30)
    worker.stop()
    assert unwinding.wait(30)
    worker.stop()
    assert worker.join() == 70
    assert app.client.get(made.id).status is Status.PENDING


def test_thread_that_does_not_stop_is_released_and_the_status_says_so(
    app: App, start: Start, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    begun = threading.Event()

    @app.task
    def deaf() -> None:
        begun.set()
        gate.wait(60)

    made = deaf.enqueue()
    worker = start(drain=0, cancel_grace=0)
    assert begun.wait(30)
    worker.stop()
    assert worker.join() == 70
    task = app.client.get(made.id)
    assert (task.status, task.attempts) == (Status.PENDING, 0)
    assert "1 handler(s) did not stop in time" in caplog.text


def test_def_tasks_that_wait_for_a_thread_go_back_unstarted(
    app: App, start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    grow = Executor._grow

    @app.task
    def work(n: int) -> None:
        ran.append(n)
        gate.wait(30)

    # One thread, so that the others wait for it.
    monkeypatch.setattr(Executor, "_grow", lambda self, _: None if self._threads else grow(self, 1))
    app.client.enqueue_many(work.new(n=n) for n in range(5))
    worker = start(concurrency=5)
    running(app, 5)
    eventually(lambda: ran)
    worker.stop()
    eventually(lambda: app.client.stats()["pending"] == 4)
    gate.set()
    assert worker.join() == 0
    assert len(ran) == 1
    tasks = app.client.list_tasks(status="pending").tasks
    assert {(task.attempts, task.fence, task.last_error) for task in tasks} == {(0, 1, None)}


def test_leases_are_kept_while_a_worker_drains(app: App, start: Start, gate: threading.Event) -> None:
    begun = threading.Event()

    @app.task
    def work() -> None:
        begun.set()
        gate.wait(30)

    made = work.enqueue()
    worker = start(lease=LEASE)
    other = start(lease=LEASE, maintenance=0.05)
    assert begun.wait(30)
    holder, idle = (worker, other) if app.client.get(made.id).lease_owner == worker.worker.name else (other, worker)
    holder.stop()
    before = app.client.get(made.id).lease_expires_at
    assert before is not None
    eventually(lambda: (at := app.client.get(made.id).lease_expires_at) is not None and at > before + 2 * LEASE)
    gate.set()
    assert holder.join() == 0
    task = app.client.get(made.id)
    assert (task.status, task.fence) == (Status.COMPLETED, 1)
    assert idle.alive


def test_stop_before_run_claims_nothing(app: App) -> None:
    @app.task
    def work() -> None: ...

    made = work.enqueue()
    worker = Worker(app, WorkerConfig(listen=False))
    worker.stop()
    assert worker.run() == 0
    assert app.client.get(made.id).fence == 0


SCRIPT = """
import sys, threading, time
from pgqueue import App, Context

app = App(sys.argv[1])

@app.task
def work(ctx: Context) -> str:
    print("started", flush=True)
    ctx.sleep(float(sys.argv[2]))
    return "finished"

work.enqueue()
sys.exit(app.run_worker(listen=False, poll=0.05))
"""


@pytest.mark.parametrize(
    ("signals", "status"), [([signal.SIGTERM], "completed"), ([signal.SIGINT, signal.SIGTERM], "pending")]
)
def test_signals_drain_and_then_release(
    app: App, database_url: str, signals: list[signal.Signals], status: str
) -> None:
    seconds = "0.5" if len(signals) == 1 else "60"
    with subprocess.Popen(
        [sys.executable, "-c", SCRIPT, database_url, seconds],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        for number in signals:
            process.send_signal(number)
        assert process.wait(30) == 0
    (task,) = app.client.list_tasks().tasks
    assert (task.status, task.attempts) == (Status(status), 1 if status == "completed" else 0)


# -- outages


KILL = """select count(pg_terminate_backend(pid)) from pg_stat_activity
          where datname = current_database() and pid <> pg_backend_pid()"""


@pytest.mark.parametrize("listen", [True, False])
def test_worker_survives_the_loss_of_all_its_connections(
    app: App, start: Start, sql: Sql, gate: threading.Event, listen: bool
) -> None:
    @app.task
    def work(n: int) -> None:
        if n < 5:
            gate.wait(30)

    @app.task
    async def awork(n: int) -> None:
        await asyncio.sleep(0.001)

    app.client.enqueue_many(work.new(n=n) for n in range(10))
    worker = start(concurrency=10, lease=5, listen=listen)
    running(app, 5)
    for turn in range(3):
        ((killed,),) = sql(KILL)
        assert killed
        # The client comes back by itself, and what it enqueues is found and run.
        made = again(lambda turn=turn: awork.enqueue(n=turn))  # type: ignore[misc]
        eventually(lambda made=made: app.client.get(made.id).status is Status.COMPLETED)  # type: ignore[misc]
    sql(KILL)
    gate.set()
    eventually(lambda: again(app.client.stats)["completed"] == 13)
    assert worker.alive
    assert {(t.attempts, t.fence) for t in app.client.list_tasks(action="work").tasks} == {(1, 1)}


def again(call: Callable[[], Any]) -> Any:
    """What the caller of a client does whose connection was killed: the same call again."""
    for _ in range(20):
        try:
            return call()
        except DatabaseError:
            pass
    return call()


def test_worker_can_be_stopped_while_the_database_is_away(
    app: App, start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work() -> None:
        gate.wait(30)

    made = work.enqueue()
    worker = start(listen=True, cancel_grace=0, drain=1)
    running(app)

    def away(*_: Any) -> Any:
        raise DatabaseError("the server cannot be reached")

    with monkeypatch.context() as patch:
        patch.setattr("pgqueue.worker.service._SETTLE_WITHIN", 0.5)
        patch.setattr("pgqueue.database.Database.begin", away)
        patch.setattr("pgqueue.database.Database.autocommit", away)
        patch.setattr("pgqueue.database.Database.raw", away)
        eventually(lambda: "cannot claim" in caplog.text)
        gate.set()
        worker.stop()
        assert worker.join() == 0
    assert "could not settle everything" in caplog.text
    assert app.client.get(made.id).status is Status.RUNNING, "its lease runs out, and it is reaped"
