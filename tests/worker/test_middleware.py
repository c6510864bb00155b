"""Middleware: around a handler, in its thread or on its loop, first of the list outermost."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from pgqueue import App, ConfigError, Context, Permanent, RetryAfter, Snooze, Status
from pgqueue.database import Database

from . import middleware_app
from .conftest import QUICK, Burst


@pytest.fixture
def said() -> list[str]:
    return []


def outer(said: list[str], name: str) -> Callable[[Context, Callable[[], Any]], Any]:
    def around(ctx: Context, call: Callable[[], Any]) -> Any:
        said.append(f"{name} in")
        try:
            return call()
        finally:
            said.append(f"{name} out")

    return around


def aouter(said: list[str], name: str) -> Callable[[Context, Callable[[], Awaitable[Any]]], Awaitable[Any]]:
    async def around(ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
        said.append(f"{name} in")
        try:
            return await call()
        finally:
            said.append(f"{name} out")

    return around


def test_first_of_the_list_is_outermost_and_each_kind_goes_around_its_own(
    database_url: str, said: list[str], burst: Burst, app: App
) -> None:
    app._around = App(middleware=[outer(said, "a"), aouter(said, "x"), outer(said, "b"), aouter(said, "y")])._around

    @app.task
    def plain() -> int:
        said.append("plain")
        return 1

    @app.task
    async def coro() -> int:
        said.append("coro")
        return 2

    made = plain.enqueue()
    burst()
    assert said == ["a in", "b in", "plain", "b out", "a out"]
    assert app.client.get(made.id).result == 1
    said.clear()
    made = coro.enqueue()
    burst()
    assert said == ["x in", "y in", "coro", "y out", "x out"]
    assert app.client.get(made.id).result == 2


def test_middleware_sees_context_and_outcome_in_the_handlers_own_thread_and_task(
    database_url: str, burst: Burst, app: App
) -> None:
    seen: list[Any] = []

    def around(ctx: Context, call: Callable[[], Any]) -> Any:
        value = call()
        seen.append((ctx.action, ctx.attempt, ctx.metadata, value, threading.get_ident()))
        return {"wrapped": value}

    async def aaround(ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
        value = await call()
        seen.append((ctx.action, ctx.attempt, ctx.metadata, value, asyncio.current_task()))
        return value

    app._around = App(middleware=[around, aaround])._around

    @app.task
    def plain(n: int) -> int:
        seen.append(threading.get_ident())
        return n

    @app.task
    async def coro(ctx: Context, n: int) -> int:
        seen.append(asyncio.current_task())
        return n

    made = plain.using(metadata={"trace": "t1"}).enqueue(n=3)
    burst()
    assert seen[1] == ("plain", 1, {"trace": "t1"}, 3, seen[0])
    assert app.client.get(made.id).result == {"wrapped": 3}
    seen.clear()
    coro.enqueue(n=4)
    burst()
    assert seen[1] == ("coro", 1, None, 4, seen[0])


def test_middleware_may_end_the_handler_as_the_handler_may(burst: Burst, app: App) -> None:
    def around(ctx: Context, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except KeyError as error:
            raise Permanent(f"no {error}") from error
        except ConnectionError:
            raise RetryAfter(60, "the other side is away") from None
        except TimeoutError:
            return Snooze(60)

    app._around = App(middleware=[around])._around

    @app.task
    def fails(how: str) -> None:
        raise {"key": KeyError("a"), "connection": ConnectionError(), "time": TimeoutError()}[how]

    made = {how: fails.enqueue(how=how).id for how in ("key", "connection", "time")}
    burst()
    tasks = {how: app.client.get(task_id) for how, task_id in made.items()}
    assert (tasks["key"].status, tasks["connection"].status, tasks["time"].status) == (
        Status.DEAD,
        Status.PENDING,
        Status.PENDING,
    )
    assert "no 'a'" in str(tasks["key"].last_error)
    assert (tasks["connection"].attempts, tasks["time"].attempts) == (1, 0)
    assert tasks["connection"].last_error == "the other side is away"


def test_middleware_may_do_without_the_handler(burst: Burst, app: App) -> None:
    app._around = App(middleware=[lambda ctx, call: "skipped"])._around
    ran: list[int] = []

    @app.task
    def never() -> None:
        ran.append(1)

    made = never.enqueue()
    burst()
    assert (app.client.get(made.id).result, ran) == ("skipped", [])


def test_traceback_of_a_failure_names_middleware_and_handler_and_nothing_of_ours(burst: Burst, app: App) -> None:
    app._around = App(middleware=[outer([], "a")])._around

    @app.task(max_attempts=1)
    def breaks() -> None:
        raise ValueError("boom")

    made = breaks.enqueue()
    burst()
    text = str(app.client.get(made.id).last_error)
    assert "in around" in text
    assert "in breaks" in text
    assert "pgqueue/worker" not in text
    assert "pgqueue/app.py" not in text


def test_row_that_does_not_fit_never_reaches_middleware(burst: Burst, app: App, said: list[str]) -> None:
    app._around = App(middleware=[outer(said, "a")])._around

    @app.task
    def takes(n: int) -> None: ...

    made = app.client.enqueue("takes", {"n": "three"})
    burst()
    assert (app.client.get(made.id).status, said) == (Status.DEAD, [])


def test_calling_an_action_runs_the_bare_handler(said: list[str]) -> None:
    app = App("postgresql://nobody@127.0.0.1:1/nowhere", middleware=[outer(said, "a")])

    @app.task
    def plain() -> int:
        return 1

    assert (plain(), said) == (1, [])


def test_object_with_an_async_call_goes_around_async_handlers() -> None:
    class Around:
        async def __call__(self, ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
            return await call()

    one = Around()
    app = App(middleware=[one])
    assert (app.around(is_async=True), app.around(is_async=False)) == ((one,), ())


@pytest.mark.parametrize("wrong", [3, ["text"], [None]])
def test_what_is_no_middleware_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"middleware must be functions \(ctx, call\)") as refused:
        App(middleware=wrong)
    assert refused.value.field == "middleware"


@pytest.fixture
def in_processes(database_url: str) -> Iterator[App]:
    app = middleware_app.app
    app.database = Database(database_url, schema="pgqueue")
    app._client = None
    yield app
    app.client.close()


def test_handler_in_a_process_has_its_middleware_there(in_processes: App) -> None:
    made = [middleware_app.plain.enqueue(), middleware_app.coro.enqueue()]
    with in_processes.worker(**QUICK):
        results: list[Any] = [one.wait(30).result for one in made]
    assert [one["action"] for one in results] == ["plain", "coro"]
    assert all(one["handler"] == one["middleware"] != os.getpid() for one in results)
