"""Find a task by what it is for, and give one that waits another payload."""

from __future__ import annotations

from uuid import UUID

from sqlalchemy import Connection

from .. import keys, payload
from ..config import Limits
from ..errors import RetryTransaction
from ..journal import Entry
from ..payload import JSON
from ..task import Task
from .base import lost_race
from .inspect import Inspecting

_CLAIMED_AWAY = 20


class LookingUp(Inspecting):
    def find_by_dedupe_key(self, connection: Connection, key: str, /, *, agent: str | None = None) -> Task | None:
        """The newest task of the agent (None: those of no agent) with that dedupe key, whatever its status; else None.

        Only as deep as retention goes: finished tasks are pruned, but for those of `dedupe="forever"`. "Newest" is by
        id. An empty key is nobody's: None, without a query.
        """
        if key == "":
            return None
        names = {"key": keys.check_key(key, field="key")}
        if agent is not None:
            names["agent"] = keys.check_name(agent, field="agent")
        query = self.sql.find_by_dedupe_key(has_agent=agent is not None)
        row = connection.execute(query, names).mappings().first()
        return None if row is None else Task.of(row)

    def find_pending(self, connection: Connection, action: str, /, *, agent: str) -> Task | None:
        """Of the agent's pending tasks of that action, the first in the line; None where none is pending.

        First by priority, then by when it becomes due, then by id. What cannot run yet counts too: tasks that are not
        due, that wait for parents, or whose conditions nobody offers. By the time it is looked at it may be running.
        """
        row = connection.execute(self.sql.find_pending, _lane(action, agent)).mappings().first()
        return None if row is None else Task.of(row)

    def has_active(self, connection: Connection, action: str, /, *, agent: str) -> bool:
        """Whether any task of that agent and action is pending or running. Reads what is active, never the past."""
        return bool(connection.execute(self.sql.has_active, _lane(action, agent)).scalar_one())

    def replace_pending_payload(
        self, connection: Connection, action: str, payload: JSON, /, *, agent: str, by: str | None = None
    ) -> UUID | None:
        """Give the task that `find_pending` finds another payload; its id, or None where none is pending.

        Never writes to a task that runs: one that is being claimed at this moment is waited for, and if the claim
        stands, the next pending one is looked for. payload: as for `enqueue`, with the same limits (PayloadError). The
        journal says that it was replaced, and by whom, never the payload. RetryTransaction in a caller's transaction
        above READ COMMITTED that cannot see who claimed the task.
        """
        names = _lane(action, agent)
        text = _encoded(payload, action)
        with lost_race():
            for _ in range(_CLAIMED_AWAY):
                task_id = connection.execute(self.sql.next_pending, names).scalar_one()
                if task_id is None:
                    return None
                # Pending or not is decided under the row's lock, by the row as it is then.
                done = connection.execute(self.sql.replace_payload, {"task_id": task_id, "payload_text": text}).first()
                if done is not None:
                    self._note(connection, Entry.REPLACE, [(done.id, done.status, done.attempts, done.fence, by, None)])
                    return UUID(str(done.id))
        raise RetryTransaction(
            f"{_CLAIMED_AWAY} tasks of agent {agent!r} were claimed while each was to get a new payload: call it again"
        )


def _lane(action: str, agent: str) -> dict[str, str]:
    return {"action": keys.check_name(action, field="action"), "agent": keys.check_name(agent, field="agent")}


def _encoded(value: JSON, action: str) -> str | None:
    if value is None:
        return None
    return payload.encode(value, field="payload", limit=Limits.PAYLOAD_BYTES, action=action)
