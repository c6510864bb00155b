"""`pgqueue show`: what a task is, why it is not further, what happened to it, and what can be done now."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from pgqueue.errors import TaskNotFound
from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status

from .common import ID, json_option, program, same_place, server_now, wants_json, with_client
from .why import NAMED, Line, why
from .words import clock, first_line, span

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from pgqueue.client import Client
    from pgqueue.task import Parent, Task, TaskEvent

# The verbs that would work on a task now.
NEXT: Final[Mapping[Status, tuple[str, ...]]] = {
    Status.PENDING: ("cancel",),
    Status.RUNNING: ("cancel", "release"),
    Status.COMPLETED: (),
    Status.DEAD: ("retry", "dismiss"),
    Status.CANCELLED: (),
}

_TRACEBACK_LINES: Final = 40
_PARENT_LINES: Final = 10


class Story(NamedTuple):
    """All that is shown, as one reading found it."""

    task: Task
    events: list[TaskEvent]
    busy: Task | None
    """The running task of its agent, where it waits for that."""
    twin: Task | None
    """The active task that holds its dedupe key, where a retry would be refused for that."""
    line: Line
    """The tasks that it depends on."""
    now: datetime


@click.command(epilog="\b\nExamples:\n  pgqueue show d8dd91\n  pgqueue show d8dd91 --json --payload")
@click.argument("task_id", metavar="ID", type=ID)
@click.option("--payload", is_flag=True, help="Show the payload and the result too.")
@json_option
@with_client
def show(client: Client, task_id: str, payload: bool) -> None:
    """Say what a task is, and why it is not further.

    Then its attempts with their errors, and the commands that would work now. ID is the whole id, its start, or its
    last six digits.
    """
    story = _read(client, task_id)
    if wants_json():
        from .output import emit

        emit(_record(story, content=payload))
    else:
        _print(story, content=payload)


def _read(client: Client, text: str) -> Story:
    task = client.get(client.find(text))
    busy: Task | None = None
    if task.status is Status.PENDING and task.agent is not None:
        busy = next(iter(client.list_tasks(agent=task.agent, status=Status.RUNNING, limit=1)), None)
    twin: Task | None = None
    if task.status is Status.DEAD and task.dedupe_key is not None:
        holders = client.list_tasks(key=task.dedupe_key, agent=task.agent, status=tuple(ACTIVE), limit=1000)
        twin = next((holder for holder in holders if holder.agent == task.agent), None)
    line = Line(client.parents(task.id, results=False))
    if task.status is Status.PENDING:
        line = line._replace(rows=_rows(client, line.holding[:NAMED]))
    return Story(task, client.events(task.id), busy, twin, line, server_now(client.database))


def _rows(client: Client, parents: Iterable[Parent]) -> dict[UUID, Task]:
    rows = {}
    for parent in parents:
        with contextlib.suppress(TaskNotFound):  # not there yet, or pruned meanwhile
            rows[parent.id] = client.get(parent.id)
    return rows


def _sentence(story: Story) -> str:
    sentence = why(story.task, now=story.now, busy=story.busy, line=story.line)
    if story.twin is not None:
        sentence += f"; {tail(story.twin.id)}, {story.twin.status}, holds its dedupe key, so it cannot be retried now"
    return sentence


def _commands(story: Story) -> list[str]:
    task, start, place = story.task, program(), same_place()
    refused = {"cancel"} if task.cancel_requested else {"retry"} if story.twin is not None else set()
    commands = [f"{start} {verb} {task.id}{place}" for verb in NEXT[task.status] if verb not in refused]
    in_the_way = _in_the_way(story)
    if in_the_way is not None:
        commands.append(f"{start} show {in_the_way}{place}")
    return commands


def _in_the_way(story: Story) -> UUID | None:
    """The task to look at next: what this one waits for, or ended for."""
    match story.task.status:
        case Status.PENDING if story.task.waiting_on:
            return next((parent.id for parent in story.line.holding if parent.status is not None), None)
        case Status.CANCELLED if (story.task.last_error or "").startswith("cancelled: "):
            return next((p.id for p in story.line.parents if p.status in (Status.DEAD, Status.CANCELLED)), None)
    other = story.busy or story.twin
    return None if other is None else other.id


def _record(story: Story, *, content: bool) -> dict[str, Any]:
    from .records import event_record, parent_record, task_record

    return task_record(story.task, content=content) | {
        "why": _sentence(story),
        "parents": [parent_record(parent) for parent in story.line.parents],
        "events": [event_record(event) for event in story.events],
        "commands": _commands(story),
    }


def _fields(story: Story, *, content: bool) -> Iterator[tuple[str, object]]:
    task, now = story.task, story.now

    def when(instant: datetime | None) -> str | None:
        return None if instant is None else f"{clock(instant, now=now)} ({span(now - instant)} ago)"

    yield "id", task.id
    yield "queue", task.queue
    yield "agent", task.agent
    yield "account", task.account
    yield "priority", task.priority or None
    yield "attempts", f"{task.attempts} of {task.max_attempts}"
    yield "timeout", task.timeout
    yield "requires", ", ".join(task.requires) or None
    if story.line.parents:
        yield (
            "on failure",
            {"cancel": "of a parent: cancelled too", "run": "of a parent: runs all the same"}[task.on_parent_failure],
        )
    yield "dedupe key", f"{task.dedupe_key}, for ever" if task.dedupe_forever else task.dedupe_key
    yield "created", when(task.created_at)
    yield "started", when(task.started_at)
    yield "finished", when(task.finished_at)
    yield "message", task.message
    if content:
        yield "payload", task.payload_text
        yield "result", task.result_text


def _print(story: Story, *, content: bool) -> None:
    from rich.text import Text

    from .output import STYLES, cell, console, on_terminal

    task, terminal = story.task, on_terminal()
    screen = console() if terminal else None

    def line(text: str, style: str = "") -> None:
        if screen is None:
            click.echo(text)
        else:
            screen.print(Text(text, style=style), soft_wrap=True)

    if screen is None:
        click.echo(f"{task.id}\t{cell(task.action)}\t{task.status}")
    else:
        name = Text(f"{tail(task.id)} {cell(task.action)} ", style="bold")
        screen.print(name + Text(str(task.status), style=f"bold {STYLES[task.status]}"), soft_wrap=True)
    line(cell(_sentence(story)))
    line("")
    for name_, value in _fields(story, content=content):
        if value is not None:
            line(f"  {name_:<10}  {cell(value)}" if terminal else f"{name_}\t{cell(value)}")
    if story.line.parents:
        line("\nwhat it depends on", "bold")
        for text in _parent_lines(story.line.parents, terminal=terminal):
            line(text)
    if story.events:
        line("\nwhat happened", "bold")
        for event in story.events:
            line(_event_line(event, terminal=terminal))
    trace = _trace(task, whole=not terminal)
    if trace:
        line("\nthe last error", "bold")
        for text in trace:
            line(f"  {text}".rstrip(), "red")
    commands = _commands(story)
    if commands:
        line("\nwhat works now", "bold")
        for command in commands:
            line(f"  {command}", "green")


def _parent_lines(parents: Sequence[Parent], *, terminal: bool) -> Iterator[str]:
    """Those that hold it back first; a terminal shows a few."""
    from .output import cell

    in_order = sorted(parents, key=lambda parent: (parent.lifted_at is not None, parent.id))
    for parent in in_order[:_PARENT_LINES] if terminal else in_order:
        status, error = str(parent.status or "not there"), cell(first_line(parent.last_error))
        if terminal:
            words = f"  {tail(parent.id)}  {status:<9}  {cell(parent.action)}"
            yield f"{words}: {error}" if error else words.rstrip()
        else:
            yield "\t".join((str(parent.id), status, cell(parent.action), error))
    if terminal and len(in_order) > _PARENT_LINES:
        yield f"  … and {len(in_order) - _PARENT_LINES:,} more"


def _event_line(event: TaskEvent, *, terminal: bool) -> str:
    from .output import cell

    detail = cell(first_line(event.detail))
    by = cell(event.by)
    if not terminal:
        return "\t".join((cell(event.at), event.event, f"{event.attempt}", by, detail))
    words = [f"  {event.at:%Y-%m-%d %H:%M:%SZ}", f"{event.event:<8}", f"attempt {event.attempt}"]
    words += [f"by {by}"] if by else []
    return "  ".join(words) + (f": {detail}" if detail else "")


def _trace(task: Task, *, whole: bool) -> list[str]:
    """The last error where it has more than its first line: indented as it was, each line fit for a terminal."""
    from .output import cell

    lines = (task.last_error or "").strip().splitlines()
    if len(lines) < 2:
        return []
    shown = lines if whole else lines[-_TRACEBACK_LINES:]
    return [" " * min(len(text) - len(text.lstrip(" ")), 20) + cell(text) for text in shown]
