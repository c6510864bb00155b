"""One database for all pairs of a process: each begins anew on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pgqueue.database import Database
from tests.support import Sql, connect, databases, eventually

from .stepper import Stage


@pytest.fixture(scope="module")
def stage_url(migrated: databases.Databases) -> Iterator[str]:
    with migrated.one() as url:
        yield url


@pytest.fixture(scope="module")
def stage_sql(stage_url: str) -> Iterator[Sql]:
    """`sql(text, *params)` on the stage's database."""
    with connect(stage_url) as connection:

        def run(text: str, *params: object) -> list[object]:
            cursor = connection.execute(text, params or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture(scope="module")
def stage(stage_url: str, stage_sql: Sql) -> Iterator[Stage]:
    """Where verbs are stepped; afterwards, the server must have found no deadlock in this database."""
    database = Database(stage_url, schema="pgqueue", pool_size=2)
    before = _deadlocks(stage_sql)
    with Stage(database, stage_sql) as stage:
        yield stage
    database.dispose()
    # A connection's statistics are there for all to see when it has ended.
    eventually(lambda: not stage_sql(_OTHERS))
    assert _deadlocks(stage_sql) == before


def _deadlocks(sql: Sql) -> object:
    return sql("select deadlocks from pg_stat_database where datname = current_database()")[0][0]


_OTHERS = """
select from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"""
