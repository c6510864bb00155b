"""The command line: one table of commands, each imported when it is called.

`pgqueue --help` and shell completion read the table alone, so they cost what Click costs and no more.
"""

import functools
import io
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NamedTuple

import click
from click.shell_completion import CompletionItem

from .common import json_option
from .errors import USAGE, status_of


class Lazy(NamedTuple):
    """A command that waits in its module: `module` is relative to this package."""

    module: str
    attribute: str
    help: str


class Nested(NamedTuple):
    """A group of commands under one name, as in `pgqueue db upgrade`."""

    help: str
    commands: Mapping[str, Lazy]


# name -> where it is and one line of help; `--help` lists them in this order
COMMANDS: Mapping[str, Lazy | Nested] = {
    "worker": Lazy("work", "worker", "Run a worker until it is told to stop."),
    "enqueue": Lazy("enqueue", "enqueue", "Make a task."),
    "list": Lazy("tasks", "list_tasks", "List tasks, newest first."),
    "show": Lazy("show", "show", "Say what a task is, and why it is not further."),
    "events": Lazy("tasks", "events", "List what happened to a task."),
    "stats": Lazy("tasks", "stats", "Count tasks per status."),
    "retry": Lazy("verbs", "retry", "Revive dead tasks."),
    "cancel": Lazy("verbs", "cancel", "Cancel pending tasks; ask running ones to stop."),
    "dismiss": Lazy("verbs", "dismiss", "Close dead tasks for good."),
    "release": Lazy("verbs", "release", "Take running tasks from their holders."),
    "reschedule": Lazy("verbs", "reschedule", "Change when pending tasks become due, or their priority."),
    "reap": Lazy("verbs", "reap", "Return what expired leases hold, and look at parents."),
    "prune": Lazy("prune", "prune", "Delete what finished long ago."),
    "audit": Lazy("audit", "audit", "Compare the full journal with the rows."),
    "db": Nested(
        "Bring the schema up or down, and check it.",
        {
            "upgrade": Lazy("schema", "upgrade", "Bring the schema up to this program's revision."),
            "downgrade": Lazy("schema", "downgrade", "Bring the schema down to an older revision."),
            "current": Lazy("schema", "current", "Print the schema's revision."),
            "check": Lazy("schema", "check", "Check that schema and program fit."),
            "sql": Lazy("schema", "sql", "Print the SQL of an upgrade."),
            "journal": Lazy("audit", "journal", "Print what the journal holds, or change it."),
        },
    ),
    "migrate": Lazy("schema", "upgrade", "The same as `db upgrade`."),
    "embedded": Nested(
        "Run the embedded PostgreSQL server.",
        {
            "start": Lazy("server", "start", "Start the server and leave it running."),
            "stop": Lazy("server", "stop", "Stop the server."),
            "status": Lazy("server", "status", "Say whether the server runs, and where."),
            "psql": Lazy("server", "psql", "Open psql on the server."),
        },
    ),
    "demo": Lazy("demo", "demo", "See the queue at work on real files."),
    "version": Lazy("info", "version", "Print the versions of the program, its libraries and the server."),
}

HELP = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """A group that knows its commands from a table and imports the one that is called."""

    def __init__(self, *args: Any, table: Mapping[str, Lazy | Nested], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            click.echo(ctx.get_help(), err=True)
            ctx.exit(USAGE)
        return super().parse_args(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        match self.table.get(cmd_name):
            case Lazy(module, attribute, _):
                found = getattr(import_module(f".{module}", __name__), attribute)
                assert isinstance(found, click.Command)  # noqa: S101 - our own table, not a user's input
                # Click keeps the first help option that it made, even one made without our context.
                found.context_settings = {**HELP, **found.context_settings}
                return found
            case Nested(text, commands):
                return json_option(LazyGroup(cmd_name, table=commands, help=text, context_settings=HELP))
        return None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in self.table or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from difflib import get_close_matches

        near = get_close_matches(name, self.table, n=1)
        raise click.UsageError(f"No such command {name!r}.{f' Did you mean {near[0]}?' if near else ''}", ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if self.table:
            with formatter.section("Commands"):
                formatter.write_dl([(name, entry.help) for name, entry in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in self.table if name.startswith(incomplete)]
        return [CompletionItem(name, help=self.table[name].help) for name in names] + options


class Root(LazyGroup):
    """The outermost group: whatever a command raises becomes one line on stderr and an exit code here."""

    def main(self, *args: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # An ellipsis on a terminal that has none is no reason to fail.
            sys.stdout.reconfigure(errors="backslashreplace")
        run = functools.partial(super().main, *args, standalone_mode=False, **extra)

        return sys.exit(status_of(run)) if standalone_mode else run()


def show_version(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        from .info import program_version

        click.echo(f"pgqueue {program_version()}")
        ctx.exit()


@click.group(
    cls=Root,
    table=COMMANDS,
    context_settings=HELP,
    epilog="Exit codes: 0 done; 1 refused or found something, after doing the rest; 2 usage; 3 no database, or it is"
    " unreachable; 4 schema and program do not fit; 70 a worker's thread was stuck.",
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=show_version, help="Show it.")
@json_option
def main() -> None:
    """A task queue whose only moving part is PostgreSQL.

    Data goes to stdout, messages to stderr. On a terminal lists are tables; elsewhere they have the same columns,
    untruncated and tab-separated, without a header. --json, anywhere, gives one JSON object per line.
    """
