"""Every verb, on the real server and in the model, in any order; after each step both are the same.

A failure prints the calls of its sequence and a `@reproduce_failure(…)`: put that on `Lifecycle` to repeat it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pgqueue.errors import CircularDependency, KeyHeld, LeaseNotHeld, PgqueueError, TransitionRefused
from pgqueue.ids import new_id
from pgqueue.options import NewTask, Options
from pgqueue.task import Claimed, Settled

from .model import ACTIVE, DEAD, PENDING, RUNNING, Fresh, Model, New, No, Span, Task, Unclear, at
from .server import Row, Server

T = TypeVar("T")

QUEUES, AGENTS, KEYS, ACTIONS, CONDITIONS = ("q", "q2"), ("a", "b"), ("k", "l"), ("act", "act2"), ("c", "d")
OWNERS = ("w1", "w2")
LATE = tuple(UUID(int=n) for n in range(1, 5))
"""Ids that are named before there is such a task: parents that come later, or never, or again once they were pruned."""


def seconds(n: float) -> timedelta:
    return timedelta(seconds=n)


def _some(values: Sequence[T]) -> st.SearchStrategy[frozenset[T]]:
    return st.frozensets(st.sampled_from(values), max_size=len(values))


# A delay differs from a backoff, a lease and the orphan grace, and all of them from what passes at once, by far more
# than a step takes.
PASSES = st.sampled_from([seconds(n) for n in (7, 33, 75, 333)] + [timedelta(days=2), timedelta(days=9)])
DELAYS = st.sampled_from([seconds(n) for n in (0, 20, 50, 200)])
LEASES = st.sampled_from([seconds(30), seconds(60)])
LATER = st.sampled_from([seconds(n) for n in (-100, 40, 150)])
AGES = st.sampled_from([seconds(0), timedelta(days=1), timedelta(days=7), timedelta(days=365)])
TASKS = st.one_of(st.integers(0, 2), st.integers(0, 6))
"""Which task: 0 is the newest."""
ANY_TASK = st.one_of(TASKS, st.sampled_from(LATE))
PARENTS = st.frozensets(st.one_of(TASKS, ANY_TASK), max_size=3)
HELD = st.integers(0, 3)
"""Which of the leases, the newest first."""
STALE = st.sampled_from([False, False, True])
OFFERS = st.sampled_from([frozenset(CONDITIONS), frozenset("c"), frozenset()])
ENDINGS = st.sampled_from(["complete", "bury", "fail", "release", "snooze", "acknowledge", "bury", "fail"])
WAITS = st.one_of(st.none(), st.none(), DELAYS.map(lambda d: ("delay", d)), LATER.map(lambda d: ("not_before", d)))
QUEUE_LISTS = st.sampled_from([("q", "q2"), ("q2", "q"), ("q",)])
PRIORITIES = st.sampled_from([0, 9, -1])

NEWS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.sampled_from(LATE),
        "action": st.sampled_from(ACTIONS),
        "queue": st.sampled_from(QUEUES),
        "agent": st.sampled_from(AGENTS),
        "priority": PRIORITIES,
        "payload": st.integers(0, 9),
        "max_attempts": st.sampled_from([1, 2]),
        "wait": WAITS,
        "key": st.tuples(st.sampled_from(KEYS), st.booleans()),
        "parents": st.frozensets(st.one_of(TASKS, ANY_TASK), min_size=1, max_size=3),
        "runs_anyway": st.booleans(),
        "requires": _some(CONDITIONS),
    },
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One step: a method of the machine and its arguments. Printed as it would be called."""

    name: str
    arguments: Mapping[str, Any]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


_CALLS: dict[str, tuple[int, Callable[[Lifecycle], bool], st.SearchStrategy[Call]]] = {}


def call(
    weight: int = 2, *, when: Callable[[Lifecycle], bool] = lambda machine: True, **arguments: st.SearchStrategy[Any]
) -> Callable[[T], T]:
    """The method is one of those that a step is drawn from. when: what it needs is there.

    Not a rule of its own: in each sequence hypothesis leaves out about half of the rules, and then of three sequences
    two do not both claim and complete (22 of 1,500 steps were completions).
    """

    def register(method: T) -> T:
        name: str = method.__name__  # type: ignore[attr-defined]
        drawn = st.builds(Call, st.just(name), st.fixed_dictionaries(arguments))
        _CALLS[name] = (weight, when, drawn)
        return method

    return register


@functools.cache
def _one_of(names: tuple[str, ...]) -> st.SearchStrategy[Call]:
    weighted = [name for name in names for _ in range(_CALLS[name][0])]
    return st.sampled_from(weighted).flatmap(lambda name: _CALLS[name][2])


def _has_leases(machine: Lifecycle) -> bool:
    return bool(machine.leases)


def _has(*statuses: str) -> Callable[[Lifecycle], bool]:
    return lambda machine: any(task.status in statuses for task in machine.model.tasks.values())


class Lifecycle(RuleBasedStateMachine):
    """Tasks and leases are drawn by their place, so that any draw means something.

    server: a subclass has it. only: the steps to draw from, where they are not all.
    """

    server: ClassVar[Server]
    only: ClassVar[frozenset[str]] = frozenset()

    def __init__(self) -> None:
        super().__init__()
        self.server.clear()
        self.model = Model()
        self.leases: list[Claimed] = []
        self.rows: dict[UUID, Row] = {}
        self.clock, self.rows = self.server.look()
        self.start = self.clock
        self.tokens: set[UUID] = set()
        self.steps = 0
        self.last_line: object = None

    # How a step goes.

    def step(
        self, verb: str, real: Callable[[], T], model: Callable[[], object], seen: Callable[[T], object]
    ) -> T | None:
        """Do it on the server; read the rows; do it in the model; compare what is told, and every row."""
        before, says = self.clock, ""
        got: T | None = None
        told: object
        try:
            got = real()
        except PgqueueError as error:
            told, says = _told(error), f" ({error})"
        else:
            told = seen(got)
        self.clock, self.rows = self.server.look()
        self.model.now = Span(before, self.clock)
        expected: object
        try:
            expected = model()
        except No as no:
            expected = (no.name, *no.facts)
            self.server.seen[f"{verb}: {' '.join(str(fact) for fact in expected if not isinstance(fact, UUID))}"] += 1
        except Unclear:
            reject()
        else:
            self.server.seen[verb] += 1
        assert told == expected, f"{verb}: the server says {told}{says}, the model {expected}"
        self._compare(verb)
        return got

    def _compare(self, verb: str) -> None:
        missing, extra = self.model.tasks.keys() - self.rows.keys(), self.rows.keys() - self.model.tasks.keys()
        assert not missing, f"{verb}: gone: {missing}"
        assert not extra, f"{verb}: there, though they should not be: {extra}"
        wrong = []
        for task in self.model.tasks.values():
            wrong += [f"{task.id} {text}" for text in _differences(task, self.rows[task.id])]
        assert not wrong, f"{verb}:\n  " + "\n  ".join(wrong)
        for task in self.model.tasks.values():
            self._settle_instants(task, self.rows[task.id])

    def _settle_instants(self, task: Task, row: Row) -> None:
        """What the step left open is as the row says from now on."""
        if isinstance(task.token, Fresh):
            assert row.token not in self.tokens, "a token was used twice"
            task.token = row.token
        for name, instant in row.instants.items():
            setattr(task, name, None if instant is None else at(instant))
        for parent, (_, look) in row.parents.items():
            task.parents[parent].look = None if look is None else at(look)

    def named(self, task: int | UUID) -> UUID:
        """A task by its place, the newest first; where there are not so many, one that is not there."""
        if isinstance(task, UUID):
            return task
        ids = list(self.model.tasks)
        return ids[-1 - task] if task < len(ids) else LATE[task % len(LATE)]

    def held(self, which: int, *, stale: bool) -> Claimed:
        """A lease that is held, or one that is not any more; where there is none such, any."""
        live = {task.token for task in self.model.tasks.values() if task.status == RUNNING}
        wanted = [one for one in self.leases if (one.lease.token in live) is not stale]
        chosen = wanted or self.leases
        return chosen[-1 - which % len(chosen)]

    def new(self, given: dict[str, Any]) -> tuple[New, NewTask]:
        """What is asked for, as the model takes it and as the server does."""
        given = dict(given)
        given.setdefault("id", new_id())
        kind, wait = given.pop("wait", None) or ("", None)
        if wait is not None:
            given[kind] = wait if kind == "delay" else self.start + wait
        given["key"], given["forever"] = given.pop("key", (None, False))
        given["parents"] = frozenset(self.named(parent) for parent in given.get("parents", ()))
        asked = New(**given)
        options: Options = {"id": asked.id, "queue": asked.queue, "priority": asked.priority}
        options |= {"agent": asked.agent, "max_attempts": asked.max_attempts, "dedupe_key": asked.key}
        if asked.delay is not None:
            options["delay"] = asked.delay
        if asked.not_before is not None:
            options["not_before"] = self.server.real(asked.not_before)
        if asked.forever:
            options["dedupe"] = "forever"
        if asked.parents:
            options["depends_on"] = asked.parents
        if asked.runs_anyway:
            options["on_parent_failure"] = "run"
        if asked.requires:
            options["requires"] = asked.requires
        return asked, NewTask(asked.action, asked.payload, options)  # type: ignore[arg-type]

    @rule(call=st.runner().flatmap(lambda machine: machine.applicable()))
    def do(self, call: Call) -> None:
        self.server.seen[f"call {call.name}"] += 1
        getattr(self, call.name)(**call.arguments)

    def applicable(self) -> st.SearchStrategy[Call]:
        wanted = self.only or _CALLS.keys()
        return _one_of(tuple(name for name, (_, when, _) in _CALLS.items() if name in wanted and when(self)))

    # Enqueue.

    @initialize(full=st.booleans(), news=st.lists(NEWS, min_size=1, max_size=4))
    def begin(self, full: bool, news: list[dict[str, Any]]) -> None:
        if full:
            self.server.client.set_journal("full")
        self.model.full = full
        for given in news:
            self.enqueue(given)

    @call(4, given=NEWS)
    def enqueue(self, given: dict[str, Any]) -> None:
        asked, task = self.new(given)
        self.step(
            "enqueue",
            lambda: self.server.client.enqueue_new(task),
            lambda: self.model.enqueue_many([asked])[0],
            lambda made: (made.id, made.created),
        )

    @call(news=st.lists(NEWS, max_size=4))
    def enqueue_many(self, news: list[dict[str, Any]]) -> None:
        asked = [self.new(given) for given in news]
        self.step(
            "enqueue_many",
            lambda: self.server.client.enqueue_many([task for _, task in asked]),
            lambda: self.model.enqueue_many([new for new, _ in asked]),
            lambda made: [(one.id, one.created) for one in made],
        )

    @call(when=_has("completed", DEAD, "cancelled"), which=HELD, forever=st.booleans())
    def enqueue_again(self, which: int, forever: bool) -> None:
        """With the key of one that has ended, where there is one: chance alone rarely meets agent and key."""
        used = [t for t in self.model.tasks.values() if t.finished and t.key is not None]
        used = [t for t in used if t.status == DEAD] or used
        if used:
            twin = used[-1 - which % len(used)]
            lane = {} if twin.agent is None else {"agent": twin.agent}
            self.enqueue({"key": (twin.key, forever), **lane})

    @call(3, task=ANY_TASK, parents=PARENTS, requires=_some(CONDITIONS), runs_anyway=st.booleans())
    def set_gate(
        self, task: int | UUID, parents: frozenset[int | UUID], requires: frozenset[str], runs_anyway: bool
    ) -> None:
        task_id, above = self.named(task), frozenset(map(self.named, parents))
        self.step(
            "set_gate",
            lambda: self.server.client.set_gate(
                task_id, depends_on=above, requires=requires, on_parent_failure="run" if runs_anyway else "cancel"
            ),
            lambda: self.model.set_gate(task_id, above, requires, runs_anyway=runs_anyway),
            lambda gated: gated.status,
        )

    @call(one=TASKS, two=TASKS, runs_anyway=st.booleans())
    def two_gates_at_once(self, one: int, two: int, runs_anyway: bool) -> None:
        """Each waits for the other, and neither saw the other's edge: the circle is the sweep's to break."""
        a, b = self.named(one), self.named(two)
        free = {t.id for t in self.model.tasks.values() if t.status == PENDING}
        on_failure: Any = "run" if runs_anyway else "cancel"
        self.model.now = Span(self.clock, self.clock)
        if a == b or not {a, b} <= free or self.model.reaches(a, b) or self.model.reaches(b, a):
            return

        def real() -> None:
            with self.server.database.begin() as first, self.server.database.begin() as second:
                for connection, child, parent in ((first, a, b), (second, b, a)):
                    self.server.client.on(connection).set_gate(child, depends_on=[parent], on_parent_failure=on_failure)

        def model() -> None:
            for child, parent in ((a, b), (b, a)):
                self.model.gate(child, frozenset([parent]), frozenset(), runs_anyway=runs_anyway)

        self.step("two_gates_at_once", real, model, lambda _: None)

    # Claims.

    @call(
        4,
        queues=QUEUE_LISTS,
        limit=st.sampled_from([5, 3, 2, 1]),
        offers=OFFERS,
        lease=LEASES,
        owner=st.sampled_from(OWNERS),
    )
    def claim_batch(
        self, queues: tuple[str, ...], limit: int, offers: frozenset[str], lease: timedelta, owner: str
    ) -> None:
        claimed = self.step(
            "claim_batch",
            lambda: self.server.client.claim_batch(queues, limit=limit, offers=tuple(offers), lease=lease, owner=owner),
            lambda: self.model.claim_batch(queues, limit, offers, lease=lease, owner=owner),
            lambda tasks: [task.id for task in tasks],
        )
        self._took(claimed or [])

    @call(
        3, agent=st.sampled_from(AGENTS), queues=QUEUE_LISTS, offers=OFFERS, lease=LEASES, owner=st.sampled_from(OWNERS)
    )
    def claim(self, agent: str, queues: tuple[str, ...], offers: frozenset[str], lease: timedelta, owner: str) -> None:
        claimed = self.step(
            "claim",
            lambda: self.server.client.claim(agent, queue=queues, offers=tuple(offers), lease=lease, owner=owner),
            lambda: self.model.claim(agent, queues, offers, lease=lease, owner=owner),
            lambda task: task and task.id,
        )
        self._took([claimed] if claimed else [])

    def _took(self, claimed: list[Claimed]) -> None:
        """What a claim hands over is what the row says."""
        for one in claimed:
            task, row = self.model.tasks[one.id], self.rows[one.id]
            given = (one.lease.token, one.fence, one.attempt, one.max_attempts, one.queue, one.agent, one.action)
            assert given == (
                row.token, task.fence, task.attempts, task.max_attempts, task.queue, task.agent, task.action
            )  # fmt: skip
            assert (one.priority, one.payload) == (task.priority, task.payload)
        self.tokens |= {one.lease.token for one in claimed}
        self.leases += claimed

    # Holders. One draw in three is of a lease that is lost.

    @call(8, when=_has_leases, how=ENDINGS, which=HELD, stale=STALE, delay=st.one_of(st.none(), DELAYS))
    def settle(self, how: str, which: int, stale: bool, delay: timedelta | None) -> None:
        asked = {t.token for t in self.model.tasks.values() if t.status == RUNNING and t.cancel_requested}
        if how == "acknowledge" and asked and not stale:
            # Or chance would rarely find the one that there is something to acknowledge of.
            self._settle(how, next(one for one in self.leases if one.lease.token in asked), delay)
        else:
            self._settle(how, self.held(which, stale=stale), delay)

    @call(4, how=ENDINGS, queues=QUEUE_LISTS, limit=st.sampled_from([1, 2]), delay=st.one_of(st.none(), DELAYS))
    def run(self, how: str, queues: tuple[str, ...], limit: int, delay: timedelta | None) -> None:
        """As a worker does."""
        first = len(self.leases)
        self.claim_batch(queues, limit, frozenset(CONDITIONS), seconds(60), OWNERS[0])
        for one in self.leases[first:]:
            self._settle(how, one, delay)

    def _settle(self, how: str, lease: Claimed, delay: timedelta | None) -> None:
        client, what, length = self.server.client, dict[str, Any](), delay or seconds(0)
        real: Callable[[], Settled]
        match how:
            case "complete":
                real, what = functools.partial(client.complete, lease, 1), {"result": 1}
            case "fail":
                real, what = functools.partial(client.fail, lease, "no", delay=delay), {"error": "no", "delay": delay}
            case "bury":
                real, what = functools.partial(client.bury, lease, "never"), {"error": "never"}
            case "release":
                real = functools.partial(client.release, lease)
            case "snooze":
                real, what = functools.partial(client.snooze, lease, length), {"delay": length}
            case _:
                real = functools.partial(client.acknowledge_cancel, lease)
        self.step(
            how,
            real,
            lambda: self.model.settle(how, lease.id, lease.lease.token, **what),
            lambda settled: (settled.status.value, settled.attempts),
        )

    @call(when=_has_leases, which=HELD, stale=STALE, length=LEASES)
    def renew(self, which: int, stale: bool, length: timedelta) -> None:
        lease = self.held(which, stale=stale)
        self.step(
            "renew",
            lambda: self.server.client.renew(lease, lease=length),
            lambda: self.model.renew(lease.id, lease.lease.token, length),
            lambda renewed: renewed.cancel_requested,
        )

    @call(
        when=_has_leases,
        which=HELD,
        stale=STALE,
        percent=st.sampled_from([0, 50, 100]),
        message=st.sampled_from([None, "half"]),
    )
    def report_progress(self, which: int, stale: bool, percent: int, message: str | None) -> None:
        lease = self.held(which, stale=stale)
        self.step(
            "report_progress",
            lambda: self.server.client.report_progress(lease, percent, message),
            lambda: self.model.report_progress(lease.id, lease.lease.token, percent, message),
            lambda _: None,
        )

    # People. None: one that the verb can act on, where there is one.

    @call(3, which=HELD, task=st.one_of(st.none(), ANY_TASK))
    def cancel(self, which: int, task: int | UUID | None) -> None:
        task_id = self._fit(RUNNING, which, task)
        self.step("cancel", lambda: self.server.client.cancel(task_id), lambda: self.model.cancel(task_id), _value)

    @call(
        5,
        when=_has_leases,
        verb=st.sampled_from(["retry", "dismiss", "evict", "retry"]),
        which=HELD,
        task=st.one_of(st.none(), st.none(), ANY_TASK),
    )
    def mend(self, verb: str, which: int, task: int | UUID | None) -> None:
        client = self.server.client
        task_id = self._fit(RUNNING if verb == "evict" else DEAD, which, task)
        match verb:
            case "retry":
                self.step(
                    verb, lambda: client.retry(task_id), lambda: self.model.retry(task_id), lambda it: it.status.value
                )
            case "dismiss":
                self.step(verb, lambda: client.dismiss(task_id), lambda: self.model.dismiss(task_id), lambda _: None)
            case _:
                self.step(verb, lambda: client.evict(task_id), lambda: self.model.evict(task_id), _value)

    def _fit(self, status: str, which: int, task: int | UUID | None) -> UUID:
        fit = [t.id for t in self.model.tasks.values() if t.status == status]
        return fit[-1 - which % len(fit)] if fit and task is None else self.named(0 if task is None else task)

    @call(task=ANY_TASK, wait=WAITS, priority=st.one_of(st.none(), PRIORITIES))
    def reschedule(self, task: int | UUID, wait: tuple[str, timedelta] | None, priority: int | None) -> None:
        if wait is None and priority is None:
            return
        task_id = self.named(task)
        kind, length = wait or (None, None)
        delay = length if kind == "delay" else None
        due = self.start + length if kind == "not_before" and length is not None else None
        self.step(
            "reschedule",
            lambda: self.server.client.reschedule(
                task_id, not_before=None if due is None else self.server.real(due), delay=delay, priority=priority
            ),
            lambda: self.model.reschedule(task_id, not_before=due, delay=delay, priority=priority),
            lambda found: found.priority,
        )

    @call(action=st.sampled_from(ACTIONS), agent=st.sampled_from(AGENTS), payload=st.integers(10, 19))
    def replace_pending_payload(self, action: str, agent: str, payload: int) -> None:
        self.step(
            "replace_pending_payload",
            lambda: self.server.client.replace_pending_payload(action, payload, agent=agent),
            lambda: self.model.replace_pending_payload(action, agent, payload),
            lambda found: found,
        )

    # Time.

    @call(3, duration=PASSES, maintained=st.booleans())
    def time_passes(self, duration: timedelta, maintained: bool) -> None:
        self.server.let_pass(duration)
        self.clock, self.rows = self.server.look()
        self.model.now = at(self.clock)
        self._compare("time_passes")
        if maintained:
            self.reap()
            self.sweep()

    @call(when=_has(RUNNING))
    def reap(self) -> None:
        self.step(
            "reap",
            self.server.client.reap,
            self.model.reap,
            lambda reaped: sorted((one.id, one.status.value) for one in reaped),
        )

    @call(
        when=lambda machine: any(edge.look for task in machine.model.tasks.values() for edge in task.parents.values())
    )
    def sweep(self) -> None:
        self.step(
            "sweep",
            self.server.client.sweep,
            self.model.sweep,
            lambda swept: sorted((one.child, one.parent, one.fate.value) for one in swept),
        )

    @call(
        when=_has("completed", DEAD, "cancelled"),
        retention=AGES,
        dead=st.one_of(st.none(), AGES),
        forever=st.booleans(),
        limit=st.sampled_from([1000, 1]),
        dry_run=st.booleans(),
    )
    def prune(self, retention: timedelta, dead: timedelta | None, forever: bool, limit: int, dry_run: bool) -> None:
        # Keys that are used for ever are looked for in no order.
        most = 1000 if forever else limit

        def model() -> object:
            return self._dry(retention, dead, forever) if dry_run else self._pruned(retention, dead, forever, most)

        self.step(
            "prune",
            lambda: self.server.client.prune(
                retention=retention, dead=dead, forever=forever, limit=most, dry_run=dry_run
            ),
            model,
            lambda pruned: (pruned.tasks, pruned.events, pruned.edges, pruned.more),
        )

    def _pruned(self, retention: timedelta, dead: timedelta | None, forever: bool, limit: int) -> object:
        ids = self.model.prunable(retention, dead, forever=forever)[:limit]
        *counts, held = self.model.prune(ids)
        return (*counts, len(ids) == limit or held)

    def _dry(self, retention: timedelta, dead: timedelta | None, forever: bool) -> object:
        other, total = copy.deepcopy(self.model), (0, 0, 0)
        while ids := other.prunable(retention, dead, forever=forever):
            tasks, events, edges, _ = other.prune(ids)
            total = (total[0] + tasks, total[1] + events, total[2] + edges)
        return (*total, False)

    # Look-ups.

    @call(action=st.sampled_from(ACTIONS), agent=st.sampled_from(AGENTS), key=st.sampled_from(KEYS), task=ANY_TASK)
    def look_up(self, action: str, agent: str, key: str, task: int | UUID) -> None:
        client, task_id = self.server.client, self.named(task)
        for lane in (agent, None):
            self.step(
                "find_by_dedupe_key",
                functools.partial(client.find_by_dedupe_key, key, agent=lane),
                functools.partial(self.model.find_by_dedupe_key, key, lane),
                lambda found: found and found.id,
            )
        self.step(
            "find_pending",
            lambda: client.find_pending(action, agent=agent),
            lambda: self.model.find_pending(action, agent),
            lambda found: found and found.id,
        )
        self.step(
            "has_active",
            lambda: client.has_active(action, agent=agent),
            lambda: self.model.has_active(action, agent),
            lambda found: found,
        )
        self.step("stats", client.stats, self.model.stats, lambda found: found)
        self.step(
            "parents",
            lambda: client.parents(task_id),
            lambda: self.model.parents(task_id),
            lambda found: [(parent.id, parent.status and parent.status.value) for parent in found],
        )

    # What holds after every step. That the rows are the model's is looked at within the step.

    @invariant()
    def nobody_holds_what_another_has(self) -> None:
        """From the rows alone: what the unique indexes are for."""
        values = [row.values for row in self.rows.values()]
        busy = [v["agent"] for v in values if v["status"] == RUNNING and v["agent"] is not None]
        assert len(busy) == len(set(busy)), f"an agent runs two tasks: {busy}"
        held = [(v["agent"], v["key"]) for v in values if v["key"] is not None and v["status"] in ACTIVE]
        assert len(held) == len(set(held)), f"two active tasks have one key: {held}"
        used = [(v["agent"], v["key"]) for v in values if v["forever"]]
        assert len(used) == len(set(used)), f"a key was used twice for ever: {used}"

    @invariant()
    def edges_are_counted(self) -> None:
        for task_id, row in self.rows.items():
            waiting = sum(not lifted for lifted, _ in row.parents.values())
            assert row.values["waiting_on"] == waiting, (
                f"{task_id} counts {row.values['waiting_on']} of {waiting} edges"
            )

    @invariant()
    def the_line_is_the_models(self) -> None:
        """What a claim of everything would bring, in which order; with all conditions met, and with none in turn."""
        self.steps += 1
        offers = CONDITIONS if self.steps % 2 else ()
        waiting = {task_id: row for task_id, row in self.rows.items() if row.values["status"] in ACTIVE}
        if not any(row.values["status"] == PENDING for row in waiting.values()) or (offers, waiting) == self.last_line:
            return
        self.last_line = (offers, waiting)
        now, line = self.server.would_claim(QUEUES, offers)
        self.model.now = at(now)
        try:
            expected = [task.id for task in self.model.line(QUEUES, 1000, frozenset(offers))]
        except Unclear:
            reject()
        assert line == expected, f"offering {offers}, the server's line is {line}, the model's {expected}"

    def teardown(self) -> None:
        for task in self.model.tasks.values():
            self.server.seen.update(f"event {event}" for event, *_ in task.journal)
        if self.model.full:
            found = self.server.client.audit()
            assert found.clean, f"the audit found {found.drifts} {found.gaps}"


def _value(status: Any) -> str:
    return str(status.value)


def _told(error: PgqueueError) -> tuple[object, ...]:
    name = type(error).__name__
    match error:
        case LeaseNotHeld():
            return name, error.status and error.status.value, error.owner
        case TransitionRefused():
            return name, error.status.value
        case KeyHeld():
            return name, error.holder
        case CircularDependency():
            assert error.path[0] == error.path[-1] == error.task_id
            assert len(error.path) > 2
            return (name,)
        case _:
            return (name,)


def _differences(task: Task, row: Row) -> list[str]:
    expected: dict[str, object] = {name: getattr(task, name) for name in row.values if hasattr(task, name)}
    expected |= {
        "blocked": task.waiting_on > 0,
        "requires": sorted(task.requires),
        "on_parent_failure": "run" if task.runs_anyway else "cancel",
    }
    wrong = [
        f"{name} is {row.values[name]}, not {expected[name]}"
        for name in row.values
        if row.values[name] != expected[name]
    ]
    for name, instant in row.instants.items():
        span: Span | None = getattr(task, name)
        if (span is None) != (instant is None) or (span and instant and not span.holds(instant)):
            wrong.append(f"{name} is {instant}, not {span}")
    if not isinstance(task.token, Fresh) and task.token != row.token:
        wrong.append(f"token is {row.token}, not {task.token}")
    if task.parents.keys() != row.parents.keys():
        return [*wrong, f"parents are {set(row.parents)}, not {set(task.parents)}"]
    for parent, edge in task.parents.items():
        lifted, look = row.parents[parent]
        if lifted != edge.lifted:
            wrong.append(f"the edge to {parent} is {'' if lifted else 'not '}lifted")
        if (edge.look is None) != (look is None) or (edge.look and look and not edge.look.holds(look)):
            wrong.append(f"the edge to {parent} is looked at {look}, not {edge.look}")
    return wrong
