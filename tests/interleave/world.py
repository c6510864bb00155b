"""What a pair of verbs finds, what is left of it, and what must hold whatever they did."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from psycopg import sql

from pgqueue.database import Database
from pgqueue.edges import circle
from pgqueue.lifecycle import TERMINAL, Status
from pgqueue.store import Store
from pgqueue.task import Lease
from tests.support import Sql

__all__ = ["STORE", "Row", "World", "lease_on", "task_id"]

STORE = Store("pgqueue")
_SOON = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
_PAST = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


def task_id(letter: str) -> UUID:
    """The id of the task that a case calls by that letter; ids sort as the letters do."""
    return UUID(int=(0x019C0000_0000_7000_8000 << 48) | ord(letter))


def _token(letter: str) -> UUID:
    return UUID(int=(0x019C0000_0000_4000_8000 << 48) | ord(letter))


@dataclasses.dataclass(frozen=True)
class Row:
    """A task that is there before the verbs begin; `expired`: its lease has run out."""

    status: Status
    agent: str | None = None
    key: str | None = None
    forever: bool = False
    attempts: int = 1
    max_attempts: int = 3
    cancel_requested: bool = False
    on_parent_failure: str = "cancel"
    expired: bool = False


def lease_on(letter: str) -> Lease:
    """The lease of a case's running task."""
    return Lease(task_id(letter), _token(letter), 1, None, "default", _SOON)


class World:
    """The rows of one case, on a database that nobody else uses meanwhile.

    rows: the tasks by their letters. edges: child and parent, lifted where the parent has completed; with "!" the sweep
    is to look at it.
    """

    def __init__(self, database: Database, sql: Sql, rows: Mapping[str, Row], edges: Sequence[str]) -> None:
        self._database = database
        self._sql = sql
        # One script, sent whole: it runs hundreds of times.
        self._script = "; ".join([*_CLEAR, *_task_inserts(rows, edges), *_edge_inserts(rows, edges)])

    def begin(self) -> None:
        """As if nothing had happened yet."""
        self._sql(self._script)

    def vacuum(self) -> None:
        """Away with what earlier orders left behind, so that the last is as quick as the first."""
        self._sql("vacuum pgqueue.tasks, pgqueue.task_dependencies, pgqueue.task_events")

    def settle(self) -> None:
        """Sweep until nothing is left to look at, then once more as if the orphan grace had passed."""
        self._sweep()
        if self._sql(
            "update pgqueue.task_dependencies set look_at = %s where look_at is not null returning child_id", _PAST
        ):
            self._sweep()

    def _sweep(self) -> None:
        for _ in range(20):
            with self._database.begin() as connection:
                if not STORE.sweep(connection):
                    return
        raise AssertionError("the sweep finds something to do for ever")

    def told(self, letters: Sequence[str]) -> str:
        """How those tasks stand, in words: "P completed, C pending/0" (its attempts; !: it was asked to stop)."""
        rows = {
            row[0]: row[1:]
            for row in self._sql("select id, status, attempts, waiting_on, cancel_requested from pgqueue.tasks")
        }
        return ", ".join(f"{letter} {self._one(rows.get(task_id(letter)))}" for letter in letters)

    def _one(self, row: Any) -> str:
        if row is None:
            return "gone"
        status, attempts, waiting_on, cancel_requested = row
        active = status in ("pending", "running")
        return (
            ("waiting" if status == "pending" and waiting_on else status)
            + (f"/{attempts}" if active else "")
            + ("!" if cancel_requested and active else "")
        )

    def broken(self) -> list[str]:
        """The invariants that do not hold; they do after every commit, swept or not."""
        graph: dict[UUID, list[UUID]] = {}
        for child, parent in self._sql(_UNWATCHED):
            graph.setdefault(child, []).append(parent)
        circles = ["a circle, and nobody is to look"] if any(circle(child, graph) for child in graph) else []
        return [what for (what,) in self._sql(_BROKEN)] + circles

    def stranded(self) -> list[str]:
        """What nobody would ever look at again, once the sweep has nothing left to do."""
        return [what for (what,) in self._sql(_STRANDED)]


def _task_inserts(rows: Mapping[str, Row], edges: Sequence[str]) -> list[str]:
    scripts = []
    for letter, row in rows.items():
        pending, running = row.status is Status.PENDING, row.status is Status.RUNNING
        holds = [rows[edge[1]].status is not Status.COMPLETED for edge in edges if edge[0] == letter]
        values: dict[str, object] = {
            "id": task_id(letter),
            "queue": "default",
            "action": "act",
            "agent": row.agent,
            "status": row.status.value,
            "attempts": 0 if pending else row.attempts,
            "fence": 0 if pending else row.attempts,
            "max_attempts": row.max_attempts,
            "not_before": _PAST,
            "dedupe_key": row.key,
            "dedupe_forever": row.forever,
            "waiting_on": sum(holds),
            "on_parent_failure": row.on_parent_failure,
            "cancel_requested": row.cancel_requested,
            "lease_token": None if pending else _token(letter),
            "lease_owner": "holder" if running else None,
            "lease_expires_at": (_PAST if row.expired else _SOON) if running else None,
            "finished_at": _PAST if row.status in TERMINAL else None,
        }
        scripts.append(_insert("tasks", values))
    return scripts


def _edge_inserts(rows: Mapping[str, Row], edges: Sequence[str]) -> list[str]:
    return [
        _insert(
            "task_dependencies",
            {
                "child_id": task_id(edge[0]),
                "parent_id": task_id(edge[1]),
                "look_at": _PAST if edge.endswith("!") else None,
                "lifted_at": _PAST if rows[edge[1]].status is Status.COMPLETED else None,
            },
        )
        for edge in edges
    ]


def _insert(table: str, values: Mapping[str, object]) -> str:
    given = ", ".join(sql.Literal(value).as_string() for value in values.values())
    return f"insert into pgqueue.{table} ({', '.join(values)}) values ({given})"


def _any_of(questions: Mapping[str, str]) -> str:
    """One query for all of them: the names of those that find something."""
    return " union all ".join(f"select '{what}' where exists ({query})" for what, query in questions.items())


_CLEAR = [f"delete from pgqueue.{table}" for table in ("tasks", "task_dependencies", "task_events")]

_BROKEN = _any_of(
    {
        "waiting_on is not the number of edges": """
        select from pgqueue.tasks t where waiting_on <> (
          select count(*) from pgqueue.task_dependencies d where d.child_id = t.id and d.lifted_at is null)""",
        "an agent runs two tasks": """
        select from pgqueue.tasks where status = 'running' and agent is not null group by agent having count(*) > 1""",
        "a key is active twice": """
        select from pgqueue.tasks where active and dedupe_key is not null
        group by agent, dedupe_key having count(*) > 1""",
        "a forever key is used twice": """
        select from pgqueue.tasks where dedupe_forever and dedupe_key is not null
        group by agent, dedupe_key having count(*) > 1""",
        "events of a task that is gone": """
        select from pgqueue.task_events e where not exists (select from pgqueue.tasks t where t.id = e.task_id)""",
        "more attempts than allowed": "select from pgqueue.tasks where attempts > max_attempts",
        "edges of a child that is gone, and nobody is to look": """
        select from pgqueue.task_dependencies d where look_at is null and not exists (
          select from pgqueue.tasks t where t.id = d.child_id)""",
        "a child waits for what has ended, and nobody is to look": """
        select from pgqueue.task_dependencies d join pgqueue.tasks c on c.id = d.child_id
        left join pgqueue.tasks p on p.id = d.parent_id
        where d.lifted_at is null and d.look_at is null and c.status = 'pending' and p.active is not true""",
    }
)
_STRANDED = _any_of(
    {
        "an edge is still to be looked at": "select from pgqueue.task_dependencies where look_at is not null",
        "edges of a child that is gone": """
        select from pgqueue.task_dependencies d where not exists (
          select from pgqueue.tasks t where t.id = d.child_id)""",
        "a child waits for nobody who is active": """
        select from pgqueue.tasks c where c.status = 'pending' and c.blocked and not exists (
          select from pgqueue.task_dependencies d join pgqueue.tasks p on p.id = d.parent_id
          where d.child_id = c.id and d.lifted_at is null and p.active)""",
    }
)
_UNWATCHED = "select child_id, parent_id from pgqueue.task_dependencies where lifted_at is null and look_at is null"
