"""Switch the journal, and compare it with the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC
from typing import Any
from uuid import UUID

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from .. import keys
from ..errors import DatabaseError, JournalOff
from ..journal import FIELDS, FULL, JOURNALS, Audit, Drift, Gap, Line, drift, replay
from .base import Base

_CHUNK = 500
"""Tasks that one statement of an audit reads."""

_FINDINGS = 10_000
"""What an audit holds at the most: with so many it ends, and says where to go on."""

_DIGITS = 640
"""Fewer than any limit that a program can set on reading an int."""

_NONE, _LAST = UUID(int=0), UUID(int=2**128 - 1)


def _number(text: str) -> int | str:
    """What another client wrote may be longer than an int can be read; it is drift then, not an error."""
    return int(text) if len(text) < _DIGITS else text


class Journalling(Base):
    def journal(self, connection: Connection) -> str:
        """What the journal holds: "failures" or "full"."""
        return str(connection.execute(self.sql.journal).one().journal)

    def set_journal(self, connection: Connection, mode: str, /) -> None:
        """Have the journal hold "failures" (what cannot be read off a row) or "full" (every move). Twice is once.

        Wants a role that owns the tables. Waits for open transactions that have written tasks (back to "failures": that
        have read them), and nobody else can write tasks until its own commit. DatabaseError, which names those
        transactions, when they take longer than the lock timeout (5 s); nothing was changed then.
        """
        keys.check_choice(mode, field="journal", choices=JOURNALS)
        if mode == self.journal(connection):
            return
        try:
            with connection.begin_nested():
                for statement in self.sql.switch_triggers(on=mode == FULL):
                    connection.execute(statement)
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != "55P03":
                raise
            raise self._kept_waiting(connection, mode) from error
        connection.execute(self.sql.set_journal, {"mode": mode})

    def _kept_waiting(self, connection: Connection, mode: str) -> DatabaseError:
        users = connection.execute(self.sql.users, {"write": mode == FULL}).all()
        named = "; ".join(
            f"pid {pid} ({name or 'unnamed'}, since {since.astimezone(UTC):%H:%M:%SZ})" for pid, name, since in users
        )
        return DatabaseError(
            "the journal was not switched: open transactions use the tasks and did not end in time; they are:"
            f" {named or 'ended meanwhile'}; end them, or wait, and run `pgqueue db journal {mode}` again"
        )

    def audit(
        self,
        connection: Connection,
        *,
        after: UUID | None = None,
        limit: int | None = None,
        task_id: UUID | None = None,
    ) -> Audit:
        """Replay the full journal against the rows, and say which fields are not what their events lead to.

        after: go on behind this id (an audit's `next`). limit: look at so many tasks at the most (1 … 1,000,000). None:
        at all, until there are 10,000 findings. task_id: look at this one alone. Tasks go by in the order of their
        ids, 500 to a statement, each of which sees rows and events as of one moment: a busy queue is no drift.

        Raises JournalOff where the journal is not full.
        """
        if limit is not None:
            keys.check_int(limit, field="limit", low=1, high=1_000_000)
        for field, given in (("after", after), ("task_id", task_id)):
            if given is not None:
                keys.check_id(given, field=field)
        found: Audit | None = None
        while found is None or found.next is not None:
            left = None if limit is None else limit - (0 if found is None else found.tasks)
            if left == 0 or (found is not None and len(found.drifts) + len(found.gaps) >= _FINDINGS):
                break
            low = after if found is None else found.next
            chunk = self._chunk(connection, low, min(_CHUNK, left or _CHUNK), task_id)
            found = chunk if found is None else found + chunk
        assert found is not None  # noqa: S101 - the loop runs once at least
        return found

    def _chunk(self, connection: Connection, after: UUID | None, size: int, only: UUID | None) -> Audit:
        if only is not None:
            bounds = {"low": only, "high": only}
        else:
            bounds = {"low": _NONE if after is None else UUID(int=min(after.int + 1, _LAST.int)), "high": _LAST}
        rows = connection.execute(self.sql.audit, bounds | {"size": size}).mappings().all()
        if not rows:
            raise JournalOff(
                "there is nothing to audit: the journal holds failures alone; make it full with"
                f" `pgqueue db journal {FULL}`"
            )
        drifts: list[Drift] = []
        gaps: list[Gap] = []
        covered = dict.fromkeys(FIELDS, 0)
        tasks = events = 0
        for row in rows:
            if row["id"] is None:
                continue
            lines = [Line(*line) for line in json.loads(row["lines"] or "[]", parse_int=_number)]
            tasks, events = tasks + bool(row["present"]), events + len(lines)
            known = self._compare(row, lines, drifts, gaps)
            for field in known:
                covered[field] += 1
        last = rows[-1]["id"] if len(rows) == size and only is None else None
        return Audit(drifts, gaps, tasks, events, covered, rows[0]["full_since"], last)

    def _compare(self, row: Mapping[Any, Any], lines: list[Line], drifts: list[Drift], gaps: list[Gap]) -> list[str]:
        """Add what is wrong with one task; returns the fields whose value the journal knows."""
        task_id = row["id"]
        if not row["present"]:
            if lines:
                gaps.append(Gap(task_id, lines[-1].id, f"the task is not there; its last event is {lines[-1].event}"))
            return []
        expected = replay(lines, whole=row["whole"])
        gaps += [Gap(task_id, *gap) for gap in expected.gaps]
        drifts += drift(task_id, expected, row)
        if row["waiting_on"] != row["waiting"]:
            drifts.append(Drift(task_id, "waiting_on", row["waiting"], row["waiting_on"]))
        return expected.known
