"""`App(lifespan=…)`: opened before the first claim on the handlers' loop, closed after the last handler."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, ConfigError, Context, LifespanFailed, Status
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

from ..support import eventually
from .conftest import QUICK, Burst, Start

ROOT = Path(__file__).resolve().parents[2]


def test_what_it_yields_is_the_state_of_every_handler(app: App, burst: Burst) -> None:
    story: list[Any] = []

    @contextlib.asynccontextmanager
    async def lifespan(given: App) -> AsyncIterator[dict[str, str]]:
        story.append(("open", given is app, asyncio.get_running_loop()))
        yield {"pool": "p"}
        story.append(("close", asyncio.get_running_loop()))

    app.lifespan = lifespan

    @app.task
    async def coro(ctx: Context) -> str:
        story.append(("coro", asyncio.get_running_loop()))
        return str(ctx.state["pool"])

    @app.task
    def plain(ctx: Context) -> str:
        return str(ctx.state["pool"])

    made = [coro.enqueue(), plain.enqueue()]
    assert burst() == 0
    assert [app.client.get(one.id).result for one in made] == ["p", "p"]
    loop = story[0][2]
    assert story == [("open", True, loop), ("coro", loop), ("close", loop)]


def test_synchronous_one_and_one_that_yields_nothing(app: App, burst: Burst) -> None:
    story: list[str] = []

    @contextlib.contextmanager
    def lifespan(app: App) -> Iterator[None]:
        story.append("open")
        yield
        story.append("close")

    app.lifespan = lifespan

    @app.task
    def plain(ctx: Context) -> None:
        story.append(f"state {ctx.state}")

    plain.enqueue()
    burst()
    assert story == ["open", "state None", "close"]


def test_cancel_scopes_work_in_it_as_entry_and_exit_are_one_asyncio_task(app: App, burst: Burst) -> None:
    beating = asyncio.Event()

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        async def beat() -> None:
            while True:
                beating.set()
                await asyncio.sleep(0.001)

        async with asyncio.TaskGroup() as group:
            task = group.create_task(beat())
            yield
            task.cancel()

    app.lifespan = lifespan

    @app.task
    async def waits() -> None:
        await beating.wait()

    made = waits.enqueue()
    assert burst() == 0
    assert app.client.get(made.id).status is Status.COMPLETED


def test_every_worker_opens_its_own(app: App, start: Start) -> None:
    opened: list[int] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[int]:
        opened.append(len(opened))
        yield opened[-1]

    app.lifespan = lifespan
    app.task(name="idle")(lambda: None)
    workers = [start(), start()]
    eventually(lambda: all(one.worker.started.is_set() for one in workers))
    for one in workers:
        one.stop()
        assert one.join() == 0
    assert opened == [0, 1]


def raises(app: App) -> Any:
    raise ValueError("no\nredis")


@contextlib.asynccontextmanager
async def raises_late(app: App) -> AsyncIterator[None]:
    await asyncio.sleep(0)
    if app.lifespan is not None:
        raise ValueError("no\nredis")
    yield


@contextlib.contextmanager
def exits(app: App) -> Iterator[None]:
    if app.lifespan is not None:
        raise SystemExit(3)
    yield


def gives_nothing(app: App) -> Any:
    return None


FAILING: list[tuple[Callable[[App], Any], str]] = [
    (raises, "ValueError: no redis"),
    (raises_late, "ValueError: no redis"),
    (exits, "it raised SystemExit"),
    (gives_nothing, "gave a NoneType, not a context manager"),
]


@pytest.mark.parametrize(("lifespan", "says"), FAILING, ids=lambda value: getattr(value, "__name__", None))
def test_one_that_fails_at_the_start_ends_the_worker_in_one_line_and_nothing_is_claimed(
    app: App, burst: Burst, lifespan: Callable[[App], Any], says: str
) -> None:
    app.lifespan = lifespan
    made = app.task(name="plain")(lambda: None).enqueue()
    with pytest.raises(LifespanFailed, match=says) as failed:
        burst()
    assert "\n" not in str(failed.value)
    assert app.client.get(made.id).attempts == 0
    assert [thread for thread in threading.enumerate() if thread.name == "pgqueue-loop"] == []


def test_error_at_the_end_is_logged_and_changes_no_status(
    app: App, burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        yield
        raise ValueError("at the end")

    app.lifespan = lifespan
    made = app.task(name="plain")(lambda: None).enqueue()
    with caplog.at_level(logging.ERROR, logger="pgqueue"):
        assert burst() == 0
    assert "the lifespan failed at its end: ValueError: at the end" in caplog.text
    assert app.client.get(made.id).status is Status.COMPLETED


def test_it_is_left_when_the_drain_is_cut_and_after_the_handlers(app: App, start: Start, gate: threading.Event) -> None:
    story: list[str] = []
    running = threading.Event()

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        yield
        story.append("left")

    app.lifespan = lifespan

    @app.task
    async def long() -> None:
        running.set()
        try:
            await asyncio.sleep(60)
        finally:
            story.append("unwound")

    made = long.enqueue()
    one = start(drain=0)
    assert running.wait(30)
    one.stop()
    assert one.join() == 0
    assert story == ["unwound", "left"]
    assert app.client.get(made.id).status is Status.PENDING


def test_stop_during_a_start_that_takes_its_time_gives_it_up(app: App, start: Start) -> None:
    opening, story = threading.Event(), []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        opening.set()
        try:
            await asyncio.sleep(3600)
        finally:
            story.append("unwound")
        yield

    app.lifespan = lifespan
    made = app.task(name="plain")(lambda: None).enqueue()
    one = start()
    assert opening.wait(30)
    one.stop()
    assert one.join() == 0
    assert story == ["unwound"]
    assert app.client.get(made.id).attempts == 0


def test_one_that_does_not_end_is_not_waited_for_beyond_the_grace(
    app: App, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @contextlib.contextmanager
    def lifespan(app: App) -> Iterator[None]:
        yield
        gate.wait(30)

    app.lifespan = lifespan
    app.task(name="plain")(lambda: None)
    worker = Worker(app, WorkerConfig(**{**QUICK, "burst": True, "cancel_grace": 0.1}))
    with caplog.at_level(logging.ERROR, logger="pgqueue"):
        thread = threading.Thread(target=worker.run)
        thread.start()
        eventually(lambda: "did not end in time" in caplog.text)
        gate.set()
        thread.join(30)
    assert worker.status == 0


def test_generator_that_nobody_decorated_is_refused_at_once() -> None:
    async def lifespan(app: App) -> AsyncIterator[None]:
        yield

    with pytest.raises(ConfigError, match=r"decorate it with @contextlib\.asynccontextmanager") as refused:
        App(lifespan=lifespan)  # type: ignore[arg-type]
    assert refused.value.field == "lifespan"
    with pytest.raises(ConfigError, match="a function that takes the App"):
        App(lifespan={"a": 1})  # type: ignore[arg-type]


def test_state_of_a_handler_that_is_called_directly_is_none() -> None:
    app = App("postgresql://nobody@127.0.0.1:1/nowhere", lifespan=raises)

    @app.task
    def plain(ctx: Context) -> Any:
        return ctx.state

    assert plain() is None


APP = """
from pgqueue import App

def lifespan(app):
    raise ConnectionError("no redis")

app = App(lifespan=lifespan)

@app.task
def work() -> None: ...
"""


def test_command_line_says_it_in_one_line_and_ends_in_1(database_url: str, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP)
    done = subprocess.run(
        [sys.executable, "-m", "pgqueue", "worker", "--app", "shop:app", "--app-dir", str(tmp_path)],
        env={**os.environ, "PGQUEUE_DATABASE_URL": database_url},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "Error: the App's lifespan failed, and nothing was claimed: ConnectionError: no redis; mend it"
    )
