"""`ctx.complete` and `ctx.acomplete`: the handler's rows and its task's completion commit together, or neither."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from pgqueue import App, Context, PayloadError, Status

from ..support import Sql
from .conftest import Burst

INSERT = "insert into orders values (1)"


@pytest.fixture
def orders(sql: Sql) -> Callable[[], int]:
    sql("create table orders (id int)")
    return lambda: int(sql("select count(*) from orders")[0][0])


@pytest.fixture
def engine(database_url: str) -> sa.Engine:
    return create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url), poolclass=NullPool)


def never_committed(app: App, task_id: Any) -> None:
    task = app.client.get(task_id)
    assert task.status is Status.DEAD
    assert "its transaction was never committed" in str(task.last_error)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["psycopg", "Connection", "Session"])
def test_complete_with_the_handlers_rows_or_neither(
    app: App, burst: Burst, orders: Callable[[], int], engine: sa.Engine, database_url: str, kind: str, commits: bool
) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        if kind == "psycopg":
            with psycopg.connect(database_url) as raw:
                raw.execute(INSERT)
                ctx.complete({"n": 1}, connection=raw)
                raw.commit() if commits else raw.rollback()
        elif kind == "Connection":
            with engine.connect() as connection:
                connection.execute(sa.text(INSERT))
                ctx.complete({"n": 1}, connection=connection)
                connection.commit() if commits else connection.rollback()
        else:
            with Session(engine) as session:
                session.execute(sa.text(INSERT))
                ctx.complete({"n": 1}, connection=session)
                session.commit() if commits else session.rollback()

    made = work.enqueue()
    assert burst() == 0
    assert orders() == (1 if commits else 0)
    if commits:
        task = app.client.get(made.id)
        assert (task.status, task.result_text, task.attempts) == (Status.COMPLETED, '{"n": 1}', 1)
    else:
        never_committed(app, made.id)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("kind", ["psycopg", "AsyncConnection", "AsyncSession"])
def test_acomplete_with_the_handlers_rows_or_neither(
    app: App, burst: Burst, orders: Callable[[], int], database_url: str, kind: str, commits: bool
) -> None:
    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(database_url)

    @app.task(max_attempts=1)
    async def work(ctx: Context) -> None:
        if kind == "psycopg":
            async with await connect() as raw:
                await raw.execute(INSERT)
                await ctx.acomplete(connection=raw)
                await (raw.commit() if commits else raw.rollback())
            return
        engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
        made: AsyncConnection | AsyncSession = AsyncSession(engine) if kind == "AsyncSession" else engine.connect()
        async with made as connection:
            await connection.execute(sa.text(INSERT))
            await ctx.acomplete(connection=connection)
            await (connection.commit() if commits else connection.rollback())
        await engine.dispose()

    made = work.enqueue()
    assert burst() == 0
    assert orders() == (1 if commits else 0)
    if commits:
        assert app.client.get(made.id).status is Status.COMPLETED
    else:
        never_committed(app, made.id)


def test_complete_that_was_committed_is_refused_by_nobody_and_logged_nowhere(
    app: App, burst: Burst, orders: Callable[[], int], database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work(ctx: Context) -> None:
        with psycopg.connect(database_url) as raw:
            ctx.complete(connection=raw)

    made = work.enqueue()
    burst()
    assert app.client.get(made.id).status is Status.COMPLETED
    assert app.client.events(made.id) == []
    assert caplog.text == ""


def test_exception_after_a_rollback_is_what_the_task_failed_of(
    app: App, burst: Burst, orders: Callable[[], int], engine: sa.Engine
) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        with Session(engine) as session, session.begin():
            session.execute(sa.text(INSERT))
            ctx.complete(connection=session)
            raise LookupError("found out too late")

    made = work.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, orders()) == (Status.DEAD, 0)
    assert str(task.last_error).startswith("LookupError: found out too late")


def test_exception_after_the_commit_changes_nothing(app: App, burst: Burst, engine: sa.Engine) -> None:
    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        with Session(engine) as session, session.begin():
            ctx.complete("kept", connection=session)
        raise LookupError("after the fact")

    made = work.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.result_text, task.last_error) == (Status.COMPLETED, '"kept"', None)


def test_complete_without_the_lease_raises_so_that_the_handler_rolls_back(
    app: App, burst: Burst, orders: Callable[[], int], engine: sa.Engine, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work(ctx: Context) -> None:
        with app.database.begin() as connection:
            app.client.on(connection).evict(ctx.id)
            app.client.on(connection).claim_batch(limit=1, owner="somebody-else")
        with Session(engine) as session, session.begin():
            session.execute(sa.text(INSERT))
            ctx.complete(connection=session)

    made = work.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.lease_owner, orders()) == (Status.RUNNING, "somebody-else", 0)
    assert "fail refused" in caplog.text


def test_result_that_is_no_json_is_refused_before_anything_is_written(
    app: App, burst: Burst, orders: Callable[[], int], engine: sa.Engine
) -> None:
    refused: list[PayloadError] = []

    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        with Session(engine) as session, session.begin():
            with pytest.raises(PayloadError) as error:
                ctx.complete({1, 2}, connection=session)
            refused.append(error.value)

    made = work.enqueue()
    burst()
    assert refused[0].field is not None
    assert refused[0].field.startswith("result")
    assert app.client.get(made.id).status is Status.COMPLETED


def test_context_of_a_direct_call_says_that_there_is_no_task(app: App, database_url: str) -> None:
    @app.task
    def work(ctx: Context) -> None:
        with psycopg.connect(database_url) as raw:
            ctx.complete(connection=raw)

    with pytest.raises(ValueError, match="called directly: let a worker run it"):
        work()
