"""Engines and the sessions they make: per process, on first use, with settings that a queue can live with."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from .. import keys
from ..config import DEFAULTS
from .answers import ANSWER_WITHIN, AsyncBoundedConnection, BoundedConnection, Deadline
from .translate import translated
from .url import EMBEDDED, mask, resolve_url

# Against half-open connections: a worker that waits for a reply that cannot come notices within seconds.
CONNECT_DEFAULTS: Mapping[str, object] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "pgqueue",
    "client_encoding": "utf8",
}

SESSION: Mapping[str, str] = {
    # A plan that was prepared on an empty table stays a sequential scan until somebody analyses it.
    "enable_seqscan": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
}


DIALECT = "postgresql+psycopg://"
ENGINE: Mapping[str, Any] = {
    "max_overflow": 0,
    "pool_timeout": 30,
    "isolation_level": "READ COMMITTED",
    # A payload must not get into a log or a traceback.
    "hide_parameters": True,
    # Else each connection asks the catalogue for a type that we do not use.
    "use_native_hstore": False,
}


class Database:
    """One database as this process sees it: sync and async engines, made on first use, per process.

    url: as `resolve_url` gives it; None: resolved on first use.
    pooler: the connection goes through a pooler in transaction mode: nothing is prepared, no session is changed.
    pool_size: connections kept, at the most, by each engine.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        schema: str | None = None,
        pooler: bool | None = None,
        pool_size: int = 10,
        application_name: str | None = None,
    ) -> None:
        self._given = url
        self.schema = keys.check_schema(schema or os.environ.get("PGQUEUE_SCHEMA") or DEFAULTS.schema)
        self.pooler = os.environ.get("PGQUEUE_POOLER") == "transaction" if pooler is None else pooler
        self.pool_size = pool_size
        self._application_name = application_name
        self._lock = threading.Lock()
        self._deadline = Deadline(ANSWER_WITHIN)
        self._pid = 0
        self._engine: Engine | None = None
        self._async_engine: AsyncEngine | None = None
        self._embedded: Any = None

    def sibling(self, *, pool_size: int | None = None, application_name: str | None = None) -> Database:
        """The same database with engines of its own: another event loop, or a thread that must not wait for a pool."""
        return Database(
            self._given,
            schema=self.schema,
            pooler=self.pooler,
            pool_size=pool_size or self.pool_size,
            application_name=application_name or self._application_name,
        )

    @property
    def url(self) -> str:
        """What libpq is given. Asks for the embedded server when that is what was asked for."""
        url = resolve_url(self._given)
        if url != EMBEDDED:
            return url
        with self._lock:
            if self._embedded is None:
                from ..embedded import acquire

                self._embedded = acquire()
        return str(self._embedded.url)

    @property
    def masked(self) -> str:
        """The URL for people; "embedded" for the embedded server."""
        url = resolve_url(self._given)
        return url if url == EMBEDDED else mask(url) or "the database of PGHOST, PGDATABASE …"

    @property
    def engine(self) -> Engine:
        engine = self._engine
        if engine is not None and self._pid == os.getpid():
            return engine
        self._forget_parents_engines()
        url = self.url
        with self._lock:
            if self._engine is None:
                self._engine = create_engine(
                    DIALECT, creator=lambda: self._connect(url), pool_size=self.pool_size, **ENGINE
                )
                sa.event.listen(self._engine, "handle_error", _drop_stale_plans)
            return self._engine

    @property
    def async_engine(self) -> AsyncEngine:
        self._forget_parents_engines()
        url = self.url
        with self._lock:
            if self._async_engine is None:
                self._async_engine = create_async_engine(
                    DIALECT, async_creator=lambda: self._aconnect(url), pool_size=self.pool_size, **ENGINE
                )
                sa.event.listen(self._async_engine.sync_engine, "handle_error", _drop_stale_plans)
            return self._async_engine

    @contextmanager
    def begin(self, *, lock_timeout: timedelta | None = None) -> Iterator[Connection]:
        """A transaction of our own: READ COMMITTED, committed at the end, rolled back by an exception.

        lock_timeout: how long its statements wait for a lock, instead of the session's 5 s.
        """
        with translated(self), self.engine.begin() as connection:
            self._settings_for_pooler(connection)
            if lock_timeout is not None:
                wait = f"{int(lock_timeout.total_seconds() * 1000)}ms"
                connection.execute(sa.text("select set_config('lock_timeout', :wait, true)"), {"wait": wait})
            yield connection

    @contextmanager
    def autocommit(self) -> Iterator[Connection]:
        """A connection for verbs of one statement, which then costs one round trip instead of three."""
        if self.pooler:
            with self.begin() as connection:
                yield connection
            return
        with translated(self), self.engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @asynccontextmanager
    async def abegin(self, *, autocommit: bool = False) -> AsyncIterator[AsyncConnection]:
        """As `begin`, or as `autocommit`, for asyncio."""
        with translated(self):
            if autocommit and not self.pooler:
                async with self.async_engine.connect() as connection:
                    yield await connection.execution_options(isolation_level="AUTOCOMMIT")
                return
            async with self.async_engine.begin() as connection:
                await connection.run_sync(self._settings_for_pooler)
                yield connection

    def raw(self, *, autocommit: bool = True) -> psycopg.Connection[Any]:
        """A bare psycopg connection of its own, for LISTEN. The caller closes it."""
        with translated(self):
            connection = self._connect(self.url)
            connection.autocommit = autocommit
            return connection

    def hurry(self, seconds: float) -> None:
        """From now on wait no longer than so many seconds for any answer, calls under way included: they then raise
        DatabaseError, although the server may yet do what was asked.
        """
        self._deadline = Deadline(seconds)

    def dispose(self) -> None:
        """Close pooled connections and let go of the embedded server. The Database can be used again afterwards."""
        with self._lock:
            engine, self._engine = self._engine, None
            embedded, self._embedded = self._embedded, None
        if engine is not None:
            engine.dispose()
        if embedded is not None:
            embedded.release()

    async def adispose(self) -> None:
        with self._lock:
            engine, self._async_engine = self._async_engine, None
        if engine is not None:
            await engine.dispose()
        self.dispose()

    def _forget_parents_engines(self) -> None:
        if self._pid == os.getpid():
            return
        with self._lock:
            for engine in (self._engine, self._async_engine and self._async_engine.sync_engine):
                if engine is not None and self._pid:
                    # After a fork: the sockets belong to the parent, so let go of them without a goodbye.
                    engine.dispose(close=False)
            self._engine = self._async_engine = None
            self._pid = os.getpid()

    def _kwargs(self, url: str) -> dict[str, Any]:
        given = conninfo_to_dict(url)
        wanted: dict[str, Any] = {k: v for k, v in CONNECT_DEFAULTS.items() if k not in given}
        if self._application_name and "application_name" not in given:
            wanted["application_name"] = self._application_name
        if "connect_timeout" not in given and os.environ.get("PGCONNECT_TIMEOUT"):
            del wanted["connect_timeout"]
        if self.pooler:
            wanted["prepare_threshold"] = None
        return wanted

    def _connect(self, url: str) -> psycopg.Connection[Any]:
        connection = BoundedConnection.connect(url, autocommit=True, **self._kwargs(url))
        connection.deadline = lambda: self._deadline
        try:
            if not self.pooler:
                connection.execute(_SET_SESSION, SESSION)
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    async def _aconnect(self, url: str) -> psycopg.AsyncConnection[Any]:
        connection = await AsyncBoundedConnection.connect(url, autocommit=True, **self._kwargs(url))
        connection.deadline = lambda: self._deadline
        try:
            if not self.pooler:
                await connection.execute(_SET_SESSION, SESSION)
            await connection.set_autocommit(False)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _settings_for_pooler(self, connection: Connection) -> None:
        if self.pooler:
            connection.execute(_SET_LOCAL, {k: v for k, v in SESSION.items() if k in _LOCAL})


_SET_SESSION = "select " + ", ".join(f"set_config('{name}', %({name})s, false)" for name in SESSION)
_LOCAL = ("enable_seqscan", "lock_timeout", "statement_timeout", "timezone")
_SET_LOCAL = sa.text("select " + ", ".join(f"set_config('{name}', :{name}, true)" for name in _LOCAL))


def _drop_stale_plans(context: sa.engine.ExceptionContext) -> None:
    """A prepared statement whose table was migrated fails for ever on its connection: let go of that connection."""
    if getattr(context.original_exception, "sqlstate", None) == "0A000":
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False
