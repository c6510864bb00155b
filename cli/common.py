"""What commands share: their options, the client over the database that was named, who is asking.

Only light things are imported here: this module is loaded for every `--help`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from pgqueue import keys
from pgqueue.errors import InputError, PgqueueError
from pgqueue.ids import TAIL

if TYPE_CHECKING:
    from datetime import datetime

    from pgqueue.database import Database

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_JSON: Final = "pgqueue.json"

# -- options


def _want_json(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    # `meta` is one for the whole chain of contexts: the option counts wherever on the line it stands.
    if asked:
        ctx.meta[_JSON] = True


json_option: Final = click.option(
    "--json", is_flag=True, expose_value=False, callback=_want_json, help="Print JSON: one object per line."
)


def wants_json() -> bool:
    """Whether `--json` stood anywhere on the command line."""
    return bool(click.get_current_context().meta.get(_JSON))


schema_option: Final = click.option(
    "--schema",
    metavar="NAME",
    help="The schema that holds the queue's tables.  [env: PGQUEUE_SCHEMA; default: pgqueue]",
)


def database_options(function: Decorated) -> Decorated:
    """`--database-url` and `--schema`. Variables are the library's to read, which then names them in its errors."""
    url = click.option(
        "--database-url",
        metavar="URL",
        help="The database: postgresql://…, or embedded.  [env: PGQUEUE_DATABASE_URL, else DATABASE_URL, else PG*]",
    )
    return url(schema_option(function))


def open_database(database_url: str | None, schema: str | None) -> Database:
    """The database that was named. Does no I/O yet."""
    from pgqueue.database import Database

    return Database(database_url, schema=schema, pool_size=2, application_name="pgqueue-cli")


def with_database(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the `Database` as its first argument, and close it afterwards."""

    @database_options
    @functools.wraps(function)
    def command(*args: Any, database_url: str | None, schema: str | None, **kwargs: Any) -> None:
        with hints_lead_here():
            database = open_database(database_url, schema)
            try:
                function(database, *args, **kwargs)
            finally:
                database.dispose()

    return command


def with_client(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command a `Client` as its first argument, and close its connections afterwards."""

    @functools.wraps(function)
    def on_database(database: Database, *args: Any, **kwargs: Any) -> None:
        from pgqueue.client import Client

        function(Client(database), *args, **kwargs)

    return with_database(on_database)


app_dir_option: Final = click.option(
    "--app-dir",
    metavar="DIR",
    help="Where modules are looked for, instead of the working directory.",
)

# -- kinds of values


class DurationText(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since Click 8.4
    """`30s`, `5m`, `2h`, `1d`, `1h30m`; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        return keys.parse_duration(value, field=_field(param))


class SinceText(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since Click 8.4
    """How long ago (`2h`), or since when (an ISO instant with its zone)."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta | datetime:
        from datetime import datetime

        if isinstance(value, timedelta | datetime):
            return value
        if "-" not in value and ":" not in value:
            return keys.parse_duration(value, field=_field(param))
        return _instant(value, _field(param), "how long ago (2h, 3d), or an instant")


class InstantText(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since Click 8.4
    """An ISO instant with its zone."""

    name = "instant"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        from datetime import datetime

        return value if isinstance(value, datetime) else _instant(value, _field(param), "an instant")


class IdText(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since Click 8.4
    """A whole id, its start, or its last six digits.

    The form is looked at while the line is parsed, so that of several ids a mistyped one is found before anything is
    done about the others.
    """

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value).strip().lstrip("…").lower()
        digits = text.replace("-", "")
        if len(digits) < TAIL or len(digits) > 32 or set(digits) - set("0123456789abcdef"):
            raise InputError(
                f"{keys.shown(value)} is no task id: give the whole id, its start, or at least its last {TAIL} digits",
                field="id",
            )
        return text


DURATION: Final = DurationText()
SINCE: Final = SinceText()
INSTANT: Final = InstantText()
ID: Final = IdText()


def _field(param: click.Parameter | None) -> str:
    return (param.name if param is not None else None) or "duration"


def _instant(text: str, field: str, wanted: str) -> datetime:
    from datetime import datetime

    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(
            f"{field} cannot be {keys.shown(text)}; write {wanted} such as 2026-01-31T08:00:00Z", field=field
        ) from None
    if instant.utcoffset() is None:
        raise InputError(
            f"{field} {keys.shown(text)} has no time zone; write its offset, such as 2026-01-31T08:00:00Z", field=field
        )
    return keys.check_instant(instant, field=field)


# -- who asks, and as what


def operator() -> str:
    """Who does it, for the journal: user@host."""
    import getpass

    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # no such user in this container
        user = f"uid-{os.getuid()}"
    return keys.check_name("".join(c for c in f"{user}@{socket.gethostname()}" if c.isprintable()), field="by")


def program() -> str:
    """The program's name as it was run, for commands that a person may copy."""
    run_as = Path(sys.argv[0])
    if run_as.name in ("", "-c"):  # called from somebody's own Python
        return "pgqueue"
    if run_as.name == "__main__.py":
        return f"{shlex.quote(sys.executable)} -m pgqueue"
    found = shutil.which(run_as.name)
    return run_as.name if found and Path(found).resolve() == run_as.resolve() else shlex.quote(sys.argv[0])


def same_place() -> str:
    """The options that lead a copied command to the same tables: what stood on this command line, passwords masked."""
    ctx = click.get_current_context()
    words = ""
    for name, option in (("database_url", "--database-url"), ("schema", "--schema")):
        value = ctx.params.get(name)
        if value:
            from pgqueue.database import mask

            words += f" {option} {shlex.quote(mask(value))}"
    return words


def leading_here(error: PgqueueError) -> PgqueueError:
    """The error, the commands that its text names completed by what stood on this command line."""
    place = same_place()
    text = re.sub(r"`(pgqueue (?!embedded|demo)[^`]+)`", lambda found: f"`{found[1]}{place}`", str(error))
    error.args = (text, *error.args[1:])
    return error


@contextlib.contextmanager
def hints_lead_here() -> Iterator[None]:
    """What is refused inside tells the next command so that it can be pasted."""
    try:
        yield
    except PgqueueError as error:
        leading_here(error)
        raise


def server_now(database: Database) -> datetime:
    """The server's clock: the only one that decides what is due or expired."""
    from datetime import datetime

    with database.autocommit() as connection:
        now = connection.exec_driver_sql("select clock_timestamp()").scalar_one()
    assert isinstance(now, datetime)  # noqa: S101 - what the server's type says
    return now
