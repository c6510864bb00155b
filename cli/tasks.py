"""Commands that look: `list`, `events`, `stats`."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import click

from pgqueue.errors import InputError
from pgqueue.ids import tail
from pgqueue.lifecycle import Status

from .common import ID, SINCE, json_option, server_now, wants_json, with_client
from .errors import tell
from .words import first_line, span

if TYPE_CHECKING:
    from pgqueue.client import Client
    from pgqueue.task import Page, Task, TaskEvent

    from .output import Column

_LIMIT: Final = 50


@click.command(
    "list",
    epilog="\b\nExamples:\n"
    "  pgqueue list --status dead --since 2h\n"
    "  pgqueue list --status dead --queue mail | cut -f1 | xargs pgqueue retry\n\n"
    "Columns when piped: id, status, action, queue, agent, attempts, created_at, note.",
)
@click.option(
    "--status", type=click.Choice([status.value for status in Status]), multiple=True, help="Repeat it for several."
)
@click.option("--queue")
@click.option("--action")
@click.option("--agent")
@click.option("--account")
@click.option("--key", help="The dedupe key.")
@click.option("--since", type=SINCE, help="Made within 2h, 3d … or since 2026-01-31T08:00:00Z.")
@click.option("--error-contains", metavar="TEXT", help="The last error holds this text.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=_LIMIT, show_default=True)
@click.option("--before", type=ID, metavar="ID", help="Go on where another list ended.")
@json_option
@with_client
def list_tasks(
    client: Client,
    status: tuple[str, ...],
    since: timedelta | datetime | None,
    before: str | None,
    limit: int,
    **filters: Any,
) -> None:
    """List tasks, newest first.

    Filters are joined by "and". A rare filter looks back over a bounded number of tasks, and says so.
    """
    from .output import listing
    from .records import task_record

    for name, value in filters.items():
        if value == "" and name != "error_contains":  # --queue "$QUEUE" with nothing in it
            raise InputError(f"{name} is empty; give at least one character, or leave it out", field=name)
    now = None
    if isinstance(since, timedelta):
        now = server_now(client.database)
        since = now - since
    page = client.list_tasks(status=status or None, since=since, before=_whole(client, before), limit=limit, **filters)
    listing(page.tasks, _columns(now or server_now(client.database)), task_record)
    _say_where_it_ended(page, limit)


def _whole(client: Client, before: str | None) -> UUID | None:
    # A task that is pruned meanwhile is as good a place to go on as any.
    if before is None:
        return None
    return UUID(before) if len(before.replace("-", "")) == 32 else client.find(before)


def _columns(now: datetime) -> list[Column[Task]]:
    from .output import Column

    return [
        Column("id", lambda task: task.id, 7, short=lambda task: tail(task.id)),
        Column("status", lambda task: task.status.value, 9),
        Column("action", lambda task: task.action, 8),
        Column("queue", lambda task: task.queue, 7, leave=3),
        Column("agent", lambda task: task.agent, 7, leave=5),
        Column("tries", lambda task: f"{task.attempts}/{task.max_attempts}", 5, leave=4),
        Column("age", lambda task: task.created_at, 5, leave=1, short=lambda task: span(now - task.created_at)),
        Column("note", lambda task: _note(task, now), 12, leave=2),
    ]


def _note(task: Task, now: datetime) -> str | None:
    """What a person asks next about a task in this status."""
    if task.status is Status.RUNNING:
        return f"{task.lease_owner}" + (f", {task.progress} %" if task.progress else "")
    if task.status is Status.COMPLETED:
        return task.message
    error = first_line(task.last_error)
    if task.status is Status.PENDING and task.not_before > now:
        return f"due in {span(task.not_before - now)}" + (f": {error}" if error else "")
    return error


def _say_where_it_ended(page: Page, limit: int) -> None:
    if page.next is None:
        return
    if len(page.tasks) < limit:
        tell(f"looked back over {page.looked:,} tasks; for older ones add --before {page.next}")
    elif sys.stderr.isatty():
        tell(f"there may be more: --before {page.next}")


@click.command(
    epilog="\b\nExample:\n  pgqueue events d8dd91\n\nColumns when piped: at, event, from, to, attempt, by, detail."
)
@click.argument("task_id", metavar="ID", type=ID)
@json_option
@with_client
def events(client: Client, task_id: str) -> None:
    """List what happened to a task.

    Oldest first: failed attempts, releases, expired leases, and what people did. What can be read off the task itself
    is here only where the journal is full.
    """
    from .output import Column, listing
    from .records import event_record

    found = client.events(client.find(task_id))
    columns: list[Column[TaskEvent]] = [
        Column("at", lambda event: event.at, 20, leave=1, short=lambda event: f"{event.at:%Y-%m-%d %H:%M:%SZ}"),
        Column("event", lambda event: event.event, 7),
        Column("from", lambda event: event.from_status, 7, leave=5),
        Column("to", lambda event: event.to_status.value, 7, leave=3),
        Column("try", lambda event: event.attempt, 3, leave=2),
        Column("by", lambda event: event.by, 8, leave=4),
        # Why it happened is what people look for: it stays on the narrowest terminal.
        Column("detail", _detail, 12, short=lambda event: first_line(_detail(event))),
    ]
    listing(found, columns, event_record)


def _detail(event: TaskEvent) -> str | None:
    if event.detail is not None or not isinstance(event.changes, dict):
        return event.detail
    return ", ".join(f"{name} {value}" for name, value in event.changes.items() if value is not None)


@click.command(epilog="\b\nExample:\n  pgqueue stats --json")
@json_option
@with_client
def stats(client: Client) -> None:
    """Count tasks per status."""
    from .output import Column, emit, listing

    counts = client.stats()
    if wants_json():
        emit(counts)
        return
    columns: list[Column[tuple[str, int]]] = [
        Column("status", lambda pair: pair[0], 9),
        Column("tasks", lambda pair: pair[1], 7, short=lambda pair: f"{pair[1]:>7,}"),
    ]
    listing(list(counts.items()), columns, lambda pair: {pair[0]: pair[1]})
