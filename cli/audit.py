"""`audit`: compare the full journal with the rows. `db journal`: what the journal holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import click

from pgqueue.ids import tail
from pgqueue.journal import JOURNALS

from .common import ID, json_option, wants_json, with_client
from .errors import REFUSED, tell

if TYPE_CHECKING:
    from pgqueue.client import Client
    from pgqueue.journal import Audit

    from .output import Column

_PAGE: Final = 5_000
"""Tasks that one call looks at."""

_ON_SCREEN: Final = 200
"""Findings that a terminal shows; elsewhere all are printed."""


class _Finding(NamedTuple):
    """A line of the list: a drift, or a gap, whose field is `journal`."""

    task: UUID
    field: str
    journal: object
    row: object
    event_id: int | None = None


@click.command(
    epilog="\b\nExamples:\n  pgqueue audit && echo the rows are as the journal says\n  pgqueue audit --task d8dd91\n\n"
    "Columns when piped: task, field, journal, row. The field of a gap in the journal itself is `journal`."
)
@click.option("--task", "task", type=ID, metavar="ID", help="Look at this task alone.")
@json_option
@with_client
def audit(client: Client, task: str | None) -> None:
    """Compare the full journal with the rows.

    Replays each task's events and lists every field whose value is not what they lead to, and every place where the
    events contradict themselves. Ends in 1 where there is any. Wants `pgqueue db journal full`.
    """
    task_id = None if task is None else _whole(client, task)
    total: list[Audit] = []
    shown = _print(_findings(client, task_id, total))
    _sum_up(total[0], shown)
    if shown:
        click.get_current_context().exit(REFUSED)


def _whole(client: Client, text: str) -> UUID:
    # Of a task that is gone the events may still be there.
    return UUID(text) if len(text.replace("-", "")) == 32 else client.find(text)


def _findings(client: Client, task_id: UUID | None, total: list[Audit]) -> Iterator[_Finding]:
    """All findings, page by page; leaves in `total` the counts of what was looked at."""
    import dataclasses

    after: UUID | None = None
    while True:
        page = client.audit(after=after, limit=_PAGE, task_id=task_id)
        for gap in page.gaps:
            yield _Finding(gap.task_id, "journal", gap.why, None, gap.event_id)
        for found in page.drifts:
            yield _Finding(found.task_id, found.field, found.journal, found.row)
        counts = dataclasses.replace(page, drifts=(), gaps=())
        total[:] = [total[0] + counts if total else counts]
        after = page.next
        if after is None:
            return


def _print(findings: Iterator[_Finding]) -> int:
    """Print them; returns how many there were."""
    from itertools import islice

    from .output import Column, listing, on_terminal

    columns: list[Column[_Finding]] = [
        Column("task", lambda one: one.task, 7, short=lambda one: tail(one.task)),
        Column("field", lambda one: one.field, 8),
        Column("journal", lambda one: _text(one.journal), 9),
        Column("row", lambda one: _text(one.row), 9),
    ]
    shown = 0

    def counted() -> Iterator[_Finding]:
        nonlocal shown
        for finding in findings:
            shown += 1
            yield finding

    if wants_json() or not on_terminal():
        listing(counted(), columns, _record)
        return shown
    every = counted()
    first = list(islice(every, _ON_SCREEN))
    if first:
        listing(first, columns, _record)
    more = sum(1 for _ in every)
    if more:
        tell(f"and {more:,} more: pipe the output to see them all")
    return shown


def _text(value: object) -> object:
    return "none" if value is None else value


def _record(one: _Finding) -> dict[str, Any]:
    return {
        "task_id": one.task,
        "field": one.field,
        "journal": one.journal,
        "row": one.row,
        "event_id": one.event_id,
    }


def _sum_up(found: Audit, findings: int) -> None:
    if wants_json():
        from .output import emit

        emit(
            {
                "tasks": found.tasks,
                "events": found.events,
                "findings": findings,
                "covered": dict(found.covered),
                "since": found.since,
            }
        )
        return
    told = ", ".join(f"{field} {count:,}" for field, count in found.covered.items())
    count = f"{findings:,} finding{'' if findings == 1 else 's'}" if findings else "no findings"
    tell(
        f"{count} in {found.tasks:,} task{'' if found.tasks == 1 else 's'} with {found.events:,} events"
        f" since {found.since:%Y-%m-%d %H:%M:%SZ}"
    )
    tell(f"known from the journal: {told}")


@click.command(
    epilog="\b\nExamples:\n  pgqueue db journal\n  pgqueue db journal full",
)
@click.argument("mode", type=click.Choice(JOURNALS), required=False)
@json_option
@with_client
def journal(client: Client, mode: str | None) -> None:
    """Print what the journal holds, or change it.

    `failures`: what cannot be read off a task. `full`: every move, so that `pgqueue audit` can compare; it costs some
    of the rate. Making it full waits for open transactions that have written tasks, and writers wait meanwhile.
    """
    if mode is not None:
        client.set_journal(mode)
    now = client.journal()
    if wants_json():
        from .output import emit

        emit({"journal": now})
        return
    click.echo(now)
