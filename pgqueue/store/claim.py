"""Take due tasks, with a lease."""

from __future__ import annotations

import dataclasses
import itertools
import os
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from .. import keys
from ..config import DEFAULTS, Limits
from ..errors import InputError
from ..options import Duration
from ..statements import LEVELS
from ..task import Claimed, Lease
from .base import Base, lease_length
from .values import LONG_AGO, SLACK, AgentCursor, Claims, Level, Met, MetLevel, claim_size

_WALK = 500
"""Agents that one step of the slow walk goes over; ten times as many where it must go on."""
_ROUNDS = 1000
"""How often, at the most, `claim_batch` looks for agents of one queue."""
_STEPS = 500
"""Probes of one walk over a queue's conditions: about 20 ms, where so many are met; a few are enough where none is."""
_START = ("{}", -(2**15))
"""Before every condition and priority."""


class Claiming(Base):
    def claim_due(
        self,
        connection: Connection,
        queues: Sequence[str],
        *,
        size: int,
        owner: str,
        lease: timedelta,
        floors: Mapping[Level, datetime] | None = None,
        token: UUID | None = None,
    ) -> Claims:
        """Claim at most `size` (one of CLAIM_SIZES) due tasks of no agent; earlier queues first, then priorities.

        `floors` bounds the look at a (queue, priority) from below; what is missing is looked at whole.
        """
        levels = list(itertools.product(queues, LEVELS))
        known = floors or {}
        token = token or uuid4()
        rows = connection.execute(
            self.sql.claim_due(size),
            {
                "queues": [queue for queue, _ in levels],
                "priorities": [priority for _, priority in levels],
                "floors": [known.get(level, LONG_AGO) for level in levels],
                "token": token,
                "owner": owner,
                "lease": lease,
            },
        ).all()
        return _claims(rows, queues, token)

    def met_levels(
        self,
        connection: Connection,
        queues: Sequence[str],
        *,
        offers: Sequence[str],
        after: Mapping[str, tuple[str, int]] | None = None,
        steps: int = _STEPS,
    ) -> Met:
        """Which conditions pending tasks of no agent have that `offers` covers, by queue and priority.

        At most `steps` probes of the index a queue, beginning after that queue's place in `after`; `Met.rest` says
        where to go on.
        """
        begin = [(after or {}).get(queue, _START) for queue in queues]
        rows = connection.execute(
            self.sql.met_levels,
            {
                "queues": list(queues),
                "conditions": [condition for condition, _ in begin],
                "priorities": [priority for _, priority in begin],
                "offers": sorted(offers),
                "steps": steps,
            },
        ).all()
        return Met(
            {(row.queue, row.priority, row.requires): row.not_before for row in rows if row.met},
            {row.queue: (row.requires, row.priority) for row in rows if row.cut},
            rows[0].server_now if rows else LONG_AGO,
        )

    def claim_conditional(
        self,
        connection: Connection,
        queues: Sequence[str],
        *,
        met: Sequence[MetLevel],
        size: int,
        owner: str,
        lease: timedelta,
        floors: Mapping[Level, datetime] | None = None,
        shuffled: bool = False,
        token: UUID | None = None,
    ) -> Claims:
        """As `claim_due`, with tasks whose condition is met among the others: those of the levels `met`.

        Within one queue and priority the level goes first whose first task has been due the longest, and fills the
        claim as far as it goes. `shuffled`: any goes first; now and then, so that a first task which somebody has
        locked does not put its level in front of the others for ever.
        """
        place = {queue: number for number, queue in enumerate(queues)}
        levels: list[Level] = [*itertools.product(queues, LEVELS), *met]
        known = floors or {}
        token = token or uuid4()
        rows = connection.execute(
            self.sql.claim_conditional(size),
            {
                "turns": [place[level[0]] * len(LEVELS) + LEVELS.index(level[1]) for level in levels],
                "queues": [level[0] for level in levels],
                "priorities": [level[1] for level in levels],
                "conditions": [None if len(level) == 2 else level[2] for level in levels],
                "floors": [known.get(level, LONG_AGO) for level in levels],
                "shuffled": shuffled,
                "token": token,
                "owner": owner,
                "lease": lease,
            },
        ).all()
        claims = _claims([row[:-1] for row in rows], queues, token)
        conditions = {row.id: row.requires for row in rows}
        return dataclasses.replace(claims, levels=[_level_of(task, conditions[task.id]) for task in claims.tasks])

    def claim_agents(
        self,
        connection: Connection,
        queue: str,
        *,
        size: int,
        owner: str,
        lease: timedelta,
        cursor: AgentCursor,
        offers: Sequence[str] = (),
        walk: int = _WALK,
        look: bool = True,
        token: UUID | None = None,
    ) -> tuple[Claims, AgentCursor]:
        """Claim the head task of at most `size` free agents of a queue. Two statements: run it in one transaction.

        `look`: search for agents besides those the cursor knows. Returns the claims and the cursor for the next call.
        """
        found = connection.execute(
            self.sql.free_agents(size),
            {
                "line": queue,
                "seen_at": cursor.seen_at,
                "seen_agent": cursor.seen_agent,
                "walked_to": cursor.walked_to,
                "page": int(look),
                "walk": walk if look else 0,
                "known": list(cursor.known[: 2 * size]),
                "offers": sorted(offers),
            },
        ).one()
        agents = found.agents or []
        claims = Claims([], found.server_now)
        if agents:
            claims = self._claim_heads(connection, queue, agents, owner=owner, lease=lease, offers=offers, token=token)
        return claims, _moved_on(cursor, found, size=size, look=look, walk=walk)

    def _claim_heads(
        self,
        connection: Connection,
        queue: str,
        agents: Sequence[str],
        *,
        owner: str,
        lease: timedelta,
        offers: Sequence[str],
        token: UUID | None = None,
    ) -> Claims:
        """The unique index stays the judge: where it objects, the batch is redone agent by agent."""

        def claim(some: Sequence[str]) -> Claims:
            mine = token or uuid4()
            with connection.begin_nested():
                rows = connection.execute(
                    self.sql.claim_agents,
                    {
                        "line": queue,
                        "agents": list(some),
                        "offers": sorted(offers),
                        "token": mine,
                        "owner": owner,
                        "lease": lease,
                    },
                ).all()
                return _claims(rows, (queue,), mine)

        try:
            return claim(agents)
        except IntegrityError as error:
            if "uniq_running_per_agent" not in str(error.orig):
                raise
            if len(agents) == 1:
                return Claims([], LONG_AGO)
        each = [self._claim_heads(connection, queue, [a], owner=owner, lease=lease, offers=offers) for a in agents]
        return Claims([task for claims in each for task in claims.tasks], each[-1].now)

    def claim(
        self,
        connection: Connection,
        agent: str,
        /,
        *,
        queue: str | Sequence[str] = DEFAULTS.queue,
        owner: str | None = None,
        lease: Duration = DEFAULTS.lease,
        offers: Sequence[str] = (),
    ) -> Claimed | None:
        """Claim the agent's next due task, or None: nothing is due, or the agent is busy.

        queue: one or several, tried in that order. offers: the conditions that hold; a task that requires another is
        passed over. Order: priority, then since when due, then id.
        """
        keys.check_name(agent, field="agent")
        connection.execute(self.sql.agent_lock, {"agent": agent}).all()
        for name in _queues(queue):
            claims = self._claim_heads(
                connection,
                name,
                [agent],
                owner=_owner(owner),
                lease=lease_length(lease),
                offers=_names(offers, field="offers"),
            )
            if claims.tasks:
                return claims.tasks[0]
        return None

    def claim_batch(
        self,
        connection: Connection,
        queues: str | Sequence[str] = DEFAULTS.queue,
        /,
        *,
        limit: int = 1,
        owner: str | None = None,
        lease: Duration = DEFAULTS.lease,
        offers: Sequence[str] = (),
    ) -> list[Claimed]:
        """Claim at most `limit` (1 … 1,000) due tasks of the queues: those of no agent first, then free agents'.

        offers: the conditions that hold; what requires another is left alone, what they cover stands in the line with
        the rest. May return fewer than are due: `limit` is rounded down to one of 1, 2, 5, 10, 20, … 1,000 a statement.
        """
        keys.check_int(limit, field="limit", low=1, high=Limits.BATCH)
        names, holder, length = _queues(queues), _owner(owner), lease_length(lease)
        conditions = _names(offers, field="offers")
        tasks = self._claim_of_nobody(connection, names, limit=limit, owner=holder, lease=length, offers=conditions)
        for queue in names:
            cursor, walk = AgentCursor(), _WALK
            for _ in range(_ROUNDS):
                if len(tasks) >= limit:
                    break
                known = set(cursor.known)
                claims, cursor = self.claim_agents(
                    connection,
                    queue,
                    size=claim_size(limit - len(tasks)),
                    owner=holder,
                    lease=length,
                    cursor=cursor,
                    offers=conditions,
                    walk=walk,
                )
                tasks += claims.tasks
                # Whatever stands in front hides nobody: busy agents with deep backlogs, heads that somebody has locked.
                all_seen = not cursor.seen_agent or not cursor.walked_to
                if all_seen and known.issuperset(cursor.known):
                    break
                walk = 10 * _WALK
        return tasks

    def _claim_of_nobody(
        self,
        connection: Connection,
        queues: Sequence[str],
        *,
        limit: int,
        owner: str,
        lease: timedelta,
        offers: Sequence[str],
    ) -> list[Claimed]:
        """Where the walk over the conditions is cut, what it has found is claimed, and then it goes on."""
        size = claim_size(limit)
        if not offers:
            return self.claim_due(connection, queues, size=size, owner=owner, lease=lease).tasks
        found = self.met_levels(connection, queues, offers=offers)
        if found.due:
            tasks = self.claim_conditional(connection, queues, met=found.due, size=size, owner=owner, lease=lease).tasks
        else:
            tasks = self.claim_due(connection, queues, size=size, owner=owner, lease=lease).tasks
        while found.rest and len(tasks) < limit:
            found = self.met_levels(connection, list(found.rest), offers=offers, after=found.rest)
            if found.due:
                size = claim_size(limit - len(tasks))
                tasks += self.claim_conditional(
                    connection, queues, met=found.due, size=size, owner=owner, lease=lease
                ).tasks
        return tasks

    def next_due(self, connection: Connection, queues: Sequence[str], *, met: Sequence[MetLevel] = ()) -> float | None:
        """Seconds until something of these queues becomes due that is not due now; None when nothing is planned.

        met: the levels with a condition that count too.
        """
        levels = list(itertools.product(queues, LEVELS))
        wait = connection.execute(
            self.sql.next_due,
            {
                "queues": [q for q, _ in levels],
                "priorities": [p for _, p in levels],
                "met_queues": [queue for queue, _, _ in met],
                "met_priorities": [priority for _, priority, _ in met],
                "met_conditions": [condition for _, _, condition in met],
            },
        ).scalar()
        return None if wait is None else max(0.0, float(wait))


def _queues(queues: str | Sequence[str]) -> tuple[str, ...]:
    names = (queues,) if isinstance(queues, str) else tuple(queues)
    if not names:
        raise InputError("no queue was named; give at least one", field="queues")
    return tuple(keys.check_name(name, field="queue") for name in names)


def _names(names: Sequence[str], *, field: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise keys.refuse(field, f"must be a sequence of names, not {keys.shown(names)}", "write [name]")
    return tuple(sorted({keys.check_name(name, field=field) for name in names}))


def _level_of(task: Claimed, requires: str) -> Level:
    level = (task.lease.queue, task.priority)
    return level if requires == "{}" else (*level, requires)


def default_owner() -> str:
    """What leases show as their holder where nobody was named: host:pid."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _owner(owner: str | None) -> str:
    return default_owner() if owner is None else keys.check_name(owner, field="owner")


def _claims(rows: Sequence[Any], queues: Sequence[str], token: UUID) -> Claims:
    tasks: list[Claimed] = []
    now = LONG_AGO
    for row in rows:
        (
            now,
            task_id,
            fence,
            queue,
            action,
            agent,
            account,
            priority,
            attempts,
            max_attempts,
            not_before,
            expires_at,
            timeout,
            created_at,
            text,
            metadata,
        ) = row
        if task_id is None:
            continue
        tasks.append(
            Claimed(
                Lease(task_id, token, fence, agent, queue, expires_at),
                action,
                account,
                priority,
                attempts,
                max_attempts,
                not_before,
                timeout,
                created_at,
                text,
                metadata,
            )
        )
    if len(tasks) > 1:
        # RETURNING has no order: put back the one in which they were chosen.
        place = {queue: i for i, queue in enumerate(queues)}
        tasks.sort(key=lambda c: (place[c.lease.queue], -c.priority, c.not_before, c.lease.task_id))
    return Claims(tasks, now)


def _moved_on(cursor: AgentCursor, found: Any, *, size: int, look: bool, walk: int) -> AgentCursor:
    """The cursor after a search: who was chosen or has nothing to claim is forgotten, the others are kept.

    Where fewer than `size` were chosen, those others are locked by somebody, for who knows how long: the rest of the
    known come first.
    """
    rest, unasked = found.rest or (), cursor.known[2 * size :]
    kept = dict.fromkeys((*rest, *unasked) if len(found.agents or ()) >= size else (*unasked, *rest))
    known = tuple(itertools.islice(kept, 5_000))
    if not look:
        return dataclasses.replace(cursor, known=known)
    if found.newly >= 1000:
        seen = (found.seen_at, found.seen_agent)
    else:
        # All that is due was seen; whoever commits late with an earlier time is within the slack, or the walk's.
        seen = (max(cursor.seen_at, found.server_now - SLACK), "")
    walked_to = found.walked_to if found.walked >= walk else ""
    return AgentCursor(seen[0], seen[1], walked_to or "", known)
