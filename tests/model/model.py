"""The lifecycle in plain Python: what pgqueue must do, said once more and in another way. Imports nothing of it.

Time. An instant that the server writes by itself is known here only as a `Span`: it lies between the clock read before
the step and the one read after it. The machine compares the row with the span and then puts the row's own instant in
its place, so that everything that depends on it afterwards is exact. Nothing waits: the tests shift the rows' instants
and count the shift into every instant that they read.

Where spans overlap so that the answer depends on which was first, `Unclear` is raised, and the sequence is given up.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID

PENDING, RUNNING, COMPLETED, DEAD, CANCELLED = "pending", "running", "completed", "dead", "cancelled"
STATUSES = (PENDING, RUNNING, COMPLETED, DEAD, CANCELLED)
ACTIVE = frozenset({PENDING, RUNNING})
FINAL = frozenset({COMPLETED, CANCELLED})

MOVES: Mapping[str, tuple[str, str | None, str | None, str | None]] = {
    # event: (from, to if a cancel was requested, else to if the attempts are used up, else to)
    "claim": (PENDING, None, None, RUNNING),
    "complete": (RUNNING, None, None, COMPLETED),
    "fail": (RUNNING, CANCELLED, DEAD, PENDING),
    "bury": (RUNNING, CANCELLED, None, DEAD),
    "release": (RUNNING, CANCELLED, None, PENDING),
    "snooze": (RUNNING, CANCELLED, None, PENDING),
    "evict": (RUNNING, CANCELLED, None, PENDING),
    "expire": (RUNNING, CANCELLED, DEAD, PENDING),
    "cancel": (PENDING, None, None, CANCELLED),
    "request_cancel": (RUNNING, RUNNING, None, RUNNING),
    "acknowledge": (RUNNING, CANCELLED, None, None),
    "cascade": (PENDING, None, None, CANCELLED),
    "revive": (DEAD, None, None, PENDING),
    "dismiss": (DEAD, None, None, CANCELLED),
}
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
GRACE = timedelta(minutes=5)
LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


class Unclear(Exception):
    """Which of two instants came first cannot be told."""


class No(Exception):
    """The verb refuses: `name` is the class of the error that it raises, `facts` what the error must say."""

    def __init__(self, name: str, *facts: object) -> None:
        super().__init__(name, *facts)
        self.name, self.facts = name, facts


class Span(NamedTuple):
    first: datetime
    last: datetime

    def after(self, delay: timedelta) -> Span:
        return Span(self.first + delay, self.last + delay)

    def or_later(self, other: Span) -> Span:
        return Span(max(self.first, other.first), max(self.last, other.last))

    def holds(self, instant: datetime) -> bool:
        return self.first <= instant <= self.last


def at(instant: datetime) -> Span:
    return Span(instant, instant)


@dataclasses.dataclass(frozen=True)
class New:
    """What is asked for at an enqueue."""

    id: UUID
    action: str = "act"
    queue: str = "q"
    agent: str | None = None
    priority: int = 0
    payload: object = None
    max_attempts: int = 3
    delay: timedelta | None = None
    not_before: datetime | None = None
    key: str | None = None
    forever: bool = False
    parents: frozenset[UUID] = frozenset()
    runs_anyway: bool = False
    requires: frozenset[str] = frozenset()


@dataclasses.dataclass
class Edge:
    lifted: bool
    look: Span | None = None


@dataclasses.dataclass
class Task:
    id: UUID
    action: str
    queue: str
    agent: str | None
    priority: int
    payload: object
    max_attempts: int
    key: str | None
    forever: bool
    requires: frozenset[str]
    runs_anyway: bool
    not_before: Span
    status: str = PENDING
    attempts: int = 0
    fence: int = 0
    token: object = None
    owner: str | None = None
    expires: Span | None = None
    cancel_requested: bool = False
    progress: int = 0
    message: str | None = None
    error: str | None = None
    result: object = None
    finished: Span | None = None
    parents: dict[UUID, Edge] = dataclasses.field(default_factory=dict)
    journal: list[tuple[str, str, int, int]] = dataclasses.field(default_factory=list)

    @property
    def waiting_on(self) -> int:
        return sum(not edge.lifted for edge in self.parents.values())


class Fresh:
    """A token that the step has made: the machine puts the row's in its place."""


def backoff(n: int) -> timedelta:
    return min(timedelta(seconds=5 * 2 ** (n - 1)), timedelta(minutes=5))


def rounded(limit: int) -> int:
    return max(size for size in SIZES if size <= limit)


class Model:
    """The queue. A verb returns what the caller is told, or raises `No`; `now` is set before each."""

    def __init__(self, *, full: bool = False) -> None:
        self.tasks: dict[UUID, Task] = {}
        self.full = full
        self.now = Span(LONG_AGO, LONG_AGO)

    def past(self, instant: Span) -> bool:
        if instant is self.now or instant.last <= self.now.first:
            return True
        if instant.first > self.now.last:
            return False
        raise Unclear

    # Enqueue.

    def enqueue_many(self, news: Sequence[New]) -> list[tuple[UUID, bool]]:
        """(id, created) of each; and what the client does afterwards: it looks at the edges that the commit had to
        leave.
        """
        for new in news:
            if new.id in new.parents or any(new.id == other.id and new.parents != other.parents for other in news):
                raise No("InputError")
        unknown = {new.id: new.parents for new in news if new.id not in self.tasks}
        for child in unknown:
            if self._circle(child, unknown):
                raise No("CircularDependency")
        places = list(range(len(news)))
        if any(new.key is not None for new in news):
            places.sort(key=lambda i: (news[i].agent or "", news[i].key or ""))
        found: dict[int, tuple[UUID, bool]] = {}
        made: list[New] = []
        for i in places:
            adopted = self._adopted(news[i])
            if adopted is None:
                self._insert(news[i])
                made.append(news[i])
            found[i] = (news[i].id, True) if adopted is None else (adopted, False)
        for new in made:
            self._link(self.tasks[new.id], new.parents, gate=False)
        self._look([new.id for new in made if new.parents])
        return [found[i] for i in range(len(news))]

    def _adopted(self, new: New) -> UUID | None:
        if new.id in self.tasks:
            return new.id
        if new.key is None:
            return None
        of_key = [task for task in self.tasks.values() if (task.agent, task.key) == (new.agent, new.key)]
        users = [task.id for task in of_key if task.forever]
        holders = [task.id for task in of_key if task.status in ACTIVE]
        found = [*(users if new.forever else ()), *holders]
        return found[0] if found else None

    def _insert(self, new: New) -> None:
        asked = self.now.after(new.delay) if new.delay is not None else self.now
        if new.not_before is not None:
            asked = at(new.not_before)
        task = Task(
            new.id,
            new.action,
            new.queue,
            new.agent,
            new.priority,
            new.payload,
            new.max_attempts,
            new.key,
            new.forever,
            new.requires,
            new.runs_anyway,
            asked.or_later(self.now),
        )
        self.tasks[new.id] = task
        if self.full:
            self._write(task, "enqueue")

    # Parents.

    def _link(self, child: Task, parents: Iterable[UUID], *, gate: bool) -> None:
        waited_for = any(
            not edge.lifted for task in self.tasks.values() for p, edge in task.parents.items() if p == child.id
        )
        for parent_id in parents:
            parent = self.tasks.get(parent_id)
            if parent is None:
                child.parents[parent_id] = Edge(False, self.now.after(GRACE))
            elif parent.status == COMPLETED:
                child.parents[parent_id] = Edge(True)
            else:
                ended = parent.status not in ACTIVE
                child.parents[parent_id] = Edge(False, self.now if ended or gate or waited_for else None)

    def _circle(self, start: UUID, new: Mapping[UUID, Iterable[UUID]]) -> bool:
        """Whether `start` would wait for itself, with those new edges."""
        ways, seen = [start], set[UUID]()
        while ways:
            for parent in self._waits_for(ways.pop(), new):
                if parent == start:
                    return True
                if parent not in seen:
                    seen.add(parent)
                    ways.append(parent)
        return False

    def _waits_for(self, child: UUID, new: Mapping[UUID, Iterable[UUID]]) -> list[UUID]:
        if child in new:
            return sorted(new[child])
        task = self.tasks.get(child)
        # A cancelled task keeps its edges, and waits for nobody.
        if task is None or task.status != PENDING:
            return []
        return sorted(p for p, edge in task.parents.items() if not edge.lifted)

    def _ended(self, ended: Iterable[UUID]) -> None:
        """What the end of tasks does to those that wait for them, to those that wait for these, and so on."""
        level = set(ended)
        while level:
            lifted: dict[UUID, list[UUID]] = {}
            for child in self.tasks.values():
                for parent, edge in child.parents.items():
                    if parent in level and not edge.lifted and not (edge.look is not None and self.past(edge.look)):
                        lifted.setdefault(child.id, []).append(parent)
            failed = {parent for parent in level if self.tasks[parent].status != COMPLETED}
            level = self._lift({child: (parents, failed.intersection(parents)) for child, parents in lifted.items()})

    def _lift(self, lifted: Mapping[UUID, tuple[Sequence[UUID], Iterable[UUID]]]) -> set[UUID]:
        """Lift edges: of each child to which parents, and which of those failed. Returns who is cancelled by it."""
        cancelled = set()
        for child_id, (parents, failed) in lifted.items():
            child = self.tasks[child_id]
            for parent in parents:
                child.parents[parent] = Edge(True)
            if child.status != PENDING:
                continue
            why = min(failed, default=None)
            if why is not None and not child.runs_anyway:
                self._move(child, "cascade")
                child.error = f"cancelled: its parent {why}"
                cancelled.add(child_id)
            elif child.waiting_on == 0:
                child.not_before = child.not_before.or_later(self.now)
        return cancelled

    def sweep(self) -> list[tuple[UUID, UUID, str]]:
        """(child, parent, fate) of each edge that was looked at."""
        due = [task.id for task in self.tasks.values() if self._due_edges(task)]
        return self._look(due)

    def _due_edges(self, child: Task) -> list[UUID]:
        return sorted(p for p, e in child.parents.items() if not e.lifted and e.look is not None and self.past(e.look))

    def _look(self, children: Iterable[UUID]) -> list[tuple[UUID, UUID, str]]:
        fates: dict[tuple[UUID, UUID], str] = {}
        for child in sorted(children):
            for parent in self._due_edges(self.tasks[child]):
                fates[child, parent] = self._fate(parent)
        broken = self._break_circles(sorted({child for (child, _), fate in fates.items() if fate == "wait"}))
        lifted: dict[UUID, tuple[list[UUID], list[UUID]]] = {}
        for (child, parent), fate in fates.items():
            if fate == "wait":
                self.tasks[child].parents[parent].look = None
                continue
            parents, failed = lifted.setdefault(child, ([], []))
            parents.append(parent)
            if fate == "fail":
                failed.append(parent)
            if fate == "let_go" and self.tasks[child].status == PENDING:
                self._write(self.tasks[child], "let_go")
        self._ended(broken | self._lift(lifted))
        return [(child, parent, fate) for (child, parent), fate in sorted(fates.items())]

    def _fate(self, parent_id: UUID) -> str:
        parent = self.tasks.get(parent_id)
        if parent is None:
            return "let_go"
        if parent.status in ACTIVE:
            return "wait"
        return "lift" if parent.status == COMPLETED else "fail"

    def _break_circles(self, children: Sequence[UUID]) -> set[UUID]:
        broken: set[UUID] = set()
        for child in children:
            circles = list(self._circles([child]))
            if not circles:
                continue
            if len(circles) > 1 and len({max(circle) for circle in circles}) > 1:
                raise Unclear
            if broken.isdisjoint(circles[0]):
                youngest = self.tasks[max(circles[0])]
                if youngest.status != PENDING:
                    continue
                self._move(youngest, "cascade")
                youngest.error = "cancelled: it waits for itself"
                broken.add(youngest.id)
        return broken

    def _circles(self, path: list[UUID]) -> Iterable[list[UUID]]:
        for parent in self._waits_for(path[-1], {}):
            if parent == path[0]:
                yield path
            elif parent not in path:
                yield from self._circles([*path, parent])

    def set_gate(
        self, task_id: UUID, parents: frozenset[UUID], requires: frozenset[str], *, runs_anyway: bool
    ) -> str | None:
        """What the task is; and what the client does afterwards: it looks at the edges."""
        if task_id in parents:
            raise No("InputError")
        task = self.tasks.get(task_id)
        if task is None or task.status != PENDING:
            return None if task is None else task.status
        if self._circle(task_id, {task_id: parents}):
            raise No("CircularDependency")
        self.gate(task_id, parents, requires, runs_anyway=runs_anyway)
        self._look([task_id])
        return PENDING

    def gate(self, task_id: UUID, parents: frozenset[UUID], requires: frozenset[str], *, runs_anyway: bool) -> None:
        """Set the gates of a pending task, and leave its edges to the sweep."""
        task = self.tasks[task_id]
        task.parents.clear()
        task.requires, task.runs_anyway = requires, runs_anyway
        task.not_before = task.not_before.or_later(self.now)
        self._link(task, parents, gate=True)
        self._write(task, "gate")

    def reaches(self, child: UUID, parent: UUID) -> bool:
        """Whether `child` waits for `parent`, be it through others."""
        return self._circle(child, {parent: [child]})

    def parents(self, task_id: UUID) -> list[tuple[UUID, str | None]]:
        task = self.tasks.get(task_id)
        edges = {} if task is None else task.parents
        return [(p, self.tasks[p].status if p in self.tasks else None) for p in sorted(edges)]

    # Moves.

    def _write(self, task: Task, event: str, *, attempt: int | None = None) -> None:
        task.journal.append((event, task.status, task.attempts if attempt is None else attempt, task.fence))

    def _target(self, task: Task, event: str) -> str | None:
        source, requested, exhausted, otherwise = MOVES[event]
        assert task.status == source, (task, event)
        if task.cancel_requested and requested is not None:
            return requested
        if task.attempts >= task.max_attempts and exhausted is not None:
            return exhausted
        return otherwise

    def _move(self, task: Task, event: str) -> None:
        target = self._target(task, event)
        assert target is not None
        attempt = task.attempts
        if task.status == RUNNING and event != "request_cancel":
            task.owner = task.expires = None
        task.status = target
        task.finished = None if target in ACTIVE else self.now
        if event in ("release", "snooze", "evict"):
            task.attempts -= 1
        if event in ("evict", "expire"):
            task.token = None
        told = event not in ("claim", "complete", "snooze") or (event == "snooze" and target != PENDING)
        if told or self.full:
            self._write(task, event, attempt=attempt + 1 if event == "claim" else attempt)

    # Claims.

    def line(self, queues: Sequence[str], limit: int, offers: frozenset[str]) -> list[Task]:
        """What a claim of that size would take now, in the order in which it says so."""
        taken = self._of_nobody(queues, rounded(limit), offers)
        busy = {task.agent for task in self.tasks.values() if task.status == RUNNING}
        for queue in queues:
            while len(taken) < limit:
                free = [agent for agent in self._agents(queue) if agent not in busy]
                heads = [head for agent in free if (head := self._head(agent, queue, offers)) is not None]
                chosen = heads[: rounded(limit - len(taken))]
                if not chosen:
                    break
                busy.update(task.agent for task in chosen)
                taken += sorted(chosen, key=lambda t: (-t.priority, t.not_before, t.id))
        return taken

    def _claimable(self, queue: str) -> list[Task]:
        waiting = [t for t in self.tasks.values() if t.status == PENDING and t.queue == queue and t.waiting_on == 0]
        return sorted([t for t in waiting if self.past(t.not_before)], key=lambda t: (t.not_before, t.id))

    def _of_nobody(self, queues: Sequence[str], size: int, offers: frozenset[str]) -> list[Task]:
        """Within a queue and priority the condition goes first whose first task has been due the longest."""
        levels: dict[tuple[int, int, frozenset[str]], list[Task]] = {}
        for place, queue in enumerate(queues):
            for task in self._claimable(queue):
                if task.agent is None and task.requires <= offers:
                    levels.setdefault((place, -task.priority, task.requires), []).append(task)
        heads = Counter((place, priority, tasks[0].not_before) for (place, priority, _), tasks in levels.items())
        if max(heads.values(), default=0) > 1:
            raise Unclear
        order = sorted(levels, key=lambda level: (level[0], level[1], levels[level][0].not_before))
        chosen = [task for level in order for task in levels[level]][:size]
        return sorted(chosen, key=lambda t: (queues.index(t.queue), -t.priority, t.not_before, t.id))

    def _agents(self, queue: str) -> list[str]:
        """Who has something due there that waits for nobody: the longest due first."""
        with_agent = [(t.not_before, t.agent) for t in self._claimable(queue) if t.agent is not None]
        return list(dict.fromkeys(agent for _, agent in sorted(with_agent)))

    def _head(self, agent: str, queue: str, offers: frozenset[str]) -> Task | None:
        met = [t for t in self._claimable(queue) if t.agent == agent and t.requires <= offers]
        return min(met, key=lambda t: (-t.priority, t.not_before, t.id), default=None)

    def claim_batch(
        self, queues: Sequence[str], limit: int, offers: frozenset[str], *, lease: timedelta, owner: str
    ) -> list[UUID]:
        return [self._take(task, lease, owner) for task in self.line(queues, limit, offers)]

    def claim(
        self, agent: str, queues: Sequence[str], offers: frozenset[str], *, lease: timedelta, owner: str
    ) -> UUID | None:
        if any(task.status == RUNNING and task.agent == agent for task in self.tasks.values()):
            return None
        for queue in queues:
            head = self._head(agent, queue, offers)
            if head is not None:
                return self._take(head, lease, owner)
        return None

    def _take(self, task: Task, lease: timedelta, owner: str) -> UUID:
        task.fence += 1
        self._move(task, "claim")
        task.attempts += 1
        task.token, task.owner, task.expires = Fresh(), owner, self.now.after(lease)
        task.progress, task.message = 0, None
        return task.id

    # Holders.

    def _held(self, task_id: UUID, token: object) -> Task:
        task = self.tasks.get(task_id)
        if task is None:
            raise No("LeaseNotHeld", None, None)
        if task.status != RUNNING or task.token != token:
            raise No("LeaseNotHeld", task.status, task.owner)
        return task

    def settle(
        self,
        event: str,
        task_id: UUID,
        token: object,
        *,
        result: object = None,
        error: str | None = None,
        delay: timedelta | None = None,
    ) -> tuple[str, int]:
        """(status, attempts) after it."""
        task = self.tasks.get(task_id)
        again = task is not None and task.token == token and task.status != RUNNING
        if task is not None and again and task.status in MOVES[event][1:]:
            # It may have been sent before, and its answer lost.
            return task.status, task.attempts
        task = self._held(task_id, token)
        if self._target(task, event) is None:
            raise No("TransitionRefused", RUNNING)
        self._move(task, event)
        if event == "complete":
            task.progress, task.message, task.error, task.result = 100, None, None, result
        if event in ("fail", "bury"):
            task.error = error
        if task.status == PENDING and event in ("fail", "snooze"):
            task.not_before = self.now.after(backoff(task.attempts) if delay is None else delay)
        if task.status not in ACTIVE:
            self._ended([task_id])
        return task.status, task.attempts

    def renew(self, task_id: UUID, token: object, lease: timedelta) -> bool:
        """Whether a cancel was requested."""
        task = self._held(task_id, token)
        task.expires = self.now.after(lease)
        return task.cancel_requested

    def report_progress(self, task_id: UUID, token: object, percent: int, message: str | None) -> None:
        task = self._held(task_id, token)
        task.progress, task.message = percent, task.message if message is None else message

    # People.

    def get(self, task_id: UUID) -> Task:
        if task_id not in self.tasks:
            raise No("TaskNotFound")
        return self.tasks[task_id]

    def _in(self, task_id: UUID, status: str) -> Task:
        task = self.get(task_id)
        if task.status != status:
            raise No("TransitionRefused", task.status)
        return task

    def cancel(self, task_id: UUID) -> str:
        task = self.get(task_id)
        if task.status == RUNNING:
            self._move(task, "request_cancel")
            task.cancel_requested = True
            return RUNNING
        self._move(self._in(task_id, PENDING), "cancel")
        self._ended([task_id])
        return CANCELLED

    def retry(self, task_id: UUID) -> str:
        task = self._in(task_id, DEAD)
        for other in self.tasks.values():
            same = task.key is not None and (other.agent, other.key) == (task.agent, task.key)
            if same and other.status in ACTIVE:
                raise No("KeyHeld", other.id)
        self._move(task, "revive")
        task.attempts, task.not_before, task.cancel_requested = 0, self.now, False
        task.progress, task.message, task.error = 0, None, None
        return PENDING

    def dismiss(self, task_id: UUID) -> None:
        self._move(self._in(task_id, DEAD), "dismiss")
        self._ended([task_id])

    def evict(self, task_id: UUID) -> str:
        task = self._in(task_id, RUNNING)
        self._move(task, "evict")
        if task.status not in ACTIVE:
            self._ended([task_id])
        return task.status

    def reschedule(
        self, task_id: UUID, *, not_before: datetime | None, delay: timedelta | None, priority: int | None
    ) -> int:
        """The priority afterwards."""
        task = self._in(task_id, PENDING)
        moved = delay is not None or not_before is not None
        if moved or priority not in (None, task.priority):
            task.priority = task.priority if priority is None else priority
            if moved:
                asked = self.now.after(delay) if delay is not None else at(not_before or LONG_AGO)
                task.not_before = asked.or_later(self.now)
            self._write(task, "reschedule")
        return task.priority

    def replace_pending_payload(self, action: str, agent: str, payload: object) -> UUID | None:
        found = self.find_pending(action, agent)
        if found is not None:
            self.tasks[found].payload = payload
            self._write(self.tasks[found], "replace")
        return found

    # Time.

    def reap(self) -> list[tuple[UUID, str]]:
        """(id, what it became) of each lease that has run out, the longest first."""
        running = [t for t in self.tasks.values() if t.expires is not None]
        expired = sorted([t for t in running if self.past(t.expires or self.now)], key=lambda t: t.expires or self.now)
        for task in expired:
            owner = task.owner
            self._move(task, "expire")
            task.error = f"lease expired: {owner} stopped renewing (attempt {task.attempts} of {task.max_attempts})"
            if task.status == PENDING and task.attempts > 1:
                task.not_before = self.now.after(backoff(task.attempts - 1))
        self._ended([t.id for t in expired if t.status not in ACTIVE])
        return sorted((t.id, t.status) for t in expired)

    def prunable(self, retention: timedelta, dead: timedelta | None, *, forever: bool) -> list[UUID]:
        """What one batch would delete, in the order in which it is looked for."""
        kinds: list[list[Task]] = [self._old(FINAL, retention, lambda t: not t.forever)]
        if forever:
            kinds.append(self._old(FINAL, retention, lambda t: t.forever))
        if dead is not None:
            kinds.append(self._old({DEAD}, dead, lambda t: forever or not t.forever))
        held = {p for t in self.tasks.values() for p, edge in t.parents.items() if not edge.lifted}
        return [task.id for kind in kinds for task in kind if task.id not in held]

    def _old(self, statuses: Iterable[str], age: timedelta, which: Callable[[Task], bool]) -> list[Task]:
        ended = [t for t in self.tasks.values() if t.status in statuses and which(t)]
        return sorted(
            [t for t in ended if t.finished is not None and self.past(t.finished.after(age))],
            key=lambda t: (t.finished, t.id) if t.status in FINAL else (t.id.int,),
        )

    def prune(self, ids: Sequence[UUID]) -> tuple[int, int, int, bool]:
        """Delete them: (tasks, events, edges, whether an edge of theirs held a parent)."""
        gone = [self.tasks.pop(task_id) for task_id in ids]
        edges = [edge for task in gone for edge in task.parents.values()]
        return len(gone), sum(len(t.journal) for t in gone), len(edges), any(not edge.lifted for edge in edges)

    # Look-ups.

    def find_by_dedupe_key(self, key: str, agent: str | None) -> UUID | None:
        return max((t.id for t in self.tasks.values() if (t.agent, t.key) == (agent, key)), default=None)

    def find_pending(self, action: str, agent: str) -> UUID | None:
        found = [t for t in self.tasks.values() if (t.action, t.agent, t.status) == (action, agent, PENDING)]
        return min(found, key=lambda t: (-t.priority, t.not_before, t.id)).id if found else None

    def has_active(self, action: str, agent: str) -> bool:
        return any((t.action, t.agent) == (action, agent) and t.status in ACTIVE for t in self.tasks.values())

    def stats(self) -> dict[str, int]:
        found = Counter(task.status for task in self.tasks.values())
        return {status: found[status] for status in STATUSES} | {"total": len(self.tasks)}
