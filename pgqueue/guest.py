"""A caller's connection, whatever its kind, as a SQLAlchemy Connection in the caller's own transaction.

Nothing here commits, rolls back, sets, closes or changes options of it: the caller began the transaction and ends it.
A connection in autocommit has no transaction to join; it gets one of its own for the one call.

A bare psycopg connection is put under a SQLAlchemy dialect whose begin, commit, rollback and close do nothing, so that
the one set of Core statements serves it too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from sqlalchemy import Connection, Engine, text
from sqlalchemy.dialects.postgresql.psycopg import (
    AsyncAdapt_psycopg_connection,
    PGDialect_psycopg,
    PGDialectAsync_psycopg,
)
from sqlalchemy.engine import URL
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.pool import NullPool

from .errors import InputError

if TYPE_CHECKING:
    AnyConnection: TypeAlias = Connection | Session | scoped_session[Any] | psycopg.Connection[Any]
    AnyAsyncConnection: TypeAlias = (
        AsyncConnection | AsyncSession | async_scoped_session[Any] | psycopg.AsyncConnection[Any]
    )

__all__ = ["AnyAsyncConnection", "AnyConnection", "ajoined", "joined"]

_raw: ContextVar[Any] = ContextVar("_raw")


class _NeverEnds:
    """What a dialect does at the ends of connections and transactions: nothing."""

    supports_statement_cache = True

    def on_connect(self) -> None:
        return None

    def initialize(self, connection: Connection) -> None: ...

    def do_begin(self, dbapi_connection: Any) -> None: ...

    def do_commit(self, dbapi_connection: Any) -> None: ...

    def do_rollback(self, dbapi_connection: Any) -> None: ...

    def do_close(self, dbapi_connection: Any) -> None: ...

    def do_terminate(self, dbapi_connection: Any) -> None: ...


class _Dialect(_NeverEnds, PGDialect_psycopg):
    supports_statement_cache = True


class _AsyncDialect(_NeverEnds, PGDialectAsync_psycopg):
    supports_statement_cache = True


class _Cursor(psycopg.Cursor[Any]):
    """Inside the caller's pipeline a result is not there until a sync: a nested pipeline block brings one."""

    def execute(self, *args: Any, **kwargs: Any) -> _Cursor:
        if self.connection.pgconn.pipeline_status:
            with self.connection.pipeline():
                super().execute(*args, **kwargs)
        else:
            super().execute(*args, **kwargs)
        return self


class _AsyncCursor(psycopg.AsyncCursor[Any]):
    async def execute(self, *args: Any, **kwargs: Any) -> _AsyncCursor:
        if self.connection.pgconn.pipeline_status:
            async with self.connection.pipeline():
                await super().execute(*args, **kwargs)
        else:
            await super().execute(*args, **kwargs)
        return self


class _Guest:
    """The caller's connection, but with cursors that give tuples, whatever its row or cursor factory."""

    def __init__(self, raw: psycopg.Connection[Any]) -> None:
        self._raw = raw

    def cursor(self) -> psycopg.Cursor[Any]:
        return _Cursor(self._raw, row_factory=tuple_row)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


class _AsyncGuest:
    def __init__(self, raw: psycopg.AsyncConnection[Any]) -> None:
        self._raw = raw

    def cursor(self) -> Any:
        return _AsyncCursor(self._raw, row_factory=tuple_row)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)


def _engine(dialect: PGDialect_psycopg, connect: Any) -> Engine:
    pool = NullPool(connect, dialect=dialect, reset_on_return=None)
    return Engine(pool, dialect, URL.create("postgresql+psycopg"), hide_parameters=True)


_sync_engine = _engine(_Dialect(dbapi=psycopg), lambda: _Guest(_raw.get()))  # type: ignore[no-untyped-call]
_async_dialect = _AsyncDialect(dbapi=PGDialectAsync_psycopg.import_dbapi())  # type: ignore[no-untyped-call]
_async_engine = AsyncEngine(
    _engine(_async_dialect, lambda: AsyncAdapt_psycopg_connection(_async_dialect.dbapi, _AsyncGuest(_raw.get())))
)


@contextmanager
def joined(connection: AnyConnection) -> Iterator[Connection]:
    """The caller's transaction as a SQLAlchemy Connection. InputError for what is no synchronous connection."""
    if isinstance(connection, Connection):
        with _own_transaction(connection):
            yield connection
    elif isinstance(connection, Session | scoped_session):
        inner = connection.connection()
        with _own_transaction(inner):
            yield inner
    elif isinstance(connection, psycopg.Connection):
        with _synced(connection):
            own = _has_no_transaction(connection)
        with connection.transaction() if own else nullcontext():
            token = _raw.set(connection)
            try:
                with _sync_engine.connect() as guest:
                    yield guest
            finally:
                _raw.reset(token)
    else:
        raise _no_connection(connection, "a SQLAlchemy Connection or Session, or a psycopg Connection")


@asynccontextmanager
async def ajoined(connection: AnyAsyncConnection) -> AsyncIterator[AsyncConnection]:
    """The caller's transaction as a SQLAlchemy AsyncConnection. InputError for what is no asynchronous connection."""
    if isinstance(connection, AsyncConnection):
        async with _own_async_transaction(connection):
            yield connection
    elif isinstance(connection, AsyncSession | async_scoped_session):
        inner = await connection.connection()
        async with _own_async_transaction(inner):
            yield inner
    elif isinstance(connection, psycopg.AsyncConnection):
        async with _synced(connection):
            own = _has_no_transaction(connection)
        async with connection.transaction() if own else nullcontext():
            token = _raw.set(connection)
            try:
                async with _async_engine.connect() as guest:
                    yield guest
            finally:
                _raw.reset(token)
    else:
        raise _no_connection(connection, "a SQLAlchemy AsyncConnection or AsyncSession, or a psycopg AsyncConnection")


_ASYNC = (AsyncConnection, AsyncSession, async_scoped_session, psycopg.AsyncConnection)
_SYNC = (Connection, Session, scoped_session, psycopg.Connection)


def _no_connection(given: object, expected: str) -> InputError:
    twin = "; use the async verb with it" if isinstance(given, _ASYNC) else ""
    twin = "; use the synchronous verb with it" if isinstance(given, _SYNC) else twin
    return InputError(f"connection: expected {expected}, not {type(given).__name__}{twin}", field="connection")


def _synced(connection: Any) -> Any:
    """Within a caller's pipeline: a block that waits for what was sent; the status is not known before."""
    return connection.pipeline() if connection.pgconn.pipeline_status else nullcontext()


def _has_no_transaction(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> bool:
    return connection.autocommit and connection.info.transaction_status is TransactionStatus.IDLE


def _in_autocommit(connection: Connection) -> bool:
    # A public way to ask exists only since SQLAlchemy 2.0.43, and not for every driver.
    options = connection.get_execution_options()
    if options.get("isolation_level") is not None:
        return bool(options["isolation_level"] == "AUTOCOMMIT")
    level = connection.dialect._on_connect_isolation_level
    return level == "AUTOCOMMIT"


@contextmanager
def _own_transaction(connection: Connection) -> Iterator[None]:
    if not _in_autocommit(connection):
        yield
        return
    connection.execute(text("begin"))
    try:
        yield
    except BaseException:
        connection.execute(text("rollback"))
        raise
    connection.execute(text("commit"))


@asynccontextmanager
async def _own_async_transaction(connection: AsyncConnection) -> AsyncIterator[None]:
    if not _in_autocommit(connection.sync_connection):  # type: ignore[arg-type]
        yield
        return
    await connection.execute(text("begin"))
    try:
        yield
    except BaseException:
        await connection.execute(text("rollback"))
        raise
    await connection.execute(text("commit"))
