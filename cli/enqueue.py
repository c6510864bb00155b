"""`pgqueue enqueue`: one task from the shell."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import click

from pgqueue.config import DEFAULTS, Limits
from pgqueue.errors import PayloadError, TaskNotFound

from .common import DURATION, ID, app_dir_option, json_option, same_place, wants_json, with_database
from .errors import tell

if TYPE_CHECKING:
    from uuid import UUID

    from pgqueue.client import Client
    from pgqueue.database import Database

_SAMPLE: Final = '{"name": "value"}'


@click.command(
    epilog="\b\nExamples:\n"
    '  pgqueue enqueue send_receipt \'{"to": "ada@example.org"}\' --queue mail\n'
    "  pgqueue enqueue report - --delay 2h <arguments.json\n"
    "  pgqueue enqueue publish --depends-on d8dd91 --depends-on 47c0f2 --requires gpu"
)
@click.argument("action")
@click.argument("payload", metavar="[JSON]", required=False)
@click.option("--app", metavar="MODULE:NAME", help="Check action and arguments against this App.")
@app_dir_option
@click.option("--queue", help=f"The line it waits in.  [default: the action's, else {DEFAULTS.queue}]")
@click.option("--agent", help="The lane it must run in, one at a time.")
@click.option("--account", help="Whose task it is.")
@click.option("--priority", type=int, help=f"{Limits.PRIORITY[0]} … {Limits.PRIORITY[1]}, higher first.  [default: 0]")
@click.option("--delay", type=DURATION, help="How long until it is due, such as 30s or 2h.")
@click.option(
    "--max-attempts",
    type=int,
    help=f"Executions before it is dead.  [default: the action's, else {DEFAULTS.max_attempts}]",
)
@click.option("--timeout", type=DURATION, help="How long one attempt may run.")
@click.option("--dedupe-key", help="One active task per agent and key; a second one adopts the first.")
@click.option(
    "--dedupe",
    type=click.Choice(["active", "forever"]),
    help="How long the key is taken: while its task is active, or for ever.  [default: active]",
)
@click.option(
    "--depends-on",
    type=ID,
    metavar="ID",
    multiple=True,
    help="A task that must complete first; repeat it for several. A whole id need not exist yet.",
)
@click.option(
    "--on-parent-failure",
    type=click.Choice(["cancel", "run"]),
    help="What becomes of it when one of those is dead or cancelled.  [default: cancel]",
)
@click.option(
    "--requires",
    metavar="NAME",
    multiple=True,
    help="A condition that whoever claims it must offer; repeat it for several.",
)
@click.option("--id", "task_id", metavar="UUID", help="The task's own id.  [default: a new one]")
@json_option
@with_database
def enqueue(
    database: Database,
    action: str,
    payload: str | None,
    app: str | None,
    app_dir: str | None,
    task_id: str | None,
    depends_on: tuple[str, ...],
    requires: tuple[str, ...],
    **given: Any,
) -> None:
    """Make a task.

    JSON is the payload, for an action of an App the object of its arguments; - reads it from standard input. Prints
    the task's id.
    """
    from pgqueue.client import Client
    from pgqueue.ids import parse_id
    from pgqueue.options import NewTask

    options: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if task_id is not None:
        options["id"] = parse_id(task_id)
    if requires:
        options["requires"] = requires
    value = None if payload is None else _read(payload)
    apps = None
    if app is not None:
        from .locate import load_app

        apps = load_app(app, app_dir)
    target = database if apps is None else _target(database, apps.database)
    client = Client(target)
    try:
        missing: list[UUID] = []
        if depends_on:
            options["depends_on"], missing = _parents(client, depends_on)
        if apps is None:
            new = NewTask(action, value, options)  # type: ignore[arg-type]
        else:
            known = apps.action(action).using(**options)
            new = known.new(**known.arguments.decode({} if payload is None else value))
        made = client.enqueue_new(new)
    finally:
        if target is not database:
            target.dispose()
    if wants_json():
        from .output import emit

        emit({"id": made.id, "created": made.created})
    else:
        click.echo(str(made.id))
    look = f"see `pgqueue show {made.id}{same_place()}`"
    if not made.created and not wants_json():
        tell(f"nothing new was made: a task has the dedupe key, or this id was enqueued before; {look}")
    elif missing and made.created:
        some = f"{missing[0]} does" if len(missing) == 1 else f"{missing[0]} and {len(missing) - 1:,} more do"
        tell(f"{some} not exist (yet), and a task waits for it only so long; {look}")


def _parents(client: Client, named: Iterable[str]) -> tuple[list[UUID], list[UUID]]:
    """The ids that were meant, and those of them that are not there."""
    from uuid import UUID

    found, missing = [], []
    for text in named:
        whole = len(text.replace("-", "")) == 32
        try:
            found.append(client.find(text))
        except TaskNotFound:
            if not whole:
                raise
            found.append(UUID(text))
            missing.append(found[-1])
    return found, missing


def _target(named: Database, apps: Database) -> Database:
    """The App's own database, unless the command line names another."""
    params = click.get_current_context().params
    if params["database_url"]:
        return named
    if params["schema"]:
        target = apps.sibling()
        target.schema = named.schema
        return target
    return apps


def _read(text: str) -> Any:
    """The payload, as strict JSON. Error texts name the place and never quote it."""
    try:
        return json.loads(sys.stdin.buffer.read().decode() if text == "-" else text)
    except json.JSONDecodeError as error:
        reason = f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
    except UnicodeDecodeError as error:
        reason = f"is not UTF-8 at byte {error.start}"
    except RecursionError:
        reason = "is nested too deep"
    except ValueError:
        reason = "holds a number of more digits than Python reads"
    raise PayloadError(f"payload {reason}; write it like '{_SAMPLE}', or pass - and pipe it in", field="payload")
