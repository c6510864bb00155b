"""Claim what can start soon: demand is the free slots, no more."""

from __future__ import annotations

import collections
import dataclasses
import functools
import logging
import random
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

from sqlalchemy import Connection

from ..database import Database
from ..errors import PgqueueError
from ..store import AgentCursor, Store, claim_size
from ..task import Claimed
from .floors import Conditions, Floors

__all__ = ["Fetcher"]

log = logging.getLogger("pgqueue.worker")

_AGENTS_EVERY = 4
"""Where tasks of no agent fill every claim, agents come first each so many passes all the same.

As often, in another pass, tasks with and without a condition come in any order within their priority."""
_WALK = 500
"""Agents that one pass of the slow walk steps over."""
_ALL = 1_000_000
_LOOKS = 20
"""How often, at the most, one pass looks on for agents of one queue."""

_Look: TypeAlias = Callable[[int, bool], list[Claimed]]
"""(size, whole) to what was claimed."""


class Fetcher:
    """The claiming side of one worker. `run_once` is one pass; nothing here waits."""

    def __init__(
        self,
        database: Database,
        queues: Sequence[str],
        *,
        owner: str,
        lease: timedelta,
        batch: int,
        offers: Sequence[str] = (),
    ) -> None:
        self._database = database
        self._store = Store(database.schema)
        self._queues = collections.deque(queues)
        self._owner = owner
        self._lease = lease
        self._batch = batch
        self._offers = tuple(offers)
        self._floors = Floors()
        self._conditions = Conditions()
        self._cursors = {queue: AgentCursor() for queue in queues}
        # (queue, agent) that settled or reaped a moment ago; filled by other threads.
        self._freed: collections.deque[tuple[str, str]] = collections.deque(maxlen=10_000)
        # A rotation of its own: agents are not looked at in every pass.
        self._agent_queues = collections.deque(queues)
        self._passes = 0

    def run_once(self, room: int, *, whole: bool = False) -> list[Claimed]:
        """Claim at most `room` tasks, in the order in which to start them; each queue gets to be first in turn.

        whole: look at everything, without floors and cursors; finding nothing then means that nothing is due.
        Raises DatabaseError; what the server may have claimed without our hearing of it comes back when its lease ends.
        """
        self._queues.rotate(-1)
        self._passes += 1
        if whole:
            self._floors = Floors()
            self._conditions = Conditions()
            self._cursors = {queue: AgentCursor() for queue in self._queues}
        looks: list[_Look] = [self._due, *(functools.partial(self._of_agents, queue) for queue in self._agent_queues)]
        if self._passes % _AGENTS_EVERY == 0:
            self._agent_queues.rotate(-1)
            looks.append(looks.pop(0))
        tasks: list[Claimed] = []
        for look in looks:
            size = claim_size(min(room - len(tasks), self._batch))
            try:
                found = look(size, whole)
            except PgqueueError as error:
                if not tasks:
                    raise
                # What was claimed must be run.
                log.warning("could not claim all that there is room for: %s", error)
                break
            tasks += found
            if len(tasks) == room or (look == self._due and len(found) == size):
                break
        return tasks

    def next_due(self) -> float | None:
        """Seconds until something becomes due that is not due now; None when nothing is planned."""
        with self._database.autocommit() as connection:
            return self._store.next_due(connection, list(self._queues), met=self._conditions.met)

    def agent_free(self, queue: str, agent: str) -> None:
        """This agent has just settled: look at it first. Called from other threads."""
        self._freed.append((queue, agent))

    def came_back(self, queue: str) -> None:
        """Something came back to this queue with its old place in the line."""
        self._floors.look_whole(queue)
        self._conditions.look()

    def _due(self, size: int, whole: bool) -> list[Claimed]:
        queues = list(self._queues)
        with self._database.autocommit() as connection:
            if self._offers and self._conditions.stale(time.monotonic()):
                self._walk_conditions(connection, queues, whole=whole)
            met = self._conditions.met
            began = time.monotonic()
            bounds = {} if whole else self._floors.bounds(queues, began, met=met)
            if met:
                claims = self._store.claim_conditional(
                    connection,
                    queues,
                    met=met,
                    size=size,
                    owner=self._owner,
                    lease=self._lease,
                    floors=bounds,
                    shuffled=self._passes % _AGENTS_EVERY == 1,
                )
            else:
                claims = self._store.claim_due(
                    connection, queues, size=size, owner=self._owner, lease=self._lease, floors=bounds
                )
        now = time.monotonic()
        self._floors.learn(queues, claims, size=size, bounds=bounds, cost=now - began, now=now, met=met)
        if len(claims.tasks) < size:
            self._conditions.came_short()
        return claims.tasks

    def _walk_conditions(self, connection: Connection, queues: Sequence[str], *, whole: bool) -> None:
        began = time.monotonic()
        found = self._store.met_levels(connection, queues, offers=self._offers, after=self._conditions.after)
        while whole and found.rest:
            more = self._store.met_levels(connection, list(found.rest), offers=self._offers, after=found.rest)
            found = dataclasses.replace(more, levels={**found.levels, **more.levels})
        now = time.monotonic()
        self._conditions.learn(found, cost=now - began, now=now)
        self._floors.keep(self._conditions.met)

    def _of_agents(self, queue: str, size: int, whole: bool) -> list[Claimed]:
        """Those that this worker knows first; where they are not enough, it looks on until it has seen all that is due.

        Agents may be known in vain: somebody's open transaction has claimed them. And one agent's backlog may fill the
        pages of what is due, one after another.
        """
        tasks: list[Claimed] = []
        look = whole or len(self._with_freed(queue).known) < size
        for _ in range(_LOOKS):
            try:
                tasks += self._search(queue, claim_size(size - len(tasks)), whole=whole, look=look)
            except PgqueueError as error:
                if not tasks:
                    raise
                log.warning("could not claim all that there is room for: %s", error)
                break
            if len(tasks) == size or whole or (look and not self._cursors[queue].seen_agent):
                break
            look = True
        return tasks

    def _search(self, queue: str, size: int, *, whole: bool, look: bool) -> list[Claimed]:
        with self._database.begin() as connection:
            claims, self._cursors[queue] = self._store.claim_agents(
                connection,
                queue,
                size=size,
                owner=self._owner,
                lease=self._lease,
                cursor=self._cursors[queue],
                offers=self._offers,
                walk=_ALL if whole else _WALK,
                look=look,
            )
        return claims.tasks

    def _with_freed(self, queue: str) -> AgentCursor:
        cursor = self._cursors[queue]
        mine: dict[str, None] = {}
        for _ in range(len(self._freed)):
            freed = self._freed.popleft()
            if freed[0] == queue:
                mine[freed[1]] = None
            elif freed[0] in self._cursors:
                self._freed.append(freed)
        if mine:
            cursor = dataclasses.replace(cursor, known=tuple(dict.fromkeys((*cursor.known, *mine))))
            self._cursors[queue] = cursor
        return cursor


def jittered(seconds: float) -> float:
    """A poll's wait, spread so that a fleet does not ask in step."""
    return seconds * random.uniform(0.75, 1.25)
