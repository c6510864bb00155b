"""Why a task is where it is, in one sentence with the number that matters. Decides, and asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pgqueue.ids import tail
from pgqueue.lifecycle import Status

from .words import clock, first_line, span

if TYPE_CHECKING:
    from pgqueue.task import Task

_ERROR_COLUMNS: Final = 200


def why(task: Task, *, now: datetime, busy: Task | None) -> str:
    """The sentence. `now` is the server's; `busy` the running task of the same agent, if any.

    It may quote a worker's name, a message or an error: whoever prints it makes it fit for a terminal.
    """
    return _SENTENCES[task.status](task, now, busy)


def _pending(task: Task, now: datetime, busy: Task | None) -> str:
    if task.not_before > now:
        due = f"due in {span(task.not_before - now)}, at {clock(task.not_before, now=now)}"
        if task.fence and not task.attempts:  # claimed, and every attempt given back
            return f"put off by a worker: {due}; its handler asked for that, or it knows no action {task.action}"
        return f"{'backs off' if task.attempts else 'scheduled'}: {due}" + _failed_before(task)
    if busy is not None:
        return f"waits for agent {task.agent}, busy with {tail(busy.id)} {_holder(busy, now)}" + _failed_before(task)
    ready = f"ready for {span(now - task.not_before)}: waits for a worker that serves queue {task.queue}"
    return ready + _failed_before(task)


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
    error = _error(task)
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
