"""What people do to tasks that they do not hold."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from .. import keys
from ..config import Limits
from ..errors import InputError, KeyHeld, RetryTransaction, TransitionRefused
from ..ids import tail
from ..journal import Entry
from ..lifecycle import ENDS, TERMINAL, Event, Status, source_of
from ..options import Duration
from ..payload import JSON
from ..task import Task
from .base import no_task
from .depend import Depending
from .inspect import Inspecting


class Operating(Inspecting, Depending):
    def cancel(self, connection: Connection, task_id: UUID, /, *, by: str | None = None) -> Status:
        """pending → cancelled at once; a running task is asked to stop (its holder learns at its next renewal).

        Returns CANCELLED or RUNNING (asked). Asking twice is fine. TransitionRefused for a finished task.
        """
        row = self._locked(connection, task_id, Event.CANCEL)
        if row.status == Status.RUNNING:
            self._apply(connection, Event.REQUEST_CANCEL, row, by=by)
            return Status.RUNNING
        self._expect(row, Event.CANCEL, "it cannot be cancelled any more")
        self._apply(connection, Event.CANCEL, row, by=by)
        return Status.CANCELLED

    def retry(self, connection: Connection, task_id: UUID, /, *, by: str | None = None) -> Task:
        """dead → pending with a fresh budget of attempts, due now, at the end of its line.

        TransitionRefused when it is not dead (says what it is); KeyHeld when an active task has its dedupe key.
        """
        row = self._locked(connection, task_id, Event.REVIVE)
        self._expect(row, Event.REVIVE, "only a dead task can be retried")
        self._refuse_twin(connection, row)
        try:
            with connection.begin_nested():
                self._apply(connection, Event.REVIVE, row, by=by)
        except IntegrityError as error:
            if "uniq_active_dedupe" not in str(error.orig):
                raise
            self._refuse_twin(connection, row)
            raise RetryTransaction(f"task {tail(task_id)} lost a race for its dedupe key: retry it again") from None
        connection.execute(self.sql.hint, {"queues": [row.queue]}).all()
        return self.get(connection, task_id)

    def dismiss(self, connection: Connection, task_id: UUID, /, *, by: str | None = None) -> None:
        """dead → cancelled: a person closes it."""
        row = self._locked(connection, task_id, Event.DISMISS)
        self._expect(row, Event.DISMISS, "only a dead task can be dismissed")
        self._apply(connection, Event.DISMISS, row, by=by)

    def evict(self, connection: Connection, task_id: UUID, /, *, by: str | None = None) -> Status:
        """Take a running task from its holder: pending again, attempt given back; cancelled if that was requested.

        The holder's next write raises LeaseNotHeld. Returns what the task became.
        """
        row = self._locked(connection, task_id, Event.EVICT)
        self._expect(row, Event.EVICT, "only a running task can be released")
        return self._apply(connection, Event.EVICT, row, by=by)

    def reschedule(
        self,
        connection: Connection,
        task_id: UUID,
        /,
        *,
        not_before: datetime | None = None,
        delay: Duration | None = None,
        priority: int | None = None,
        by: str | None = None,
    ) -> Task:
        """Change when a pending task becomes due, or its priority, or both; the task as it stands then.

        not_before (aware) or delay from the server's now, one of them at the most; a past time becomes now. priority:
        -9 … 9; alone, it leaves the task its place by time. What waits for parents or conditions goes on waiting for
        them. Journalled, with the new values. Asked for the priority that it has, nothing is written.

        TransitionRefused unless it is pending (says what it is); TaskNotFound; InputError where nothing or both times
        were given.
        """
        keys.check_id(task_id)
        wait, due = _when(not_before, delay)
        if priority is not None:
            keys.check_int(priority, field="priority", low=Limits.PRIORITY[0], high=Limits.PRIORITY[1])
        moved = wait is not None or due is not None
        if not moved and priority is None:
            raise InputError("nothing to reschedule; give not_before, delay or priority", field="not_before")
        row = connection.execute(self.sql.lock(ending=False), {"ids": [task_id]}).first()
        if row is None:
            raise no_task(task_id)
        if row.status != Status.PENDING:
            raise TransitionRefused(
                f"task {tail(row.id)} is {row.status}: only a pending task can be rescheduled; see"
                f" `pgqueue show {row.id}`",
                task_id=row.id,
                status=Status(row.status),
                event=None,
            )
        task = self.get(connection, task_id)
        if not moved and task.priority == priority:
            return task
        now = connection.execute(
            self.sql.reschedule,
            {"task_id": task_id, "moved": moved, "new_not_before": due, "new_delay": wait, "new_priority": priority},
        ).one()
        changes: dict[str, JSON] = {} if priority is None else {"priority": now.priority}
        if moved:
            changes["not_before"] = now.not_before.isoformat()
        self._note(
            connection,
            Entry.RESCHEDULE,
            [(row.id, Status.PENDING.value, row.attempts, row.fence, by, None)],
            [changes],
        )
        connection.execute(self.sql.hint, {"queues": [row.queue]}).all()
        return self.get(connection, task_id)

    def _locked(self, connection: Connection, task_id: UUID, event: Event) -> Any:
        keys.check_id(task_id)
        row = connection.execute(self.sql.lock(ending=event in ENDS), {"ids": [task_id]}).first()
        if row is None:
            raise no_task(task_id)
        return row

    def _expect(self, row: Any, event: Event, consequence: str) -> None:
        if row.status != source_of(event):
            raise TransitionRefused(
                f"task {tail(row.id)} is {row.status}: {consequence}; see `pgqueue show {row.id}`",
                task_id=row.id,
                status=Status(row.status),
                event=event,
            )

    def _refuse_twin(self, connection: Connection, row: Any) -> None:
        if row.dedupe_key is None:
            return
        names = {"key": row.dedupe_key} | ({"agent": row.agent} if row.agent is not None else {})
        holder = connection.execute(self.sql.key_holder(has_agent=row.agent is not None), names).first()
        if holder is not None:
            raise KeyHeld(
                f"task {tail(row.id)} cannot be retried: task {holder.id} ({holder.status}) holds its dedupe key"
                f" {row.dedupe_key!r}; wait for that one, or cancel it",
                task_id=row.id,
                holder=holder.id,
            )

    def _apply(self, connection: Connection, event: Event, row: Any, *, by: str | None) -> Status:
        moved = connection.execute(self.sql.apply(event), {"ids": [row.id]}).one()
        self._record(connection, event, [(row.id, moved.status, row.attempts, moved.fence, by, None)])
        became = Status(moved.status)
        if became in TERMINAL:
            self._ended(connection, {row.id: became})
        return became


def _when(not_before: datetime | None, delay: Duration | None) -> tuple[timedelta | None, datetime | None]:
    """(delay, not_before), checked; one of them at the most."""
    if not_before is not None and delay is not None:
        raise InputError("delay and not_before were both given; give one of them", field="delay")
    wait = None if delay is None else keys.check_duration(delay, field="delay")
    due = None if not_before is None else keys.check_instant(not_before, field="not_before")
    return wait, due
