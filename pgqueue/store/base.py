"""What every verb stands on: the statements, the journal, and checks of what callers pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import keys, payload, sanitize
from ..config import DEFAULTS, Limits
from ..errors import InputError, RetryTransaction, TaskNotFound
from ..journal import Entry
from ..lifecycle import Event, Status, source_of
from ..options import Duration
from ..payload import JSON
from ..statements import statements_for


class Base:
    """The statements of one schema. Holds no connection and no state."""

    def __init__(self, schema: str = DEFAULTS.schema) -> None:
        self.schema = schema
        self.sql = statements_for(schema)

    def _record(
        self, connection: Connection, event: Event, rows: Sequence[tuple[UUID, str, int, int, str | None, str | None]]
    ) -> None:
        """Append to the journal: (task, status it led to, attempt, fence, by whom, detail) each."""
        self._write(connection, event.value, source_of(event).value, rows)

    def _write(
        self,
        connection: Connection,
        event: str,
        source: str | None,
        rows: Sequence[tuple[UUID, str, int, int, str | None, str | None]],
        changes: Sequence[Mapping[str, JSON] | None] | None = None,
    ) -> None:
        if rows:
            columns = list(zip(*rows, strict=True))
            connection.execute(
                self.sql.record,
                {
                    "e_task_id": list(columns[0]),
                    "e_event": [event] * len(rows),
                    "e_from_status": list(columns[1]) if source is None else [source] * len(rows),
                    "e_to_status": list(columns[1]),
                    "e_attempt": list(columns[2]),
                    "e_fence": list(columns[3]),
                    "e_by": [by if by is None else sanitize.clean(by, limit=Limits.NAME_BYTES) for by in columns[4]],
                    "e_detail": list(columns[5]),
                    "e_changes": None if changes is None else [_json(one) for one in changes],
                },
            )

    def _note(
        self,
        connection: Connection,
        entry: Entry,
        rows: Sequence[tuple[UUID, str, int, int, str | None, str | None]],
        changes: Sequence[Mapping[str, JSON] | None] | None = None,
    ) -> None:
        """As `_record`, of what changes no status. `changes`: of each row, the new values of the columns it wrote."""
        self._write(connection, entry.value, None, rows, changes)

    def _each_isolated(
        self, connection: Connection, ids: Sequence[UUID], write: Callable[[Connection, Sequence[UUID]], list[Any]]
    ) -> list[Any]:
        """All at once; where a row objects, one by one, so that it holds up nobody else."""
        try:
            with connection.begin_nested():
                return write(connection, ids)
        except DBAPIError as error:
            if error.connection_invalidated:
                raise
        done: list[Any] = []
        for task_id in ids:
            try:
                with connection.begin_nested():
                    done += write(connection, [task_id])
            except DBAPIError as error:
                if error.connection_invalidated:
                    raise
        return done


def _json(changes: Mapping[str, JSON] | None) -> str | None:
    return None if changes is None else payload.encode(changes, field="changes")


def or_none(values: list[Any]) -> list[Any] | None:
    """An array's values, or None where all are NULL, which need not be sent (`statements.arrays`)."""
    return None if values.count(None) == len(values) else values


def no_task(task_id: UUID) -> TaskNotFound:
    return TaskNotFound(f"no task {task_id}: it never existed, or was pruned; see `pgqueue list`", task_id=task_id)


def lease_length(lease: Duration) -> timedelta:
    return keys.check_duration(lease, field="lease", low=0.05, high=7 * 86_400)


def statuses(status: Status | str | Sequence[Status | str] | None) -> tuple[str, ...] | None:
    if status is None:
        return None
    given = (status,) if isinstance(status, str) else tuple(status)
    unknown = [s for s in given if s not in tuple(Status)]
    if unknown:
        raise InputError(f"unknown status {unknown[0]!r}; one of: {', '.join(Status)}", field="status")
    return tuple(Status(s).value for s in given)


class lost_race:  # noqa: N801 - reads as a statement
    """A duplicate met at REPEATABLE READ or SERIALIZABLE is the usual serialization failure: the caller's to retry."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, DBAPIError):
            state = getattr(error.orig, "sqlstate", None) or getattr(error.orig, "pgcode", None)
            if state in ("40001", "40P01"):
                raise RetryTransaction(f"the transaction lost a race ({state}): roll back and run it again") from error
