"""`pgqueue embedded …`: a PostgreSQL of one's own."""

from __future__ import annotations

import dataclasses
import os

import click

from .common import json_option, wants_json
from .errors import tell


@click.command(epilog="\b\nExample:\n  export PGQUEUE_DATABASE_URL=$(pgqueue embedded start)")
@json_option
def start() -> None:
    """Start the server and leave it running.

    Prints its URL. The first time it makes the data directory, in PGQUEUE_HOME or the user's data directory.
    """
    from pgqueue import embedded

    status = embedded.start()
    if wants_json():
        _emit(status)
        return
    click.echo(status.url)
    tell(f"PostgreSQL {status.version} runs in {status.home} until `pgqueue embedded stop`")


@click.command(epilog="\b\nExample:\n  pgqueue embedded stop")
@click.option("--force", is_flag=True, help="Also while processes use it; their connections break.")
@json_option
def stop(force: bool) -> None:
    """Stop the server.

    Its data stay. Refuses while processes use it.
    """
    from pgqueue import embedded

    ran = embedded.stop(force=force)
    if wants_json():
        from .output import emit

        emit({"stopped": ran})
    else:
        tell("the embedded server is stopped" if ran else "no embedded server was running")


@click.command(epilog="\b\nExample:\n  pgqueue embedded status --json")
@json_option
def status() -> None:
    """Say whether the server runs, and where."""
    from pgqueue import embedded

    _emit(embedded.status())


@click.command(
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    epilog="\b\nExample:\n  pgqueue embedded psql -c 'select count(*) from pgqueue.tasks'",
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def psql(arguments: tuple[str, ...]) -> None:
    """Open psql on the server.

    Starts the server if need be; what follows is psql's.
    """
    import signal
    import subprocess

    from pgqueue import embedded

    with embedded.acquire() as server:
        command = embedded.psql(server.home, *arguments)
        # Ctrl-C is psql's, to break off a query.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            done = subprocess.run(command.argv, env=command.env, check=False, preexec_fn=_listen_to_interrupts)
        finally:
            signal.signal(signal.SIGINT, before)
    click.get_current_context().exit(done.returncode)


def _listen_to_interrupts() -> None:
    import signal

    # What is ignored stays ignored over exec.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _emit(status: object) -> None:
    from .output import one

    fields = dataclasses.asdict(status)  # type: ignore[call-overload]
    one({name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in fields.items()})
