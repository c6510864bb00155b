"""Make tasks, or adopt those that stand for the same thing."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast
from uuid import UUID

from sqlalchemy import Connection

from .. import keys, payload
from ..config import DEFAULTS, Limits
from ..errors import DatabaseError, InputError
from ..ids import new_id
from ..options import Enqueued, NewTask, Options, checked, parent_ids
from ..statements import text_array
from .base import lost_race, or_none
from .depend import Depending

_ADOPTIONS = 20


class Enqueueing(Depending):
    def enqueue_new(self, connection: Connection, task: NewTask, /) -> Enqueued:
        """Insert one task, or adopt the active task that holds its dedupe key (whose options then stay).

        The id decides "was it mine?" before the key does, so an enqueue repeated after a lost COMMIT returns its own
        first task.
        """
        return self._enqueue_row(connection, _row_of(task))

    def enqueue_child(self, connection: Connection, task: NewTask, /) -> Enqueued:
        """As `enqueue_new`, of a task that depends on others: several statements, so run it in a transaction."""
        return self.enqueue_chunk(connection, [task])[0]

    def _enqueue_row(self, connection: Connection, row: dict[str, Any]) -> Enqueued:
        with lost_race():
            for _ in range(_ADOPTIONS):
                if connection.execute(self.sql.enqueue, row).first() is not None:
                    return Enqueued(row["new_id"], created=True)
                adopted = self._existing(connection, row)
                if adopted is not None:
                    return Enqueued(adopted, created=False)
                # The holder ended in between: its key is free again.
        raise DatabaseError(
            f"dedupe key {row['new_dedupe_key']!r} changed hands {_ADOPTIONS} times while this enqueue tried:"
            " call it again"
        )

    def _existing(self, connection: Connection, row: dict[str, Any]) -> UUID | None:
        same_id = connection.execute(self.sql.get, {"id": row["new_id"]}).first()
        if same_id is not None:
            return UUID(str(same_id.id))
        if row["new_dedupe_key"] is None:
            return None
        agent = row["new_agent"]
        names = {"key": row["new_dedupe_key"]} | ({"agent": agent} if agent is not None else {})
        if row["new_dedupe_forever"]:
            user = connection.execute(self.sql.key_user(has_agent=agent is not None), names).first()
            if user is not None:
                return UUID(str(user.id))
        holder = connection.execute(self.sql.key_holder(has_agent=agent is not None), names).first()
        return None if holder is None else UUID(str(holder.id))

    def enqueue_chunk(self, connection: Connection, tasks: Sequence[NewTask]) -> list[Enqueued]:
        """Insert at most 1,000 tasks in one statement, and one by one those whose id or key is taken.

        Returns one `Enqueued` per task, in the order given. Inserts with keys go in the order of their keys, so that
        two such calls never wait for each other in a circle.
        """
        rows = [_row_of(task) for task in tasks]
        parents = _parents(rows, tasks)
        done: set[UUID] = set()
        if parents:
            self._refuse_circle(connection, parents)
            done = self._completed(connection, parents.values())
            for row in rows:
                if row["new_waiting_on"]:
                    row["new_waiting_on"] -= len(done.intersection(parents[row["new_id"]]))
        order: Sequence[int] = range(len(rows))
        if any(row["new_dedupe_key"] is not None for row in rows):
            order = sorted(order, key=lambda i: (rows[i]["new_agent"] or "", rows[i]["new_dedupe_key"] or ""))
        in_order = [rows[i] for i in order]
        arrays = {name: or_none([row[name] for row in in_order]) for name in rows[0]}
        with lost_race():
            inserted: Sequence[Any] = connection.execute(self.sql.enqueue_many, arrays).all()
        made: dict[UUID, str] = dict(inserted)
        if len(made) == len(rows):
            # All went in, and so no id came twice.
            results = [Enqueued(row["new_id"], created=True) for row in rows]
        else:
            results = self._enqueue_rest(connection, rows, order, set(made))
        if parents:
            mine = {found.id for found in results if found.created}
            self._link(connection, {child: above for child, above in parents.items() if child in mine}, done=done)
        if made:
            connection.execute(self.sql.hint, {"queues": sorted(set(made.values()))}).all()
        return results

    def _enqueue_rest(
        self, connection: Connection, rows: Sequence[dict[str, Any]], order: Sequence[int], made: set[UUID]
    ) -> list[Enqueued]:
        """One by one, in that order, what is not among `made`; returns all, as they were given."""
        results: dict[int, Enqueued] = {}
        for i in order:
            task_id = rows[i]["new_id"]
            if task_id in made:
                made.remove(task_id)
                results[i] = Enqueued(task_id, created=True)
            else:
                # Looked for before it is tried again: an insert would wait for whoever is inserting the key at this
                # moment, out of the order in which this batch has taken its own.
                with lost_race():
                    adopted = self._existing(connection, rows[i])
                if adopted is None:
                    results[i] = self._enqueue_row(connection, rows[i])
                else:
                    results[i] = Enqueued(adopted, created=False)
        return [results[i] for i in range(len(rows))]


_REPEATED = frozenset({"queue", "agent", "account", "priority", "max_attempts", "timeout"})
"""Options that come again and again with the same values."""

# typed: True is no priority, though it equals 1.
_checked_before = functools.lru_cache(maxsize=1024, typed=True)(lambda **options: checked(cast("Options", options)))


def _checked(options: Options) -> Options:
    """`checked`, looked up where the same options were checked before."""
    task_id = options.get("id")
    if type(task_id) is not UUID or not options.keys() - {"id"} <= _REPEATED:
        return checked(options)
    try:
        known: Options = _checked_before(**{name: value for name, value in options.items() if name != "id"})
    except TypeError:  # not hashable, and so not allowed either
        return checked(options)
    return {**known, "id": task_id}


def _row_of(task: NewTask) -> dict[str, Any]:
    """The bound values of one insert, each checked: nothing that the server would refuse gets that far."""
    o = _checked(task.options)
    keys.check_name(task.action, field="action")
    text: str | None
    if task.encoded:
        text = str(task.payload)
    elif task.payload is None:
        text = None
    else:
        text = payload.encode(task.payload, field="payload", limit=Limits.PAYLOAD_BYTES, action=task.action)
    return {
        "new_id": o.get("id") or new_id(),
        "new_queue": o.get("queue") or DEFAULTS.queue,
        "new_action": task.action,
        "new_agent": o.get("agent"),
        "new_account": o.get("account"),
        "new_priority": o.get("priority", 0),
        "new_payload": text,
        "new_max_attempts": o.get("max_attempts", DEFAULTS.max_attempts),
        "new_not_before": o.get("not_before"),
        "new_delay": o.get("delay"),
        "new_waiting_on": len(o["depends_on"]) if o.get("depends_on") else None,  # type: ignore[arg-type]
        "new_requires": text_array(o["requires"]) if o.get("requires") else None,
        "new_on_parent_failure": o.get("on_parent_failure"),
        "new_dedupe_key": o.get("dedupe_key") or None,
        "new_dedupe_forever": True if o.get("dedupe") == "forever" else None,
        "new_timeout": o.get("timeout"),
        "new_trigger": _json(o.get("trigger"), "trigger"),
        "new_metadata": _json(o.get("metadata"), "metadata"),
    }


def _parents(rows: Sequence[dict[str, Any]], tasks: Sequence[NewTask]) -> dict[UUID, tuple[UUID, ...]]:
    if not any(row["new_waiting_on"] for row in rows):
        return {}
    parents: dict[UUID, tuple[UUID, ...]] = {}
    for row, task in zip(rows, tasks, strict=True):
        above = parent_ids(task.options.get("depends_on") or ())
        # Which of the two is inserted, the server says; its edges would be the other's.
        if parents.setdefault(row["new_id"], above) != above:
            raise InputError(f"task {row['new_id']} comes twice, with different depends_on", field="depends_on")
    return {child: above for child, above in parents.items() if above}


def _json(value: Any, field: str) -> str | None:
    return None if value is None else payload.encode(value, field=field, limit=Limits.PAYLOAD_BYTES)
