"""The run's server, a database for each test, and the clients over it.

Who provides the server, and which version it is, is said at the end of the run. Where none can be had, the tests that
need one are skipped with a reason that begins "no server:".
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar, cast

import pytest
from sqlalchemy import Connection

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.errors import PgqueueError

from .support import Blocking, Sql, connect, databases, servers

T = TypeVar("T")

_told = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_told] = []
    if not hasattr(config, "workerinput"):
        os.environ[servers.RUN] = uuid.uuid4().hex[:12]
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # Ignored where the run was started in the background, and what is ignored stays ignored over exec: the programs
        # that tests interrupt would never hear of it.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # No test may reach the database that its caller works with.
    for name in ("PGQUEUE_DATABASE_URL", "DATABASE_URL", "PGQUEUE_SCHEMA", "PGQUEUE_POOLER"):
        os.environ.pop(name, None)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    node.config.stash[_told].extend(getattr(node, "workeroutput", {}).get("pgqueue_server", ()))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    told_by_all = config.stash[_told]
    for told in sorted(set(told_by_all)):
        terminalreporter.write_line(f"database: {told}")


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and (config.stash[_told] or servers.home().exists()):
        servers.clear_up()


@pytest.fixture(scope="session")
def server(pytestconfig: pytest.Config) -> Iterator[servers.Provided]:
    """The run's server."""
    with contextlib.ExitStack() as stack:
        try:
            provided = stack.enter_context(servers.provide())
        except PgqueueError as error:
            pytest.skip(f"no server: {error}")
        pytestconfig.stash[_told].append(str(provided))
        if hasattr(pytestconfig, "workeroutput"):
            pytestconfig.workeroutput["pgqueue_server"] = [str(provided)]
        yield provided


@pytest.fixture(scope="session")
def template(server: servers.Provided) -> str:
    """The migrated database that the tests' databases are copies of."""
    return databases.template(server)


@pytest.fixture(scope="session")
def migrated(server: servers.Provided, template: str) -> Iterator[databases.Databases]:
    """This process's databases."""
    databases_of_this_process = databases.Databases(server, template)
    yield databases_of_this_process
    databases_of_this_process.close()


@pytest.fixture
def database_url(migrated: databases.Databases) -> Iterator[str]:
    """A database with the queue's schema in it, for this test alone."""
    with migrated.one() as url:
        yield url


@pytest.fixture
def empty_database_url(server: servers.Provided) -> Iterator[str]:
    """A database with nothing in it, for this test alone."""
    name = databases.create(server)
    yield server.url_for(name)
    databases.drop(server, name)


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url, schema="pgqueue")
    yield database
    database.dispose()


@pytest.fixture
def client(database: Database) -> Client:
    return Client(database)


@pytest.fixture(params=["sync", "async"])
def face(request: pytest.FixtureRequest, database: Database) -> Iterator[Client]:
    """The client, and then its asynchronous twin seen as if it were one: the test runs once over each."""
    if request.param == "sync":
        yield Client(database)
        return
    with asyncio.Runner() as runner:
        blocking = cast("Client", Blocking(AsyncClient(database), runner))
        yield blocking
        blocking.close()


@pytest.fixture
def async_client(database: Database) -> Callable[[Callable[[AsyncClient], Awaitable[T]]], T]:
    """`async_client(scenario)`: run `await scenario(client)` on a loop of its own, and close the client."""

    def run(scenario: Callable[[AsyncClient], Awaitable[T]]) -> T:
        async def main() -> T:
            async with AsyncClient(database) as client:
                return await scenario(client)

        return asyncio.run(main())

    return run


@pytest.fixture
def sql(database_url: str) -> Iterator[Sql]:
    """`sql(text, *params)`: as anybody may write it by hand, past the library; each statement commits by itself."""
    with connect(database_url) as connection:

        def run(text: str, *params: object) -> list[Any]:
            cursor = connection.execute(text, params or None)
            return cursor.fetchall() if cursor.description else []

        yield run


@pytest.fixture(scope="session")
def shared_database(migrated: databases.Databases) -> Iterator[Database]:
    """A database for tests that leave nothing behind, since what they do is rolled back."""
    with migrated.one() as url:
        database = Database(url, schema="pgqueue")
        yield database
        database.dispose()


@pytest.fixture
def rolled_back(shared_database: Database) -> Iterator[Connection]:
    """A transaction that never commits."""
    with shared_database.engine.connect() as connection:
        yield connection
        connection.rollback()


@pytest.fixture
def untouched(shared_database: Database) -> Iterator[Client]:
    """A client for what is refused: afterwards not one row is there."""
    yield Client(shared_database)
    with shared_database.begin() as connection:
        assert connection.exec_driver_sql("select count(*) from pgqueue.tasks").scalar_one() == 0
