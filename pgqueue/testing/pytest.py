"""Fixtures for pytest. In the outermost conftest.py: `pytest_plugins = ["pgqueue.testing.pytest"]`.

Which App is meant says the ini option `pgqueue_app = "shop.tasks:app"`, or your own fixture `pgqueue_declared`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, text

from ..app import App
from ..database import translated
from .joining import in_transaction

__all__ = ["pgqueue_app", "pgqueue_connection", "pgqueue_declared"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("pgqueue_app", "module:name of the App that the fixture pgqueue_app puts in a transaction")


@pytest.fixture
def pgqueue_declared(pytestconfig: pytest.Config) -> App:
    """The program's App, as it is: what the ini option `pgqueue_app` names. Override it where that is not enough."""
    locator = str(pytestconfig.getini("pgqueue_app") or "")
    if not locator:
        raise pytest.UsageError(
            'which App? Set the ini option pgqueue_app = "module:name", or override pgqueue_declared'
        )
    found = pkgutil.resolve_name(locator)
    if not isinstance(found, App):
        raise pytest.UsageError(f"the ini option pgqueue_app: {locator} is a {type(found).__name__}, not a pgqueue.App")
    return found


@pytest.fixture
def pgqueue_connection(pgqueue_declared: App) -> Iterator[Connection]:
    """A SQLAlchemy Connection to the App's database, in a transaction that is rolled back after the test.

    Override it with your own tests' connection, and the queue joins that.
    """
    with translated(pgqueue_declared.database), pgqueue_declared.database.engine.connect() as connection:
        # Somebody may be in a debugger.
        connection.execute(text("set local idle_in_transaction_session_timeout = 0"))
        yield connection
        connection.rollback()


@pytest.fixture
def pgqueue_app(pgqueue_declared: App, pgqueue_connection: Connection) -> Iterator[App]:
    """The App, all of whose doings join `pgqueue_connection` until the test is over: nothing of it stays."""
    with in_transaction(pgqueue_declared, pgqueue_connection) as app:
        yield app
