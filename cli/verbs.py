"""What people do to tasks: `retry`, `cancel`, `dismiss`, `release`, `reschedule`; and `reap`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID

import click

from pgqueue import keys
from pgqueue.config import Limits
from pgqueue.errors import AmbiguousId, Refused, RetryTransaction, TaskNotFound
from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status

from .common import DURATION, ID, INSTANT, json_option, leading_here, operator, same_place, wants_json, with_client
from .errors import REFUSED, complain, tell

if TYPE_CHECKING:
    from datetime import datetime, timedelta

    from pgqueue.client import Client
    from pgqueue.edges import Fate
    from pgqueue.store import Reaped, Swept

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


@click.command(
    epilog="\b\nExamples:\n"
    "  pgqueue reschedule d8dd91 --delay 2h\n"
    "  pgqueue reschedule d8dd91 47c0f2 --not-before 2026-01-31T08:00:00Z --priority 5"
)
@ids_argument
@click.option("--delay", type=DURATION, help="How long until it is due, such as 30s or 2h.")
@click.option("--not-before", metavar="INSTANT", type=INSTANT, help="When it is due; a past time is now.")
@click.option("--priority", type=int, help=f"{Limits.PRIORITY[0]} … {Limits.PRIORITY[1]}, higher first.")
@json_option
@with_client
def reschedule(
    client: Client,
    ids: tuple[str, ...],
    delay: timedelta | None,
    not_before: datetime | None,
    priority: int | None,
) -> None:
    """Change when pending tasks become due, or their priority.

    With the priority alone a task keeps its place by time. What waits for parents or conditions goes on waiting.
    """
    if delay is not None and not_before is not None:
        raise click.UsageError("--delay and --not-before exclude each other: give one of them")
    if delay is None and not_before is None and priority is None:
        raise click.UsageError("Nothing to change: give --delay, --not-before or --priority")
    if priority is not None:
        keys.check_int(priority, field="priority", low=Limits.PRIORITY[0], high=Limits.PRIORITY[1])

    def act(task_id: UUID, by: str) -> Status:
        return client.reschedule(task_id, delay=delay, not_before=not_before, priority=priority, by=by).status

    _each(client, ids, {Status.PENDING}, act, "rescheduled")


_REAP_BATCH: Final = 100
_SWEEP_BATCH: Final = 1_000


class _Returned(NamedTuple):
    """A line of what `reap` did: to the task of an expired lease, or to one that waits for another."""

    id: UUID
    status: Status | None = None
    queue: str | None = None
    agent: str | None = None
    owner: str | None = None
    parent: UUID | None = None
    fate: Fate | None = None


@click.command(
    epilog="\b\nExample:\n  pgqueue reap\n\n"
    "Columns when piped: id, status, queue, agent, owner, parent, fate. Of a lease the last two are empty; of a parent"
    " the four before them are. Fates: wait, lift, fail, let_go."
)
@json_option
@with_client
def reap(client: Client) -> None:
    """Return what expired leases hold, and look at parents.

    Every worker does this by itself; by hand it helps where none runs. Lists the tasks of the leases, and what became
    of them; then tasks that wait for parents whose end, or absence, was still to be looked at.
    """
    from .output import Column, listing

    leases, edges = _reap(client), _sweep(client)
    done = [_Returned(one.id, one.status, one.queue, one.agent, one.owner) for one in leases]
    done += [_Returned(edge.child, parent=edge.parent, fate=edge.fate) for edge in edges]
    columns: list[Column[_Returned]] = [
        Column("id", lambda one: one.id, 7, short=lambda one: tail(one.id)),
        Column("status", lambda one: one.status, 9),
        Column("queue", lambda one: one.queue, 7, leave=1),
        Column("agent", lambda one: one.agent, 7, leave=2),
        Column("owner", lambda one: one.owner, 10),
        Column("parent", lambda one: one.parent, 7, short=lambda one: one.parent and tail(one.parent)),
        Column("fate", lambda one: one.fate, 6),
    ]
    listing(done, columns, _Returned._asdict)
    if _edges_are_due(client):
        tell(f"parents are left for later, since somebody has a task locked; run `pgqueue reap{same_place()}` again")
    elif not done:
        tell("no lease has run out, and no parent is to be looked at")


def _reap(client: Client) -> list[Reaped]:
    done: list[Reaped] = []
    while batch := client.reap(limit=_REAP_BATCH):
        done += batch
    return done


def _sweep(client: Client) -> list[Swept]:
    """What became of the edges that were due, but for those that somebody has locked."""
    from pgqueue.edges import Fate

    done: list[Swept] = []
    while looked_at := [edge for edge in client.sweep(limit=_SWEEP_BATCH) if edge.fate is not Fate.LATER]:
        done += looked_at
    return done


def _edges_are_due(client: Client) -> bool:
    with client.database.autocommit() as connection:
        wait, _ = client.store.next_look(connection)
    return wait is not None and wait <= 0
