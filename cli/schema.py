"""`pgqueue db …`: the schema's way up and down."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from .common import json_option, schema_option, wants_json, with_database
from .errors import tell

if TYPE_CHECKING:
    from pgqueue.database import Database


def _report(before: str | None, after: str | None) -> None:
    if wants_json():
        from .output import emit

        emit({"before": before, "after": after})
        return
    click.echo(after or "none")
    change = "nothing to do" if before == after else f"was at {before or 'none'}"
    tell(f"the schema is at revision {after or 'none'}: {change}")


@click.command(epilog="\b\nExample:\n  pgqueue db upgrade --database-url postgresql://queue@db/app")
@click.argument("revision", default="head")
@json_option
@with_database
def upgrade(database: Database, revision: str) -> None:
    """Bring the schema up to this program's revision.

    Makes the schema where there is none. Safe to run twice, and beside another migrator.
    """
    from pgqueue import migrate

    _report(*migrate.upgrade(database, revision))


@click.command(epilog="\b\nExample:\n  pgqueue db downgrade base --yes")
@click.argument("revision")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@with_database
def downgrade(database: Database, revision: str, yes: bool) -> None:
    """Bring the schema down to an older revision.

    Drops what later revisions made, with what is in it; `base` drops every task.
    """
    from pgqueue import migrate

    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(f"a downgrade to {revision} drops data: say --yes", click.get_current_context())
        question = f"Drop what stands above revision {revision} in {database.masked}, schema {database.schema}?"
        if not click.confirm(question, err=True):
            raise click.Abort
    _report(*migrate.downgrade(database, revision))


@click.command(epilog="\b\nExample:\n  pgqueue db current")
@json_option
@with_database
def current(database: Database) -> None:
    """Print the schema's revision.

    "none" where nothing of the queue's is there yet.
    """
    from pgqueue import migrate

    found, newest = migrate.current(database), migrate.head()
    if wants_json():
        from .output import emit

        emit({"revision": found, "head": newest})
        return
    click.echo(found or "none")
    if found != newest:
        tell(f"this program brings {newest}")


@click.command(epilog="\b\nExample:\n  pgqueue db check || pgqueue db upgrade")
@json_option
@with_database
def check(database: Database) -> None:
    """Check that schema and program fit.

    Compares the revision and the tables themselves; ends in 4 where something differs.
    """
    from pgqueue import migrate

    migrate.check(database)
    if wants_json():
        from .output import emit

        emit({"revision": migrate.head(), "fits": True})
    else:
        tell(f"the schema is at revision {migrate.head()}, and as this program expects it")


@click.command(epilog="\b\nExample:\n  pgqueue db sql >queue.sql")
@click.argument("revisions", metavar="[FROM:TO]", default="base:head")
@schema_option
def sql(revisions: str, schema: str | None) -> None:
    """Print the SQL of an upgrade.

    For people who run it themselves. Touches no database.
    """
    import os

    from pgqueue import keys, migrate
    from pgqueue.config import DEFAULTS

    name = keys.check_schema(schema or os.environ.get("PGQUEUE_SCHEMA") or DEFAULTS.schema)
    click.echo(migrate.sql(name, revisions), nl=False)
