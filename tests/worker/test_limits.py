"""max_tasks and max_lifetime: a worker that ends by itself, finishing what it holds."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest

from pgqueue import App, ConfigError, Status
from pgqueue.config import WorkerConfig
from pgqueue.worker import limits
from pgqueue.worker.limits import Lifetime

from ..support import eventually
from .conftest import Start, became


def statuses(app: App) -> dict[Status, int]:
    tasks = app.client.list_tasks().tasks
    return {
        status: sum(task.status is status for task in tasks) for status in Status if status in {t.status for t in tasks}
    }


def test_worker_ends_after_max_tasks_and_leaves_the_rest(
    app: App, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work() -> None: ...

    app.client.enqueue_many([work.new() for _ in range(9)])
    caplog.set_level(logging.INFO, "pgqueue")
    assert start(max_tasks=5, concurrency=4).join() == 0
    assert statuses(app) == {Status.PENDING: 4, Status.COMPLETED: 5}
    assert "5 task(s) were started, which is its max_tasks: this worker claims no more" in caplog.text


def test_what_runs_at_the_end_may_take_longer_than_the_drain(app: App, start: Start, gate: threading.Event) -> None:
    """Else a worker with --max-tasks 1 would give each long task back for ever."""

    @app.task
    def work() -> None:
        gate.wait(30)

    made = work.enqueue()
    worker = start(max_tasks=1, drain=0, cancel_grace=0)
    eventually(lambda: worker.worker._vitals._health.phase == "retiring")
    assert app.client.get(made.id).status is Status.RUNNING
    gate.set()
    assert worker.join() == 0
    assert app.client.get(made.id).status is Status.COMPLETED


def test_signal_while_it_retires_drains_as_ever(app: App, start: Start) -> None:
    import asyncio

    @app.task
    async def work() -> None:
        await asyncio.sleep(60)

    made = work.enqueue()
    worker = start(max_tasks=1, drain=0)
    eventually(lambda: worker.worker._vitals._health.phase == "retiring")
    worker.stop()
    assert worker.join() == 0
    task = app.client.get(made.id)
    assert (task.status, task.attempts) == (Status.PENDING, 0)


def test_worker_ends_after_its_lifetime_though_it_sleeps(
    app: App, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work() -> None: ...

    made = work.enqueue()
    caplog.set_level(logging.INFO, "pgqueue")
    worker = start(max_lifetime=1, poll=3600)
    became(app, made.id, Status.COMPLETED)
    assert worker.join() == 0
    assert "max_lifetime has passed: this worker claims no more" in caplog.text


def test_tasks_of_unknown_actions_do_not_count(app: App, start: Start) -> None:
    @app.task
    def work() -> None: ...

    for _ in range(3):
        app.client.enqueue("nobody_knows", None, priority=9)
    made = work.enqueue()
    assert start(max_tasks=1).join() == 0
    assert app.client.get(made.id).status is Status.COMPLETED


def test_limits_are_spread_downwards(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = {Lifetime(1000, None).room(10_000) for _ in range(500)}
    assert min(tasks) >= 900
    assert max(tasks) <= 1000
    assert len(tasks) > 20
    assert {Lifetime(9, None).room(100) for _ in range(50)} == {9}
    monkeypatch.setattr(limits, "monotonic", lambda: 100.0)
    spans = {Lifetime(None, timedelta(hours=1)).pause(10_000) for _ in range(500)}
    assert min(spans) >= 3240
    assert max(spans) <= 3600
    assert len(spans) > 20


def test_without_limits_it_has_no_end() -> None:
    lifetime = Lifetime(None, None)
    lifetime.started(10**9)
    assert (lifetime.room(7), lifetime.pause(8.5), lifetime.over) == (7, 8.5, None)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("max_tasks", 0, "1 to 1,000,000,000"),
        ("max_tasks", True, "1 to 1,000,000,000"),
        ("max_lifetime", 0.5, "give 1s to"),
        ("max_lifetime", "1h", "give 1s to"),
    ],
)
def test_limit_out_of_range_is_refused(field: str, value: object, says: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} .*{says}"):
        WorkerConfig.of({field: value})
