"""The real queue as the machine sees it: its rows, read in one look, and its clock, which the machine moves."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
from psycopg.rows import dict_row

from pgqueue.client import Client
from pgqueue.database import Database

_INSTANTS = {
    "tasks": ("not_before", "lease_expires_at", "created_at", "updated_at", "started_at", "finished_at"),
    "task_dependencies": ("look_at", "lifted_at"),
    "task_events": ("at",),
    "meta": ("full_since",),
}

# One look: rows, edges and journal as of one moment, and the clock after it.
_LOOK = """
with edges as (
  select child_id, jsonb_object_agg(parent_id, to_jsonb(array[lifted_at, look_at])) as parents
  from pgqueue.task_dependencies group by child_id
), journal as (
  select task_id, jsonb_agg(jsonb_build_array(event, to_status, attempt, fence) order by id) as events
  from pgqueue.task_events group by task_id
)
select (select array_agg(child_id) from edges where child_id not in (select id from pgqueue.tasks)) as orphans,
  clock_timestamp() as clock, t.*, edges.parents, journal.events
from (select 1) one left join pgqueue.tasks t on true
left join edges on edges.child_id = t.id left join journal on journal.task_id = t.id
"""

# Which parent's status is named depends on who looked, and a circle's path on where one begins.
_CASCADE = re.compile(r"(cancelled: its parent [-0-9a-f]{36}|cancelled: it waits for itself).*", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Row:
    """`values` that are compared as they are; `instants`, in the machine's time."""

    token: UUID | None
    values: Mapping[str, object]
    instants: Mapping[str, datetime | None]
    parents: Mapping[UUID, tuple[bool, datetime | None]]
    """Lifted or not, and when it is to be looked at."""


class Server:
    """One database for all sequences of a run. The machine's time is the server's, plus all that was let pass."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.client = Client(database)
        self.seen: Counter[str] = Counter()
        """What happened, over all sequences: a rule, and how it ended."""
        self._raw = psycopg.connect(database.url, autocommit=True, row_factory=dict_row)
        self._passed = timedelta(0)
        self._sequences = 0

    def close(self) -> None:
        self._raw.close()

    def clear(self) -> None:
        """Nothing is left of the sequence before."""
        self._passed = timedelta(0)
        tables = [table for table in _INSTANTS if table != "meta"]
        self._raw.execute("; ".join(f"delete from pgqueue.{table}" for table in tables))
        self._sequences += 1
        if self._sequences % 50 == 0:
            # What was deleted is walked over by every look otherwise.
            self._raw.execute(f"vacuum {', '.join(f'pgqueue.{table}' for table in tables)}")
        self.client.set_journal("failures")

    def let_pass(self, duration: timedelta) -> None:
        """Move every instant into the past. No row's status changes, so no trigger minds."""
        shifts = [
            f"update pgqueue.{table} set "
            + ", ".join(f"{c} = {c} - '{duration.total_seconds()} s'::interval" for c in columns)
            for table, columns in _INSTANTS.items()
        ]
        self._raw.execute("; ".join(shifts))
        self._passed += duration

    def real(self, instant: datetime) -> datetime:
        """The server's time of an instant in the machine's."""
        return instant - self._passed

    def _virtual(self, instant: datetime | None) -> datetime | None:
        return None if instant is None else instant + self._passed

    def look(self) -> tuple[datetime, dict[UUID, Row]]:
        """The clock, and every row."""
        found = self._raw.execute(_LOOK).fetchall()
        assert found[0]["orphans"] is None, f"edges of tasks that are gone: {found[0]['orphans']}"
        clock = self._virtual(found[0]["clock"])
        assert clock is not None
        return clock, {row["id"]: self._row(row) for row in found if row["id"] is not None}

    def _row(self, row: Mapping[str, Any]) -> Row:
        parents = {
            UUID(parent): (lifted is not None, self._virtual(None if look is None else datetime.fromisoformat(look)))
            for parent, (lifted, look) in (row["parents"] or {}).items()
        }
        error = row["last_error"]
        values = {
            "queue": row["queue"],
            "action": row["action"],
            "agent": row["agent"],
            "status": row["status"],
            "priority": row["priority"],
            "payload": row["payload"],
            "result": row["result"],
            "attempts": row["attempts"],
            "max_attempts": row["max_attempts"],
            "fence": row["fence"],
            "waiting_on": row["waiting_on"],
            "blocked": row["blocked"],
            "requires": row["requires"],
            "on_parent_failure": row["on_parent_failure"],
            "key": row["dedupe_key"],
            "forever": row["dedupe_forever"],
            "owner": row["lease_owner"],
            "cancel_requested": row["cancel_requested"],
            "progress": row["progress"],
            "message": row["message"],
            "error": error and _CASCADE.sub(r"\1", error),
            "journal": [tuple(event) for event in row["events"] or ()],
        }
        instants = {
            "not_before": self._virtual(row["not_before"]),
            "expires": self._virtual(row["lease_expires_at"]),
            "finished": self._virtual(row["finished_at"]),
        }
        return Row(row["lease_token"], values, instants, parents)

    @contextlib.contextmanager
    def undone(self) -> Iterator[tuple[Any, datetime]]:
        """A transaction that is rolled back, and its `now()`."""
        with self.database.engine.connect() as connection:
            now = self._virtual(connection.exec_driver_sql("select now()").scalar_one())
            assert now is not None
            yield connection, now
            connection.rollback()

    def would_claim(self, queues: Sequence[str], offers: Sequence[str]) -> tuple[datetime, list[UUID]]:
        """What a claim of everything would bring at that moment. Nothing is claimed."""
        with self.undone() as (connection, now):
            claimed = self.client.store.claim_batch(connection, queues, limit=1000, owner="nobody", offers=offers)
            return now, [task.id for task in claimed]
