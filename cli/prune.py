"""`pgqueue prune`: delete what finished long ago."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from pgqueue.config import DEFAULTS
from pgqueue.keys import format_duration

from .common import DURATION, json_option, with_client
from .errors import tell

if TYPE_CHECKING:
    from datetime import timedelta

    from pgqueue.client import Client


@click.command(
    epilog="\b\nExamples:\n"
    "  pgqueue prune --older-than 30d --dry-run\n"
    "  pgqueue prune --dead-older-than 90d\n\n"
    "Prints how many tasks, events and edges went, and when the first and last of the tasks had finished."
)
@click.option(
    "--older-than",
    type=DURATION,
    help=f"Completed and cancelled tasks that finished so long ago.  [default: {format_duration(DEFAULTS.retention)}]",
)
@click.option("--dead-older-than", type=DURATION, help="Dead tasks too, if that long ago.  [default: none]")
@click.option("--forever", is_flag=True, help="Also those whose dedupe key is used up for ever: it is free again.")
@click.option("--dry-run", is_flag=True, help="Count what would go, and delete nothing.")
@json_option
@with_client
def prune(
    client: Client, older_than: timedelta | None, dead_older_than: timedelta | None, forever: bool, dry_run: bool
) -> None:
    """Delete what finished long ago.

    Every worker does this by itself, but for dead tasks and keys that are used up for ever. Goes on, batch after batch,
    until nothing is left. A task stays while another one waits for it.
    """
    from pgqueue.task import Pruned

    from .output import one

    retention = DEFAULTS.retention if older_than is None else older_than
    done = Pruned(more=True)
    try:
        while done.more:
            done += client.prune(retention=retention, dead=dead_older_than, forever=forever, dry_run=dry_run)
    except KeyboardInterrupt:
        if not dry_run:
            tell(f"interrupted: {done.tasks:,} tasks and {done.events:,} events are gone; run it again to go on")
        raise
    record = {"tasks": done.tasks, "events": done.events, "edges": done.edges}
    one(record | {"oldest": done.oldest, "newest": done.newest, "dry_run": dry_run})
    if not done.tasks:
        tell("nothing is that old")
    elif dry_run:
        tell("nothing was deleted: this was a dry run")
