"""Why a task is where it is, in one sentence with the number that matters. Decides, and asks nobody."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final, NamedTuple

from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status

from .words import clock, first_line, span

if TYPE_CHECKING:
    from uuid import UUID

    from pgqueue.fleet import Pause, WorkerInfo
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


class Around(NamedTuple):
    """What there is besides the task itself.

    pauses: of its queue and its agent. workers: all that are registered; None: nobody asked.
    """

    pauses: Sequence[Pause] = ()
    workers: Sequence[WorkerInfo] | None = None


UNSEEN: Final = Around()
"""Nobody looked around."""


def why(task: Task, *, now: datetime, busy: Task | None, line: Line = ALONE, around: Around = UNSEEN) -> str:
    """The sentence. `now` is the server's; `busy` the running task of the same agent, if any; `line` what
    it depends on; `around` who could take it.

    It may quote a worker's name, a message or an error: whoever prints it makes it fit for a terminal.
    """
    if task.status is Status.PENDING and task.waiting_on:
        return _blocked(task, now, line)
    if task.status is Status.PENDING:
        return _pending(task, now, busy, around)
    return _SENTENCES[task.status](task, now)


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


def _pending(task: Task, now: datetime, busy: Task | None, around: Around) -> str:
    paused = "; ".join(_paused(pause, now) for pause in around.pauses)
    if task.not_before > now:
        due = f"due in {span(task.not_before - now)}, at {clock(task.not_before, now=now)}"
        if task.fence and not task.attempts:  # claimed, and every attempt given back
            return f"put off by a worker: {due}; its handler asked for that, or it knows no action {task.action}"
        sentence = f"{'backs off' if task.attempts else 'scheduled'}: {due}" + (f"; and {paused}" if paused else "")
        return sentence + _failed_before(task)
    if paused:
        return paused + _failed_before(task)
    if busy is not None:
        return f"waits for agent {task.agent}, busy with {tail(busy.id)} {_holder(busy, now)}" + _failed_before(task)
    return f"ready for {span(now - task.not_before)}: {_taker(task, around.workers)}" + _failed_before(task)


def _paused(pause: Pause, now: datetime) -> str:
    by = "" if pause.by is None else f" by {pause.by}"
    command = shlex.join(["pgqueue", "resume", pause.kind, pause.name])
    return f"{pause.kind} {pause.name} is paused since {clock(pause.since, now=now)}{by}: {command}"


def _taker(task: Task, workers: Sequence[WorkerInfo] | None) -> str:
    """Who could take it, and whether there is anybody."""
    if not workers:
        nobody = "" if workers is None else "; none is registered"
        return f"waits for {_wanted(task)}{nobody}"
    alive = [worker for worker in workers if not worker.stale]
    if not alive:
        return f"waits for {_wanted(task)}; of {_count(len(workers), 'worker')} none was seen for a while"
    serving = [worker for worker in alive if task.queue in worker.queues]
    if not serving:
        near = get_close_matches(task.queue, sorted({queue for worker in alive for queue in worker.queues}), n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        itself = "" if task.agent is None else f", and agent {task.agent} has not claimed it itself"
        return f"no worker serves queue {task.queue}{itself}{meant}"
    offered = {name for worker in serving for name in worker.offers}
    missing = [name for name in task.requires if name not in offered]
    if missing:
        return f"no live worker of queue {task.queue} offers {', '.join(missing)}: {_command(task)}"
    able = [worker for worker in serving if set(task.requires) <= set(worker.offers)]
    if not able:
        return f"waits for {_wanted(task)}"
    if not any(task.action in worker.actions for worker in able):
        return f"no worker that could take it knows action {task.action}"
    return f"waits for a free slot of {_count(len(able), 'worker')} that could take it"


def _wanted(task: Task) -> str:
    if not task.requires:
        return f"a worker that serves queue {task.queue}"
    return f"a claim that offers {', '.join(task.requires)}: {_command(task)}"


def _command(task: Task) -> str:
    words = ["pgqueue", "worker", "--queues", task.queue]
    for name in task.requires:
        words += ["--offer", name]
    return shlex.join(words)


def _running(task: Task, now: datetime) -> str:
    sentence = f"attempt {task.attempts} of {task.max_attempts} {_holder(task, now)}"
    if task.cancel_requested:
        sentence += "; its cancellation was requested: the holder was told, and learns of it at its next renewal"
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


def _completed(task: Task, now: datetime) -> str:
    return f"took {_took(task)}in attempt {task.attempts}, finished {_finished(task, now)}"


def _dead(task: Task, now: datetime) -> str:
    used_up = task.attempts >= task.max_attempts
    how = "out of attempts, after" if used_up else "given up in attempt"
    attempts = f"{task.attempts} of {task.max_attempts}"
    return f"{how} {attempts}, {_finished(task, now)}: {_error(task) or 'no error was recorded'}"


def _cancelled(task: Task, now: datetime) -> str:
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


_SENTENCES: Final[Mapping[Status, Callable[[Task, datetime], str]]] = {
    Status.RUNNING: _running,
    Status.COMPLETED: _completed,
    Status.DEAD: _dead,
    Status.CANCELLED: _cancelled,
}
