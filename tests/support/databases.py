"""Databases on the run's server: one migrated template, copied for each test."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import psycopg
from psycopg import sql

from pgqueue import migrate
from pgqueue.database import Database

from .servers import Provided, prefix

Sql: TypeAlias = Callable[..., list[Any]]
"""`sql(text, *params)`: run it, committed, on a connection of its own; the rows as tuples."""

_numbers = itertools.count()


def somebody_waits(sql: Sql) -> bool:
    """Whether somebody in this database stands still before a lock."""
    waiting = "select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    return bool(sql(waiting))


@contextlib.contextmanager
def connect(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A bare connection in autocommit, closed afterwards."""
    connection = psycopg.connect(url, autocommit=True)
    try:
        yield connection
    finally:
        connection.close()


def template(server: Provided) -> str:
    """The name of the run's migrated database, made by whichever process comes first."""
    name, building = f"{prefix()}template", f"{prefix()}building"
    with connect(server.url) as admin:
        admin.execute("select pg_advisory_lock(hashtextextended(%s, 0))", [name])
        if admin.execute("select from pg_database where datname = %s", [name]).fetchone() is None:
            # Renamed only when it is whole: nobody copies half a template, nor one that somebody is connected to.
            admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(building)))
            admin.execute(sql.SQL("create database {}").format(sql.Identifier(building)))
            database = Database(server.url_for(building), schema="pgqueue")
            migrate.upgrade(database)
            database.dispose()
            admin.execute(sql.SQL("alter database {} rename to {}").format(*map(sql.Identifier, (building, name))))
    return name


def create(server: Provided, source: str = "template0") -> str:
    """A new database, a copy of `source`; its name."""
    name = f"{prefix()}t_{os.getpid()}_{next(_numbers)}"
    # A copy of files is ten times as quick as one that is written to the WAL, where nothing is synced.
    copy = sql.SQL("create database {} template {} strategy file_copy")
    with connect(server.url) as admin:
        admin.execute(copy.format(sql.Identifier(name), sql.Identifier(source)))
    return name


def drop(server: Provided, name: str) -> None:
    """Drop it, whoever is still connected."""
    with connect(server.url) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


class Databases:
    """The databases of one process. Making one costs a hundred times as much as washing one, so they are used again.

    Nothing of a test gets through: a database is used again only if nobody is connected to it any more, no object,
    grant or setting in it was touched, what the schema says about itself is as it was, and no table has grown large.
    Otherwise it is dropped, and the next test gets a new copy of the template.
    """

    def __init__(self, server: Provided, template: str) -> None:
        self._server = server
        self._template = template
        self._clean: list[str] = []
        self._prints: dict[str, object] = {}

    @contextlib.contextmanager
    def one(self) -> Iterator[str]:
        """The URL of a database as the template is."""
        name = self._clean.pop() if self._clean else self._create()
        try:
            yield self._server.url_for(name)
        finally:
            if self._washed(name):
                self._clean.append(name)
            else:
                drop(self._server, name)

    def close(self) -> None:
        for name in self._clean:
            drop(self._server, name)

    def _create(self) -> str:
        name = create(self._server, self._template)
        with connect(self._server.url_for(name)) as connection:
            self._prints[name] = connection.execute(_PRINT).fetchone()
        return name

    def _washed(self, name: str) -> bool:
        try:
            with connect(self._server.url_for(name)) as connection:
                if not _is_alone(connection) or connection.execute(_PRINT).fetchone() != self._prints[name]:
                    return False
                connection.execute(_WASH)
                return connection.execute(_SIZE).fetchone() == (True,)
        except psycopg.Error:
            return False


def _is_alone(connection: psycopg.Connection[Any]) -> bool:
    # A server process ends a moment after its connection was closed.
    for _ in range(40):
        others = connection.execute(
            "select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
            " and backend_type = 'client backend'"
        ).fetchall()
        if not others:
            return True
        time.sleep(0.005)
    return False


_CATALOGUES = {
    "pg_namespace": "oid >= 16384 or nspname = 'public'",
    "pg_class": "oid >= 16384",
    "pg_attribute": "attrelid >= 16384",
    "pg_constraint": "oid >= 16384",
    "pg_index": "indexrelid >= 16384",
    "pg_proc": "oid >= 16384",
    "pg_trigger": "true",
    "pg_type": "oid >= 16384",
    "pg_policy": "true",
    "pg_default_acl": "true",
    "pg_db_role_setting": "setdatabase = (select oid from pg_database where datname = current_database())",
}
# Every change of an object writes a new version of its row; statistics are overwritten in place.
_PRINT = "select " + ", ".join(
    [
        f"(select (count(*), sum(xmin::text::bigint))::text from {name} where {which})"
        for name, which in _CATALOGUES.items()
    ]
    + ["(select m::text from pgqueue.meta m)", "(select v::text from pgqueue.schema_version v)"]
)
_TABLES = ("tasks", "task_events", "task_dependencies", "workers", "pauses")
_WASH = "; ".join(f"delete from pgqueue.{table}" for table in _TABLES)
_SIZE = f"select sum(pg_total_relation_size(('pgqueue.' || t)::regclass)) < 4000000 from unnest(array{list(_TABLES)}) t"
