"""Why a task is where it is, in one sentence with the number that matters. Decides, and asks nobody."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final, NamedTuple

from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status

from .words import clock, first_line, span

if TYPE_CHECKING:
    from uuid import UUID

    from pgqueue.task import Parent, Task

NAMED: Final = 3
"""Of many parents, how many are named."""

_ERROR_COLUMNS: Final = 200
_CASCADED: Final = "cancelled: "
"""How the error of a task begins that was cancelled because of another."""


class Line(NamedTuple):
    """What a task that waits for others is held back by.

    parents: all of its edges. rows: of the first NAMED that hold it back, the tasks themselves, where they are there.
    """

    parents: Sequence[Parent] = ()
    rows: Mapping[UUID, Task] = {}

    @property
    def holding(self) -> list[Parent]:
        """Those that still hold it back."""
        return [parent for parent in self.parents if parent.lifted_at is None]


ALONE: Final = Line()
"""The line of a task that depends on no other."""


def why(task: Task, *, now: datetime, busy: Task | None, line: Line = ALONE) -> str:
    """The sentence. `now` is the server's; `busy` the running task of the same agent, if any; `line` what
    it depends on.

    It may quote a worker's name, a message or an error: whoever prints it makes it fit for a terminal.
    """
    if task.status is Status.PENDING and task.waiting_on:
        return _blocked(task, now, line)
    return _SENTENCES[task.status](task, now, busy)


def _blocked(task: Task, now: datetime, line: Line) -> str:
    holding = line.holding
    if not holding:
        sentence = f"waits for {_count(task.waiting_on, 'parent')}"
    elif len(line.parents) == 1:
        [parent] = holding
        sentence = f"waits for {_named(parent)}, which {_parent(parent, task, now, line.rows.get(parent.id))}"
    else:
        sentence = f"{len(holding):,} of {_count(len(line.parents), 'parent')} not done: " + "; ".join(
            f"{_named(parent)} {_parent(parent, task, now, line.rows.get(parent.id))}" for parent in holding[:NAMED]
        )
        if len(holding) > NAMED:
            sentence += f"; and {len(holding) - NAMED:,} more"
    if task.not_before > now:
        sentence += f"; it is not due before {clock(task.not_before, now=now)} either, in {span(task.not_before - now)}"
    return sentence + _failed_before(task)


def _named(parent: Parent) -> str:
    return tail(parent.id) + (f" ({parent.action})" if parent.action else "")


def _parent(parent: Parent, child: Task, now: datetime, row: Task | None) -> str:
    """What keeps a parent from being done, as what follows its name."""
    if parent.status is None:
        if parent.look_at is None:
            return "does not exist (yet)"
        when = f"let go at {clock(parent.look_at, now=now)}" if parent.look_at > now else "the sweep is letting it go"
        return f"does not exist (yet): {when}"
    if parent.status not in ACTIVE:
        cancels = parent.status is not Status.COMPLETED and child.on_parent_failure == "cancel"
        return f"is {parent.status}: the sweep is {'cancelling this task' if cancels else 'letting it go'}"
    if row is None or row.status is not parent.status:
        return f"is {parent.status}"
    if row.status is Status.RUNNING:
        return f"is running {_holder(row, now)}"
    if row.waiting_on:
        return f"waits for {_count(row.waiting_on, 'parent')} itself"
    if row.not_before > now:
        return f"is due in {span(row.not_before - now)}, at {clock(row.not_before, now=now)}"
    return f"waits since {clock(row.not_before, now=now)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _pending(task: Task, now: datetime, busy: Task | None) -> str:
    if task.not_before > now:
        due = f"due in {span(task.not_before - now)}, at {clock(task.not_before, now=now)}"
        if task.fence and not task.attempts:  # claimed, and every attempt given back
            return f"put off by a worker: {due}; its handler asked for that, or it knows no action {task.action}"
        return f"{'backs off' if task.attempts else 'scheduled'}: {due}" + _failed_before(task)
    if busy is not None:
        return f"waits for agent {task.agent}, busy with {tail(busy.id)} {_holder(busy, now)}" + _failed_before(task)
    ready = f"ready for {span(now - task.not_before)}: waits for {_taker(task)}"
    return ready + _failed_before(task)


def _taker(task: Task) -> str:
    if not task.requires:
        return f"a worker that serves queue {task.queue}"
    words = ["pgqueue", "worker", "--queues", task.queue]
    for name in task.requires:
        words += ["--offer", name]
    return f"a claim that offers {', '.join(task.requires)}: {shlex.join(words)}"


def _running(task: Task, now: datetime, busy: Task | None) -> str:
    sentence = f"attempt {task.attempts} of {task.max_attempts} {_holder(task, now)}"
    if task.cancel_requested:
        sentence += "; its cancellation was requested, the holder learns of it at its next renewal"
    if task.progress or task.message:
        sentence += f"; {task.progress} % done" + (f": {task.message}" if task.message else "")
    return sentence


def _holder(task: Task, now: datetime) -> str:
    since = span(now - (task.started_at or task.updated_at))
    if task.lease_expires_at is None or task.lease_expires_at > now:
        until = "" if task.lease_expires_at is None else f" until {clock(task.lease_expires_at, now=now)}"
        return f"for {since}, held by {task.lease_owner}{until}"
    over = span(now - task.lease_expires_at)
    return f"for {since}, held by {task.lease_owner}, whose lease ran out {over} ago: the reaper will return it"


def _completed(task: Task, now: datetime, busy: Task | None) -> str:
    return f"took {_took(task)}in attempt {task.attempts}, finished {_finished(task, now)}"


def _dead(task: Task, now: datetime, busy: Task | None) -> str:
    used_up = task.attempts >= task.max_attempts
    how = "out of attempts, after" if used_up else "given up in attempt"
    attempts = f"{task.attempts} of {task.max_attempts}"
    return f"{how} {attempts}, {_finished(task, now)}: {_error(task) or 'no error was recorded'}"


def _cancelled(task: Task, now: datetime, busy: Task | None) -> str:
    when = "before it ever ran" if task.started_at is None else f"after attempt {task.attempts} of {task.max_attempts}"
    error = _error(task).removeprefix(_CASCADED)
    return f"cancelled {_finished(task, now)}, {when}" + (f": {error}" if error else "")


def _failed_before(task: Task) -> str:
    error = _error(task)
    return f"; attempt {task.attempts} of {task.max_attempts} ended in: {error}" if task.attempts and error else ""


def _error(task: Task) -> str:
    return first_line(task.last_error)[:_ERROR_COLUMNS]


def _took(task: Task) -> str:
    if task.started_at is None or task.finished_at is None:
        return ""
    return f"{span(task.finished_at - task.started_at)} "


def _finished(task: Task, now: datetime) -> str:
    return f"{span(now - (task.finished_at or task.updated_at))} ago"


_SENTENCES: Final[Mapping[Status, Callable[[Task, datetime, Task | None], str]]] = {
    Status.PENDING: _pending,
    Status.RUNNING: _running,
    Status.COMPLETED: _completed,
    Status.DEAD: _dead,
    Status.CANCELLED: _cancelled,
}
