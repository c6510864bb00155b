"""`python -m benchmarks WORK`: each piece of work as a command. docs/performance.md explains method and figures."""

from __future__ import annotations

import json
from functools import partial

import click

from pgqueue.errors import PgqueueError


@click.group()
def main() -> None:
    """Rates of the queue beside a hand-written floor, in the same run on the same server."""


@main.command()
@click.option(
    "--database-url",
    envvar="PGQUEUE_DATABASE_URL",
    default="embedded",
    show_default=True,
    help="A server whose role may create databases; the benchmark makes one and drops it.",
)
@click.option("--tasks", type=click.IntRange(1), default=50_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--handlers", type=click.Choice(["async", "def", "both"]), default="both", show_default=True)
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=1_000, show_default=True)
@click.option("--batch", type=click.IntRange(1, 1_000), default=200, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: settings, server, summary, every run.")
def drain(
    database_url: str, tasks: int, rounds: int, handlers: str, concurrency: int, batch: int, *, as_json: bool
) -> None:
    """One worker process drains no-op tasks; the clock runs until none is unfinished."""
    from .drain import Failed, Settings, measure, report
    from .worker import HANDLERS

    chosen = HANDLERS if handlers == "both" else (handlers,)
    settings = Settings(tasks=tasks, rounds=rounds, handlers=chosen, concurrency=concurrency, batch=batch)
    try:
        result = measure(database_url, settings, tell=partial(click.echo, err=True))
    except (PgqueueError, Failed) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(result, indent=2) if as_json else report(result))


@main.command()
@click.option("--database-url", envvar="PGQUEUE_DATABASE_URL", default="embedded", show_default=True)
@click.option("--tasks", type=click.IntRange(1), default=50_000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: settings, server, summary, every run.")
def journal(database_url: str, tasks: int, rounds: int, *, as_json: bool) -> None:
    """The same drain with the default journal and with the full one."""
    from .drain import Failed, Settings
    from .journal import measure, report

    settings = Settings(tasks=tasks, rounds=rounds, handlers=("async",))
    try:
        result = measure(database_url, settings, tell=partial(click.echo, err=True))
    except (PgqueueError, Failed) as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(result, indent=2) if as_json else report(result))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
