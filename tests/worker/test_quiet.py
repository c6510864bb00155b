"""A worker with nothing to do asks one question a poll, and no less is found for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import App, Status
from pgqueue.database import Database
from pgqueue.worker import fetch
from pgqueue.worker.fetch import Fetcher

from ..support import eventually
from .conftest import Start, became


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is."""
    monkeypatch.setattr(fetch, "_CHEAP", float("inf"))


@pytest.fixture
def fetcher(database: Database) -> Fetcher:
    return Fetcher(database, ["one", "two"], owner="me", lease=timedelta(minutes=1), batch=10)


def counted(monkeypatch: pytest.MonkeyPatch, thing: object, name: str) -> Callable[[], int]:
    """How often that method has been called since."""
    calls = []
    method = getattr(thing, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(name)
        return method(*args, **kwargs)

    monkeypatch.setattr(thing, name, call)
    return lambda: len(calls)


@pytest.mark.parametrize("agent", [None, "host-1"])
def test_look_ahead_sees_what_is_due_and_what_is_planned(fetcher: Fetcher, app: App, agent: str | None) -> None:
    assert fetcher.look_ahead() == (None, True)
    app.client.enqueue("work", None, queue="three")
    assert fetcher.look_ahead() == (None, True)
    app.client.enqueue("work", None, queue="two", agent=agent, delay=100)
    wait, again = fetcher.look_ahead()
    assert again
    assert wait is not None
    assert 0 < wait <= 100
    app.client.enqueue("work", None, queue="one", agent=agent)
    assert fetcher.look_ahead() == (0.0, False)


def test_look_ahead_does_not_stand_in_for_a_pass_where_conditions_are_offered(database: Database) -> None:
    fetcher = Fetcher(database, ["one"], owner="me", lease=timedelta(minutes=1), batch=10, offers=["gpu"])
    assert fetcher.look_ahead() == (None, False)


@pytest.mark.parametrize("agent", [None, "host-1"])
def test_quiet_worker_makes_no_pass_until_something_is_due(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch, agent: str | None
) -> None:
    @app.task
    def work() -> None: ...

    worker = start(poll=0.05).worker
    eventually(lambda: worker._quiet)
    asked = counted(monkeypatch, worker._fetcher, "look_ahead")
    passes = counted(monkeypatch, worker._fetcher, "run_once")
    eventually(lambda: asked() >= 10)
    assert passes() <= 1  # one may have been under way
    became(app, work.using(agent=agent).enqueue().id, Status.COMPLETED)
    became(app, work.using(agent=agent, delay=0.3).enqueue().id, Status.COMPLETED)
    assert passes() >= 2


def test_busy_agents_backlog_does_not_hide_what_is_planned(app: App, start: Start) -> None:
    """What is due and cannot be had keeps the worker from being quiet, and from asking without a pause."""

    @app.task
    def work() -> None: ...

    first = work.using(agent="host-1", queue="elsewhere").enqueue().id
    assert app.client.claim("host-1", queue="elsewhere") is not None
    held = work.using(agent="host-1").enqueue().id
    became(app, first, Status.RUNNING)
    worker = start(poll=0.05).worker
    became(app, work.using(delay=0.3).enqueue().id, Status.COMPLETED)
    assert not worker._quiet
    assert app.client.get(held).status is Status.PENDING
