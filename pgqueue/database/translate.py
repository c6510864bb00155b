"""What the driver and SQLAlchemy raise, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import psycopg
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, StatementError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from ..errors import DatabaseError, PgqueueError, RetryTransaction, SchemaMismatch


class Place(Protocol):
    """What an error text calls the database: its URL without a password."""

    @property
    def masked(self) -> str: ...


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


def translate(error: BaseException, database: Place | None = None) -> PgqueueError | None:
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
def translated(database: Place | None = None) -> Iterator[None]:
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
