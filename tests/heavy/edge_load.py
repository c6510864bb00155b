"""Everybody at once over tasks that depend on each other: producers, handlers, gates, cancels, sweeps, in threads."""

from __future__ import annotations

import collections
import itertools
import random
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.edges import knotted
from pgqueue.errors import CircularDependency, LeaseNotHeld, Refused
from pgqueue.ids import new_id
from pgqueue.lifecycle import Event, Status
from pgqueue.options import NewTask
from pgqueue.store import Settlement, Store
from pgqueue.task import Lease
from tests.support import Sql, eventually
from tests.support.edges import MISCOUNTED, STRANDED

Part = Callable[["Load"], object]
"""One turn of somebody, over and over until the load ends."""


class Load:
    """`run` lets every part take turns, each in a thread of its own; what they met is in `errors`."""

    def __init__(self, database: Database, *, recent: int = 60) -> None:
        self.database = database
        self.client = Client(database)
        self.store = Store(database.schema)
        self.recent: collections.deque[UUID] = collections.deque(maxlen=recent)
        self.turns: collections.Counter[str] = collections.Counter()
        self.errors: list[BaseException] = []
        self.ends = threading.Event()
        self._counting = threading.Lock()

    def some(self, most: int) -> list[UUID]:
        """Recent tasks, in no order."""
        known = list(self.recent)
        return random.sample(known, min(len(known), random.randint(1, most))) if known else []

    def count(self, what: str, n: int = 1) -> None:
        with self._counting:
            self.turns[what] += n

    def run(self, *parts: Part, seconds: float | None = None, until: Callable[[], object] | None = None) -> None:
        threads = [threading.Thread(target=self._turn, args=[part], daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        try:
            if until is not None:
                until()
            else:
                self.ends.wait(seconds)
        finally:
            self.ends.set()
            for thread in threads:
                thread.join(60)
            assert not any(thread.is_alive() for thread in threads), "somebody stands still"

    def _turn(self, part: Part) -> None:
        try:
            while not self.ends.is_set():
                part(self)
        except BaseException as error:  # noqa: BLE001 - for the test to look at
            self.errors.append(error)
            self.ends.set()


def produce(load: Load) -> None:
    """A caller's transaction: tasks of several parents each, in the order in which they came to mind."""
    with load.database.begin() as connection:
        mine = load.client.on(connection)
        made = []
        for _ in range(random.randint(1, 4)):
            failure: Any = random.choice(["cancel", "run"])
            above = load.some(3) if random.random() < 0.7 else []
            made.append(mine.enqueue("work", None, depends_on=above, on_parent_failure=failure).id)
    load.recent.extend(made)
    load.count("commits")


def settle(load: Load) -> None:
    """A worker's batch: most complete, some are buried, whatever cannot be had is tried again."""
    held = load.client.claim_batch("default", limit=20, owner="settler", lease=600)
    waiting = [
        Settlement(Event.BURY, one.lease, "no use") if random.random() < 0.1 else Settlement(Event.COMPLETE, one.lease)
        for one in held
    ]
    load.recent.extend(one.id for one in held)
    while waiting:
        with load.database.begin() as connection:
            answers = load.store.settle_many(connection, waiting)
        assert not any(isinstance(answer, LeaseNotHeld) for answer in answers.values())
        waiting = [one for one in waiting if answers[one.lease.task_id] is None]
    load.count("settles", len(held))


def handle(load: Load) -> None:
    """A handler's own transaction: it completes its task, and enqueues children of others' tasks."""
    for held in load.client.claim_batch("default", limit=1, owner="handler", lease=600):
        load.recent.append(held.id)
        with load.database.begin() as connection:
            mine = load.client.on(connection)
            mine.enqueue("work", None, depends_on=load.some(2))
            mine.complete(held)
            mine.enqueue("work", None, depends_on=load.some(2))
        load.count("handled")


def sweep(load: Load) -> None:
    load.count("swept", len(load.client.sweep(limit=100)))
    time.sleep(0.02)


def gate(load: Load) -> None:
    """Whatever is pending waits for others from now on, or for nobody."""
    for task_id in load.some(1):
        try:
            load.count("gates", bool(load.client.set_gate(task_id, depends_on=set(load.some(3)) - {task_id})))
        except CircularDependency:
            load.count("circles refused")


def cancel(load: Load) -> None:
    """In the order of their ids, as a bulk cancel does."""
    for task_id in sorted(load.some(5)):
        try:
            load.client.cancel(task_id)
        except Refused:
            continue
        load.count("cancels")
    time.sleep(0.01)


def close_a_circle(load: Load) -> None:
    """Two gates at once, each of which sees no circle."""
    one, other = (made.id for made in load.client.enqueue_many([NewTask("ring", None, {"queue": "rings"})] * 2))
    both = threading.Barrier(2)

    def wait_for(task_id: UUID, above: UUID) -> None:
        with load.database.begin() as connection:
            both.wait(30)
            try:
                load.client.on(connection).set_gate(task_id, depends_on=[above])
            except CircularDependency:
                load.count("circles refused")

    second = threading.Thread(target=wait_for, args=[other, one], daemon=True)
    second.start()
    wait_for(one, other)
    second.join(30)
    load.count("rings")


def grandchildren(children: list[UUID]) -> Part:
    """Children of those children, one after the other, each in a transaction of its own."""
    order = itertools.cycle(random.sample(children, len(children)))

    def enqueue(load: Load) -> None:
        # Not the client's own sweep: whoever strands here must be found by what the cascade has left behind.
        with load.database.begin() as connection:
            load.client.on(connection).enqueue("grandchild", None, depends_on=[next(order)])
        load.count("grandchildren")

    return enqueue


def finish(load: Load, sql: Sql) -> None:
    """Complete what was left running, and sweep until nothing is found."""
    for task_id, token in sql("select id, lease_token from pgqueue.tasks where status = 'running'"):
        task = load.client.get(task_id)
        with load.database.begin() as connection:
            lease = Lease(task_id, token, task.fence, task.agent, task.queue, datetime.now(UTC))
            load.store.settle_many(connection, [Settlement(Event.COMPLETE, lease)], skip_locked=False)
    while load.client.sweep(limit=1000):
        pass


def lawful(load: Load, sql: Sql) -> None:
    """Nobody met an error, nothing deadlocked, counters equal edges, nobody is stranded or waits for himself."""
    assert load.errors == []
    # A server process tells what it counted when it ends, at the latest.
    load.database.dispose()
    others = "datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()"
    eventually(lambda: sql(f"select count(*) from pg_stat_activity where {others}") == [(0,)])
    assert sql("select deadlocks from pg_stat_database where datname = current_database()") == [(0,)]
    assert sql(MISCOUNTED) == []
    assert sql(STRANDED) == []
    graph: dict[UUID, list[UUID]] = {}
    for child, parent in sql(
        "select child_id, parent_id from pgqueue.task_dependencies join pgqueue.tasks c on c.id = child_id"
        " where lifted_at is null and c.status = 'pending'"
    ):
        graph.setdefault(child, []).append(parent)
    assert knotted(graph) == set()


def family(load: Load, size: int) -> tuple[UUID, list[UUID]]:
    """A parent that is running, and so many children of it."""
    above = load.client.enqueue("parent", None, agent="parent").id
    made = load.client.enqueue_many(NewTask("child", None, {"depends_on": [above]}) for _ in range(size))
    return above, [one.id for one in made]


def parent_dies(load: Load, sql: Sql, size: int) -> float:
    """A parent of so many dies while clients enqueue children of its children; how long its end took."""
    _, children = family(load, size)
    held = load.client.claim("parent", owner="me", lease=600)
    assert held is not None
    took = 0.0

    def die() -> None:
        nonlocal took
        load.ends.wait(0.3)
        begins = time.monotonic()
        load.client.bury(held, "no use")
        took = time.monotonic() - begins

    load.run(*[grandchildren(children) for _ in range(2)], until=die)
    before = load.turns["grandchildren"]
    assert before > 0
    finish(load, sql)
    assert sql("select count(*) from pgqueue.tasks where status = %s", Status.PENDING.value) == [(0,)]
    return took


def chain(load: Load, length: int) -> tuple[UUID, list[UUID]]:
    """A running task, and a chain of so many below it."""
    above = load.client.enqueue("parent", None, agent="chain").id
    ids = [above, *(new_id() for _ in range(length))]
    tasks = [NewTask("link", None, {"id": below, "depends_on": [one]}) for one, below in itertools.pairwise(ids)]
    load.client.enqueue_many(tasks)
    return above, ids[1:]
