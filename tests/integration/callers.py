"""Connections of every kind, as people who use the queue may hold them, each seen through the same few handles."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import asyncpg
import psycopg
import psycopg2
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from tests.support import Blocking


@dataclasses.dataclass(frozen=True)
class Caller:
    """A connection and what its owner does with it.

    client: pgqueue's client in the caller's transaction. write: the owner's own row. savepoint: a block within a
    savepoint, rolled back when it raises. state: what must be the same before and after.
    """

    connection: Any
    client: Client
    write: Callable[[int], object]
    commit: Callable[[], object]
    rollback: Callable[[], object]
    savepoint: Callable[[], contextlib.AbstractContextManager[object]]
    state: Callable[[], object]


Kind = Callable[..., contextlib.AbstractContextManager[Caller]]
"""`kind(database, isolation=None, autocommit=None)`. autocommit: "engine" or "options": where it was asked for."""


def insert(n: int) -> str:
    return f"insert into public.orders values ({n})"


def _engine_options(isolation: str | None, autocommit: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    level = isolation or ("AUTOCOMMIT" if autocommit else None)
    if level is None:
        return {}, {}
    given = {"isolation_level": level}
    return (given, {}) if autocommit == "engine" else ({}, given)


def sqlalchemy_sync(driver: str, shape: str) -> Kind:
    connect: dict[str, Callable[[str], Any]] = {"psycopg": psycopg.connect, "psycopg2": psycopg2.connect}

    @contextlib.contextmanager
    def kind(database: Database, *, isolation: str | None = None, autocommit: str | None = None) -> Iterator[Caller]:
        of_engine, of_options = _engine_options(isolation, autocommit)
        engine = sa.create_engine(f"postgresql+{driver}://", creator=lambda: connect[driver](database.url), **of_engine)
        bound = engine.execution_options(**of_options)
        mine: Any
        with contextlib.ExitStack() as stack:
            stack.callback(engine.dispose)
            if shape == "connection":
                mine = bound.connect()
            else:
                mine = Session(bound) if shape == "session" else scoped_session(sessionmaker(bound))
            stack.callback(mine.remove if shape == "scoped" else mine.close)
            yield Caller(
                mine,
                Client(database).on(mine),
                lambda n: mine.execute(sa.text(insert(n))),
                mine.commit,
                mine.rollback,
                mine.begin_nested,
                lambda: _seen(mine if shape == "connection" else mine.connection()),
            )

    return kind


def _seen(connection: sa.Connection) -> object:
    raw = connection.connection.dbapi_connection
    assert raw is not None
    return (
        dict(connection.get_execution_options()),
        connection.in_transaction(),
        connection.closed,
        id(raw),
        getattr(raw, "autocommit", None),
        getattr(raw, "isolation_level", None),
        getattr(raw, "row_factory", None),
        getattr(raw, "cursor_factory", None),
    )


def sqlalchemy_async(driver: str, shape: str) -> Kind:
    connect: dict[str, Any] = {"psycopg": psycopg.AsyncConnection.connect, "asyncpg": asyncpg.connect}

    @contextlib.contextmanager
    def kind(database: Database, *, isolation: str | None = None, autocommit: str | None = None) -> Iterator[Caller]:
        of_engine, of_options = _engine_options(isolation, autocommit)
        engine = create_async_engine(
            f"postgresql+{driver}://", async_creator=lambda: connect[driver](database.url), **of_engine
        )
        bound = engine.execution_options(**of_options)
        with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
            run = runner.run
            stack.callback(lambda: run(engine.dispose()))

            async def begin() -> Any:
                if shape == "connection":
                    return await bound.connect()
                if shape == "session":
                    return AsyncSession(bound)
                # One scope for the whole test: each call of the runner is a task of its own.
                return async_scoped_session(async_sessionmaker(bound), scopefunc=lambda: 0)

            mine = run(begin())
            stack.callback(lambda: run(mine.remove() if shape == "scoped" else mine.close()))

            @contextlib.asynccontextmanager
            async def savepoint() -> AsyncIterator[None]:
                async with mine.begin_nested():
                    yield

            async def state() -> object:
                inner = mine if shape == "connection" else await mine.connection()
                return await inner.run_sync(_seen)

            yield Caller(
                mine,
                cast("Client", Blocking(AsyncClient(database).on(mine), runner)),
                lambda n: run(_awaited(mine.execute, sa.text(insert(n)))),
                lambda: run(mine.commit()),
                lambda: run(mine.rollback()),
                lambda: _blocking(savepoint(), runner),
                lambda: run(state()),
            )

    return kind


async def _awaited(verb: Callable[..., Any], *arguments: object) -> Any:
    return await verb(*arguments)


@contextlib.contextmanager
def _blocking(block: contextlib.AbstractAsyncContextManager[object], runner: asyncio.Runner) -> Iterator[None]:
    runner.run(block.__aenter__())
    try:
        yield
    except BaseException as error:
        if not runner.run(block.__aexit__(type(error), error, error.__traceback__)):
            raise
    else:
        runner.run(block.__aexit__(None, None, None))


def bare(*, pipeline: bool = False, **options: Any) -> Kind:
    """A psycopg connection."""

    @contextlib.contextmanager
    def kind(database: Database, *, isolation: str | None = None, autocommit: str | None = None) -> Iterator[Caller]:
        mine = psycopg.connect(database.url, autocommit=autocommit is not None, **options)
        if isolation:
            mine.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]
        with contextlib.closing(mine), mine.pipeline() if pipeline else contextlib.nullcontext():
            yield Caller(
                mine,
                Client(database).on(mine),
                lambda n: mine.execute(insert(n)),
                mine.commit,
                mine.rollback,
                mine.transaction,
                lambda: _raw_state(mine),
            )

    return kind


def bare_async(*, pipeline: bool = False, **options: Any) -> Kind:
    """A psycopg AsyncConnection."""

    @contextlib.contextmanager
    def kind(database: Database, *, isolation: str | None = None, autocommit: str | None = None) -> Iterator[Caller]:
        with asyncio.Runner() as runner, contextlib.ExitStack() as stack:
            run = runner.run
            mine = run(psycopg.AsyncConnection.connect(database.url, autocommit=autocommit is not None, **options))
            stack.callback(lambda: run(mine.close()))
            if isolation:
                run(mine.set_isolation_level(psycopg.IsolationLevel[isolation.replace(" ", "_")]))
            if pipeline:
                stack.enter_context(_blocking(mine.pipeline(), runner))
            yield Caller(
                mine,
                cast("Client", Blocking(AsyncClient(database).on(mine), runner)),
                lambda n: run(mine.execute(insert(n))),
                lambda: run(mine.commit()),
                lambda: run(mine.rollback()),
                lambda: _blocking(mine.transaction(), runner),
                lambda: _raw_state(mine),
            )

    return kind


def _raw_state(raw: Any) -> object:
    return (
        raw.autocommit,
        raw.isolation_level,
        raw.row_factory,
        raw.cursor_factory,
        raw.prepare_threshold,
        raw.closed,
        # Within a pipeline the status is not known before a sync.
        None if raw.pgconn.pipeline_status else raw.info.transaction_status,
        raw.pgconn.pipeline_status,
    )


KINDS: dict[str, Kind] = {
    **{f"{d}-{s}": sqlalchemy_sync(d, s) for d in ("psycopg", "psycopg2") for s in ("connection", "session", "scoped")},
    **{
        f"async-{d}-{s}": sqlalchemy_async(d, s)
        for d in ("psycopg", "asyncpg")
        for s in ("connection", "session", "scoped")
    },
    "bare": bare(),
    "bare-dict-row": bare(row_factory=dict_row),
    "bare-client-cursor": bare(cursor_factory=psycopg.ClientCursor),
    "bare-raw-cursor": bare(cursor_factory=psycopg.RawCursor),
    "bare-pipeline": bare(pipeline=True),
    "bare-unprepared": bare(prepare_threshold=None),
    "bare-async": bare_async(),
    "bare-async-dict-row": bare_async(row_factory=dict_row),
    "bare-async-client-cursor": bare_async(cursor_factory=psycopg.AsyncClientCursor),
    "bare-async-pipeline": bare_async(pipeline=True),
}
