"""`pgqueue enqueue`: one task from the shell."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any, Final

import click

from pgqueue.config import DEFAULTS, Limits
from pgqueue.errors import PayloadError

from .common import DURATION, app_dir_option, json_option, wants_json, with_database
from .errors import tell

if TYPE_CHECKING:
    from pgqueue.database import Database

_SAMPLE: Final = '{"name": "value"}'


@click.command(
    epilog="\b\nExamples:\n"
    '  pgqueue enqueue send_receipt \'{"to": "ada@example.org"}\' --queue mail\n'
    "  pgqueue enqueue report - --delay 2h <arguments.json"
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
    value = None if payload is None else _read(payload)
    target = database
    if app is None:
        new = NewTask(action, value, options)  # type: ignore[arg-type]
    else:
        from .locate import load_app

        found = load_app(app, app_dir)
        known = found.action(action).using(**options)
        new = known.new(**known.arguments.decode({} if payload is None else value))
        target = _target(database, found.database)
    try:
        made = Client(target).enqueue_new(new)
    finally:
        if target is not database:
            target.dispose()
    if wants_json():
        from .output import emit

        emit({"id": made.id, "created": made.created})
        return
    click.echo(str(made.id))
    if not made.created:
        tell("nothing new was made: an active task holds the dedupe key, or this id was enqueued before")


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
