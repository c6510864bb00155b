"""Which database, and how to it: the URL, the engines, the sessions' settings, and errors in our words.

The URL goes to libpq verbatim through a creator function. SQLAlchemy's own parser refuses what libpq accepts
(several hosts, `postgres://`, keyword strings), and would be a second place that might print a password.
Engines are made per process on first use, so that importing, forking and preloading do no I/O.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
import sqlalchemy as sa
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from sqlalchemy import Connection, Engine
from sqlalchemy.engine import create_engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from . import keys
from .config import DEFAULTS
from .errors import (
    ConfigError,
    DatabaseError,
    NoDatabase,
    PgqueueError,
    RetryTransaction,
    SchemaMismatch,
)

__all__ = ["OLDEST_SERVER", "Database", "mask", "resolve_url", "translate", "translated"]

OLDEST_SERVER = 15
EMBEDDED = "embedded"

_ANSWER_WITHIN = 40.0
"""Seconds after which a server that does not answer counts as gone. More than the server's own statement_timeout: this
one is for servers that are frozen or cut off, and so keep to no time limit."""

_LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE", "PGPORT", "PGUSER")
_WAYS_OUT = (
    "set PGQUEUE_DATABASE_URL or pass --database-url postgresql://user@host/database,"
    " or ask for the embedded server with --database-url embedded"
)

# Against half-open connections: a worker that waits for a reply that cannot come notices within seconds.
_CONNECT_DEFAULTS: Mapping[str, object] = {
    "connect_timeout": 5,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    "application_name": "pgqueue",
    "client_encoding": "utf8",
}

_SESSION: Mapping[str, str] = {
    # A plan that was prepared on an empty table stays a sequential scan until somebody analyses it.
    "enable_seqscan": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
    "lock_timeout": "5s",
    "statement_timeout": "30s",
    "idle_in_transaction_session_timeout": "60s",
    "timezone": "UTC",
}


def resolve_url(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The database to use: what was given, else PGQUEUE_DATABASE_URL, DATABASE_URL, or libpq's PG* variables.

    Returns "embedded", a URL or keyword string for libpq, or "" for "as the PG* variables say". A driver part
    (`postgresql+asyncpg://`) is dropped. Raises NoDatabase when nothing names one: the embedded server is never a
    silent fallback.
    """
    environ = os.environ if environ is None else environ
    for source, url in (
        ("the database URL", given),
        ("PGQUEUE_DATABASE_URL", environ.get("PGQUEUE_DATABASE_URL")),
        ("DATABASE_URL", environ.get("DATABASE_URL")),
    ):
        if url:
            return _libpq_url(url.strip(), source)
    if any(environ.get(name) for name in _LIBPQ_VARIABLES):
        return ""
    raise NoDatabase(f"no database given: {_WAYS_OUT}")


def _libpq_url(url: str, source: str) -> str:
    if url == EMBEDDED:
        return url
    scheme, separator, rest = url.partition("://")
    if separator:
        base = scheme.partition("+")[0].lower()
        if base not in ("postgresql", "postgres"):
            raise ConfigError(
                f"{source}: {base}:// is not PostgreSQL; use postgresql://user@host/database", field="database_url"
            )
        url = f"postgresql://{rest}"
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # libpq's own text repeats the URL, password included.
        raise ConfigError(
            f"{source} is neither a PostgreSQL URL nor a keyword string; write postgresql://user:password@host/database,"
            " with special characters in the password percent-encoded",
            field="database_url",
        ) from None
    return url


def mask(url: str) -> str:
    """The URL fit for a log: no password, wherever libpq would accept one."""
    try:
        return _masked(url)
    except ValueError:
        # Not even a URL: say nothing of it.
        return "postgresql://…"


def _masked(url: str) -> str:
    if "://" not in url:
        return re.sub(r"(?i)\b((?:ssl)?password)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)", r"\1=***", url)
    parts = urlsplit(url)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    query = [(k, "***" if k.lower() in ("password", "sslpassword") else v) for k, v in parse_qsl(parts.query)]
    netloc = f"{user}{':***' if colon else ''}{at}{hosts}"
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="*/"), ""))


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    if "://" not in url:
        return make_conninfo(url, dbname=name)
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "/" + quote(name), parts.query, ""))


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
        self._deadline = _Deadline(_ANSWER_WITHIN)
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
                from .embedded import acquire

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
                    "postgresql+psycopg://",
                    creator=lambda: self._connect(url),
                    pool_size=self.pool_size,
                    max_overflow=0,
                    pool_timeout=30,
                    isolation_level="READ COMMITTED",
                    hide_parameters=True,
                    use_native_hstore=False,
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
                    "postgresql+psycopg://",
                    async_creator=lambda: self._aconnect(url),
                    pool_size=self.pool_size,
                    max_overflow=0,
                    pool_timeout=30,
                    isolation_level="READ COMMITTED",
                    hide_parameters=True,
                    use_native_hstore=False,
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
        self._deadline = _Deadline(seconds)

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
        wanted: dict[str, Any] = {k: v for k, v in _CONNECT_DEFAULTS.items() if k not in given}
        if self._application_name and "application_name" not in given:
            wanted["application_name"] = self._application_name
        if "connect_timeout" not in given and os.environ.get("PGCONNECT_TIMEOUT"):
            del wanted["connect_timeout"]
        if self.pooler:
            wanted["prepare_threshold"] = None
        return wanted

    def _connect(self, url: str) -> psycopg.Connection[Any]:
        connection = _Connection.connect(url, autocommit=True, **self._kwargs(url))
        connection.database = self
        try:
            if not self.pooler:
                connection.execute(_SET_SESSION, _SESSION)
            connection.autocommit = False
        except BaseException:
            connection.close()
            raise
        return connection

    async def _aconnect(self, url: str) -> psycopg.AsyncConnection[Any]:
        connection = await _AsyncConnection.connect(url, autocommit=True, **self._kwargs(url))
        connection.database = self
        try:
            if not self.pooler:
                await connection.execute(_SET_SESSION, _SESSION)
            await connection.set_autocommit(False)
        except BaseException:
            await connection.close()
            raise
        return connection

    def _settings_for_pooler(self, connection: Connection) -> None:
        if self.pooler:
            connection.execute(_SET_LOCAL, {k: v for k, v in _SESSION.items() if k in _LOCAL})


# -- no answer is waited for without end


class _Deadline:
    """How long a call may take from its beginning, or from when this was said, whichever is later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._said = time.monotonic()

    def passed(self, began: float) -> bool:
        return time.monotonic() - max(began, self._said) > self.seconds


class _NoAnswer(Exception):
    """Raised inside of a wait, and translated outside of it."""


def _bounded(exchange: Generator[Any, Any, Any], database: Database | None) -> Generator[Any, Any, Any]:
    """The driver's exchange with the server, which it steps at least ten times a second, until it takes too long."""
    began = time.monotonic()
    try:
        wanted = next(exchange)
        while True:
            ready = yield wanted
            if not ready and database is not None and database._deadline.passed(began):
                raise _NoAnswer
            wanted = exchange.send(ready)
    except StopIteration as done:
        return done.value


class _Connection(psycopg.Connection[Any]):
    """One that does not wait without end.

    The server's time limits and TCP's keepalives see neither a server that is stopped nor one whose disk hangs.
    """

    database: Database | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(_bounded(gen, self.database), *args, **kwargs)
        except _NoAnswer:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from None


class _AsyncConnection(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    database: Database | None = None

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().wait(_bounded(gen, self.database), *args, **kwargs)
        except _NoAnswer:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from None


_SET_SESSION = "select " + ", ".join(f"set_config('{name}', %({name})s, false)" for name in _SESSION)
_LOCAL = ("enable_seqscan", "lock_timeout", "statement_timeout", "timezone")
_SET_LOCAL = sa.text("select " + ", ".join(f"set_config('{name}', :{name}, true)" for name in _LOCAL))


def _drop_stale_plans(context: sa.engine.ExceptionContext) -> None:
    """A prepared statement whose table was migrated fails for ever on its connection: let go of that connection."""
    if getattr(context.original_exception, "sqlstate", None) == "0A000":
        context.is_disconnect = True
        context.invalidate_pool_on_disconnect = False


# -- errors in our words

_UNREACHABLE = "the server cannot be reached: check that it runs and that the address is right"
_BY_STATE: Mapping[str, tuple[type[PgqueueError], str]] = {
    "28P01": (DatabaseError, "the server refused the password: check user and password"),
    "28000": (DatabaseError, "the server refused the login: check the user and pg_hba.conf"),
    "3D000": (DatabaseError, "there is no such database: create it, or name another"),
    "3F000": (SchemaMismatch, "the queue's schema is not there: run `pgqueue db upgrade`"),
    "42P01": (SchemaMismatch, "the queue's tables are not there: run `pgqueue db upgrade`"),
    "42703": (SchemaMismatch, "the queue's tables are older than this program: run `pgqueue db upgrade`"),
    "42501": (DatabaseError, "the database role may not do that: see docs/operations.md for the grants"),
    "25006": (DatabaseError, "the server is read-only (a standby?): connect to the primary"),
    "40001": (RetryTransaction, "the transaction lost a race: roll back and run it again"),
    "40P01": (RetryTransaction, "the transaction was in a deadlock: roll back and run it again"),
    "55P03": (DatabaseError, "somebody's open transaction holds a lock on it: try again, or end that transaction"),
    "57014": (DatabaseError, "the statement took longer than its time limit: try again, or narrow the request"),
    "53300": (DatabaseError, "the server has no connection left: raise max_connections or use fewer"),
    "53100": (DatabaseError, "the server's disk is full: make room"),
    "25P03": (DatabaseError, "the server ended an idle transaction: try again"),
    "0A000": (DatabaseError, "the schema changed under a prepared statement: try again"),
    "57P03": (DatabaseError, "the server is starting up or shutting down: try again"),
}


def translate(error: BaseException, database: Database | None = None) -> PgqueueError | None:
    """The error of ours that says the same, or None for what is not the database's to say (a bug of ours)."""
    if isinstance(error, PoolTimeout):
        return DatabaseError(
            "no pooled connection came free within 30 s: use fewer threads, or a larger pool (Client(pool_size=…))"
        )
    original = error.orig if isinstance(error, DBAPIError) else error
    state = getattr(original, "sqlstate", None) or getattr(original, "pgcode", None)
    where = f" ({database.masked})" if database is not None else ""
    if state is not None and state in _BY_STATE:
        kind, text = _BY_STATE[state]
        return kind(text + where)
    if state is not None and state[:2] in ("08", "57", "53", "58"):
        return DatabaseError(
            f"the database went away ({state}): what was asked may not have happened; try again{where}"
        )
    broken = isinstance(error, DBAPIError) and error.connection_invalidated
    if state is None and (broken or isinstance(original, psycopg.OperationalError | psycopg.InterfaceError)):
        return _connection_error(original, where)
    return None


def _connection_error(original: BaseException | None, where: str) -> DatabaseError:
    # libpq's text names host, port, user and reason, never the password; several hosts give several lines.
    text = " ".join(str(original).split())
    known = (
        ("password authentication failed", _BY_STATE["28P01"][1]),
        ("no password supplied", "the server asks for a password: put one in the URL, in PGPASSWORD or in ~/.pgpass"),
        ("does not exist", "the server knows no such database or user: create it, or name another"),
        ("expected authentication request", "what answers there is not PostgreSQL: check host and port"),
        ("received invalid response", "what answers there is not PostgreSQL: check host and port"),
        ("invalid response to SSL", "what answers there is not PostgreSQL: check host and port"),
        ("too many clients", _BY_STATE["53300"][1]),
        ("no pg_hba.conf entry", _BY_STATE["28000"][1]),
        ("session is read-only", _BY_STATE["25006"][1]),
        ("starting up", _BY_STATE["57P03"][1]),
    )
    for sign, advice in known:
        if sign in text:
            return DatabaseError(f"{advice}{where}")
    return DatabaseError(f"{_UNREACHABLE}{where}: {text[:300]}")


@contextmanager
def translated(database: Database | None = None) -> Iterator[None]:
    """Raise ours instead of the driver's and SQLAlchemy's; the cause is kept, without the values in its text."""
    try:
        yield
    except Exception as error:
        _hide_values(error)
        ours = translate(error, database) if isinstance(error, SQLAlchemyError | psycopg.Error | OSError) else None
        if ours is None:
            raise
        raise ours from error


_VALUES = re.compile(r"\nDETAIL:\s+Failing row contains .*|\nDETAIL:\s+Token .*|\nCONTEXT:\s+JSON data, .*", re.DOTALL)


def _hide_values(error: BaseException | None) -> None:
    """No text of it, nor of what caused it, holds a payload: a traceback prints them all.

    A caller's engine, unlike our own, shows the parameters; and the server quotes the row that it refuses.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, StatementError):
            error.hide_parameters = True
            _hide_values(error.orig)
        error.args = tuple(_VALUES.sub("", text) if isinstance(text, str) else text for text in error.args)
        # asyncpg's errors keep it apart from their text.
        if str(getattr(error, "detail", None)).startswith(("Failing row contains", "Token ")):
            error.detail = None  # type: ignore[attr-defined]
        error = error.__cause__ or error.__context__
