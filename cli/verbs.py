"""What people do to tasks: `retry`, `cancel`, `dismiss`, `release`; and `reap`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final
from uuid import UUID

import click

from pgqueue.errors import AmbiguousId, Refused, RetryTransaction, TaskNotFound
from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status

from .common import ID, json_option, leading_here, operator, wants_json, with_client
from .errors import REFUSED, complain, tell

if TYPE_CHECKING:
    from pgqueue.client import Client
    from pgqueue.store import Reaped

_ONE_TASKS: Final = (TaskNotFound, AmbiguousId, Refused, RetryTransaction)
"""Refusals that say nothing about the other tasks."""


def _each(
    client: Client, ids: Iterable[str], statuses: Iterable[Status], act: Callable[[UUID, str], Status], done: str
) -> None:
    """Do it to each task by itself: report each, do the rest, and end in 1 if any was refused."""
    by, refused = operator(), False
    for text in ids:
        try:
            task_id = client.find(text, statuses=statuses)
            _report(task_id, act(task_id, by), done)
        except _ONE_TASKS as error:
            complain(leading_here(error))
            refused = True
    if refused:
        click.get_current_context().exit(REFUSED)


def _report(task_id: UUID, status: Status, done: str) -> None:
    from .output import emit, on_terminal

    if wants_json():
        emit({"id": task_id, "status": status})
    elif on_terminal():
        click.echo(f"{tail(task_id)} {done}: {status}")
    else:
        click.echo(f"{task_id}\t{status}")


ids_argument: Final = click.argument("ids", metavar="ID...", type=ID, nargs=-1, required=True)


@click.command(
    epilog="\b\nExamples:\n  pgqueue retry d8dd91\n  pgqueue list --status dead | cut -f1 | xargs pgqueue retry"
)
@ids_argument
@json_option
@with_client
def retry(client: Client, ids: tuple[str, ...]) -> None:
    """Revive dead tasks.

    A dead task is pending again, with a fresh budget of attempts, due now. Ids are whole, a start, or the last six
    digits; each task is done by itself.
    """

    def act(task_id: UUID, by: str) -> Status:
        return client.retry(task_id, by=by).status

    _each(client, ids, {Status.DEAD}, act, "retried")


@click.command(epilog="\b\nExample:\n  pgqueue cancel d8dd91 47c0f2")
@ids_argument
@json_option
@with_client
def cancel(client: Client, ids: tuple[str, ...]) -> None:
    """Cancel pending tasks; ask running ones to stop.

    A running task stays running until its holder has stopped: it learns of the request when it renews its lease.
    """

    def act(task_id: UUID, by: str) -> Status:
        status = client.cancel(task_id, by=by)
        if status is Status.RUNNING:
            tell(f"{tail(task_id)} is running: its holder was asked to stop")
        return status

    _each(client, ids, ACTIVE, act, "cancel")


@click.command(epilog="\b\nExample:\n  pgqueue dismiss d8dd91")
@ids_argument
@json_option
@with_client
def dismiss(client: Client, ids: tuple[str, ...]) -> None:
    """Close dead tasks for good.

    A dismissed task is cancelled, and final: it can never be retried.
    """

    def act(task_id: UUID, by: str) -> Status:
        client.dismiss(task_id, by=by)
        return Status.CANCELLED

    _each(client, ids, {Status.DEAD}, act, "dismissed")


@click.command(epilog="\b\nExample:\n  pgqueue release d8dd91")
@ids_argument
@json_option
@with_client
def release(client: Client, ids: tuple[str, ...]) -> None:
    """Take running tasks from their holders.

    The task is pending again, keeps its place and gets its attempt back. Whatever the old holder writes about it
    afterwards is refused; its work may go on for a while, beside that of the next holder.
    """

    def act(task_id: UUID, by: str) -> Status:
        return client.evict(task_id, by=by)

    _each(client, ids, {Status.RUNNING}, act, "released")


_REAP_BATCH: Final = 100


@click.command(epilog="\b\nExample:\n  pgqueue reap\n\nColumns when piped: id, status, queue, agent, owner.")
@json_option
@with_client
def reap(client: Client) -> None:
    """Return what expired leases hold.

    Every worker does this by itself; by hand it helps where none runs. Lists what was returned, and what it became.
    """
    import dataclasses

    from .output import Column, listing

    done: list[Reaped] = []
    while batch := client.reap(limit=_REAP_BATCH):
        done += batch
    columns: list[Column[Reaped]] = [
        Column("id", lambda reaped: reaped.id, 7, short=lambda reaped: tail(reaped.id)),
        Column("status", lambda reaped: reaped.status.value, 9),
        Column("queue", lambda reaped: reaped.queue, 7, leave=1),
        Column("agent", lambda reaped: reaped.agent, 7, leave=2),
        Column("owner", lambda reaped: reaped.owner, 10),
    ]
    listing(done, columns, dataclasses.asdict)
    if not done:
        tell("no lease has run out")
