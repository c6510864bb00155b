"""`pgqueue version`."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import click

from .common import json_option, with_database
from .errors import tell

if TYPE_CHECKING:
    from pgqueue.database import Database


def program_version() -> str:
    """The distribution's version; the code's own in a checkout that is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("pgqueue-tasks")
    except PackageNotFoundError:
        from pgqueue.config import VERSION

        return f"{VERSION} (a checkout that is not installed)"


@click.command(epilog="\b\nExample:\n  pgqueue version --json")
@json_option
@with_database
def version(database: Database) -> None:
    """Print the versions of the program, its libraries and the server.

    The server's only where a database is named and reachable.
    """
    import psycopg
    import sqlalchemy
    from psycopg import pq

    from .output import one

    one(
        {
            "pgqueue": program_version(),
            "python": platform.python_version(),
            "psycopg": psycopg.__version__,
            "sqlalchemy": sqlalchemy.__version__,
            "libpq": _dotted(pq.version()),
            "server": _server(database),
        }
    )


def _server(database: Database) -> str | None:
    from pgqueue.errors import DatabaseError, NoDatabase

    try:
        with database.raw() as connection:
            return connection.info.parameter_status("server_version")
    except NoDatabase:
        return None
    except DatabaseError as error:
        tell(error)
        return None


def _dotted(number: int) -> str:
    return f"{number // 10_000}.{number % 10_000}"
