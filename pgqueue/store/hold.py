"""What the holder of a lease may do: settle, renew, report."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from .. import keys, payload, sanitize
from ..config import DEFAULTS, Limits
from ..errors import DatabaseError, LeaseNotHeld, TransitionRefused
from ..ids import tail
from ..lifecycle import TERMINAL, Event, Status, moves_of
from ..options import Duration
from ..payload import JSON
from ..task import Lease, Renewed, Settled
from .base import lease_length, or_none
from .depend import Depending
from .values import Held, Settlement, lease_of

_JOURNALLED = frozenset({Event.FAIL, Event.BURY, Event.RELEASE, Event.ACKNOWLEDGE})
"""What the default journal keeps of a holder's writes: what cannot be read off the row afterwards. And of a snooze that
it ended the task: the full journal's trigger could not tell that from a release.
"""

_GIVEN_BACK = frozenset({Event.RELEASE, Event.SNOOZE})

_STATUS = {status.value: status for status in Status}


class Holding(Depending):
    def settle_many(
        self, connection: Connection, settlements: Sequence[Settlement], *, skip_locked: bool = True
    ) -> dict[UUID, Settled | LeaseNotHeld | None]:
        """Apply holders' writes, at most one per task, one statement per kind of event.

        Per id: what the task became; a LeaseNotHeld (not raised) that says who decides about it now; or None when
        somebody has the row locked just now: try those again, each alone and with `skip_locked=False`. A settle that
        was sent before and had succeeded (its COMMIT's answer was lost) recognises itself and counts as success.
        """
        done: dict[UUID, Settled | LeaseNotHeld | None] = {}
        ended: dict[UUID, Status] = {}
        for event, group in itertools.groupby(sorted(settlements, key=lambda s: s.event), key=lambda s: s.event):
            done |= self._settle(connection, event, list(group), ended, skip_locked=skip_locked)
        self._ended(connection, ended)
        return done

    def _settle(
        self,
        connection: Connection,
        event: Event,
        settlements: Sequence[Settlement],
        ended: dict[UUID, Status],
        *,
        skip_locked: bool,
    ) -> dict[UUID, Settled | LeaseNotHeld | None]:
        """One kind of event. Adds to `ended` what it ended."""
        rows = connection.execute(
            self.sql.settle(event, skip_locked=skip_locked),
            {
                "ids": [s.lease.task_id for s in settlements],
                "tokens": [s.lease.token for s in settlements],
                "details": or_none([s.detail for s in settlements]),
                "delays": or_none([s.delay for s in settlements]),
            },
        ).all()
        done: dict[UUID, Settled | LeaseNotHeld | None] = {
            task_id: Settled(task_id, _STATUS[status], attempts) for task_id, status, attempts, *_ in rows
        }
        ended.update((row.id, _STATUS[row.status]) for row in rows if _STATUS[row.status] in TERMINAL)
        told = rows if event in _JOURNALLED else ()
        if event is Event.SNOOZE:
            told = [row for row in rows if _STATUS[row.status] in TERMINAL]
        if told:
            details = {s.lease.task_id: s.detail for s in settlements}
            self._record(
                connection, event, [(r.id, r.status, _attempt(event, r), r.fence, r.owner, details[r.id]) for r in told]
            )
        missing = [s.lease for s in settlements if s.lease.task_id not in done]
        if missing:
            targets = {move.target for move in moves_of(event)}
            done |= self._why_not(connection, missing, targets)
        return done

    def _why_not(
        self, connection: Connection, leases: Sequence[Lease], targets: set[Status]
    ) -> dict[UUID, Settled | LeaseNotHeld | None]:
        """Zero rows does not by itself mean that the lease is lost: read the row without a lock, and say."""
        found = {
            row.id: row for row in connection.execute(self.sql.holders, {"ids": [lease.task_id for lease in leases]})
        }
        answers: dict[UUID, Settled | LeaseNotHeld | None] = {}
        for lease in leases:
            row = found.get(lease.task_id)
            mine = row is not None and row.lease_token == lease.token
            if row is not None and mine and row.lease_expires_at is not None:
                answers[lease.task_id] = None
            elif row is not None and mine and Status(row.status) in targets:
                answers[lease.task_id] = Settled(lease.task_id, Status(row.status), row.attempts)
            else:
                answers[lease.task_id] = not_held(lease, row)
        return answers

    def _settle_one(self, connection: Connection, settlement: Settlement) -> Settled:
        answer = self.settle_many(connection, [settlement], skip_locked=False)[settlement.lease.task_id]
        if isinstance(answer, Settled):
            return answer
        if isinstance(answer, LeaseNotHeld):
            raise answer
        # Mine, unlocked a moment ago, and yet not moved: the event's guard said no.
        raise self._guard_refused(settlement)

    def _guard_refused(self, settlement: Settlement) -> TransitionRefused:
        return TransitionRefused(
            f"task {tail(settlement.lease.task_id)} is running and nobody asked to cancel it: there is nothing to"
            " acknowledge; complete, fail or release it",
            task_id=settlement.lease.task_id,
            status=Status.RUNNING,
            event=settlement.event,
        )

    def complete(self, connection: Connection, held: Held, /, result: JSON = None) -> Settled:
        """running → completed. Wins over a cancel request. LeaseNotHeld when the task is not the caller's any more."""
        detail = payload.encode(result, field="result", limit=Limits.RESULT_BYTES) if result is not None else None
        return self._settle_one(connection, Settlement(Event.COMPLETE, lease_of(held), detail))

    def fail(self, connection: Connection, held: Held, /, error: str, *, delay: Duration | None = None) -> Settled:
        """running → pending after the backoff (or `delay`); dead when attempts are used up; cancelled if requested."""
        wait = None if delay is None else keys.check_duration(delay, field="delay")
        text = sanitize.clean(error, limit=Limits.ERROR_BYTES)
        return self._settle_one(connection, Settlement(Event.FAIL, lease_of(held), text, wait))

    def bury(self, connection: Connection, held: Held, /, error: str) -> Settled:
        """running → dead, whatever attempts are left; cancelled if requested."""
        text = sanitize.clean(error, limit=Limits.ERROR_BYTES)
        return self._settle_one(connection, Settlement(Event.BURY, lease_of(held), text))

    def release(self, connection: Connection, held: Held, /) -> Settled:
        """running → pending; the attempt is given back and the task keeps its place in the line."""
        return self._settle_one(connection, Settlement(Event.RELEASE, lease_of(held)))

    def snooze(self, connection: Connection, held: Held, /, delay: Duration) -> Settled:
        """running → pending, due after `delay`; the attempt is given back."""
        wait = keys.check_duration(delay, field="delay")
        return self._settle_one(connection, Settlement(Event.SNOOZE, lease_of(held), None, wait))

    def acknowledge_cancel(self, connection: Connection, held: Held, /) -> Settled:
        """running → cancelled: the holder has unwound. TransitionRefused unless a cancel was requested."""
        return self._settle_one(connection, Settlement(Event.ACKNOWLEDGE, lease_of(held)))

    def renew(self, connection: Connection, held: Held, /, *, lease: Duration = DEFAULTS.lease) -> Renewed:
        """Extend a lease to `lease` from the server's now, and learn of a cancel request.

        Raises LeaseNotHeld: stop, do not settle. DatabaseError: it may or may not have been extended; count on the
        old deadline.
        """
        mine = lease_of(held)
        answer = self.renew_many(connection, [mine], lease=lease_length(lease), skip_locked=False)[mine.task_id]
        if isinstance(answer, LeaseNotHeld):
            raise answer
        if answer is None:
            raise DatabaseError(f"task {tail(mine.task_id)} is locked by somebody's open transaction: renew again")
        return answer

    def renew_many(
        self, connection: Connection, leases: Sequence[Lease], *, lease: timedelta, skip_locked: bool = True
    ) -> dict[UUID, Renewed | LeaseNotHeld | None]:
        """Extend leases in one statement. Per id: Renewed; LeaseNotHeld (not raised); None: locked, try it alone."""
        ids = {"ids": [lease.task_id for lease in leases], "tokens": [lease.token for lease in leases]}
        rows = connection.execute(self.sql.renew(skip_locked=skip_locked), ids | {"lease": lease})
        done: dict[UUID, Renewed | LeaseNotHeld | None] = {
            row.id: Renewed(row.id, row.lease_expires_at, row.cancel_requested) for row in rows
        }
        missing = [lease for lease in leases if lease.task_id not in done]
        for task_id, answer in self._why_not(connection, missing, set()).items() if missing else ():
            done[task_id] = None if isinstance(answer, Settled) else answer
        return done

    def report_progress(self, connection: Connection, held: Held, /, percent: int, message: str | None = None) -> None:
        """Write progress (0 … 100) and a message (at most 4 KiB, cleaned, not refused). LeaseNotHeld if lost."""
        keys.check_int(percent, field="percent", low=0, high=100)
        mine = lease_of(held)
        text = None if message is None else sanitize.clean(message, limit=Limits.MESSAGE_BYTES)
        if not self.report_many(connection, [(mine, percent, text)], skip_locked=False):
            answer = self._why_not(connection, [mine], set())[mine.task_id]
            raise answer if isinstance(answer, LeaseNotHeld) else not_held(mine, None)

    def report_many(
        self, connection: Connection, reports: Sequence[tuple[Lease, int, str | None]], *, skip_locked: bool = True
    ) -> set[UUID]:
        """Write several tasks' progress; returns the ids that were written."""
        rows = connection.execute(
            self.sql.report(skip_locked=skip_locked),
            {
                "ids": [lease.task_id for lease, _, _ in reports],
                "tokens": [lease.token for lease, _, _ in reports],
                "percents": [percent for _, percent, _ in reports],
                "messages": [message for _, _, message in reports],
            },
        )
        return {row.id for row in rows}


def _attempt(event: Event, row: Any) -> int:
    return int(row.attempts) + (1 if event in _GIVEN_BACK else 0)


def not_held(lease: Lease, row: Any, *, renewed_at: datetime | None = None) -> LeaseNotHeld:
    """The explanation: who holds the task now, since when, and what this caller should do."""
    name = f"task {tail(lease.task_id)}"
    if row is None:
        return LeaseNotHeld(f"{name} is gone (pruned): do not settle it", task_id=lease.task_id, status=None)
    status = Status(row.status)
    if status is Status.RUNNING:
        # A row that was written by hand need not say when it was claimed.
        since = row.started_at or row.updated_at
        now = f"{row.lease_owner} holds it since {since:%Y-%m-%d %H:%M:%S}Z"
    else:
        now = f"it is {status.value} since {row.updated_at:%Y-%m-%d %H:%M:%S}Z"
        since = row.updated_at
    return LeaseNotHeld(
        f"the lease on {name} is not yours any more: {now}; stop the work, its outcome is not recorded",
        task_id=lease.task_id,
        status=status,
        owner=row.lease_owner,
        since=since,
        renewed_at=renewed_at,
    )
