"""What a worker offers: which tasks it takes for it, in which order, and how soon it sees a condition that is new."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pgqueue import App, ConfigError, Status
from pgqueue.client import Client
from pgqueue.config import WorkerConfig
from pgqueue.database import Database
from pgqueue.ids import new_id
from pgqueue.options import NewTask
from pgqueue.store import SLACK, Claims, Level, Met, MetLevel
from pgqueue.task import Claimed, Lease
from pgqueue.worker import floors as module
from pgqueue.worker.fetch import Fetcher
from pgqueue.worker.floors import Conditions, Floors

from ..support import Sql, connect, eventually
from .conftest import Burst, Start, became

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
CHEAP, DEAR = 0.001, 0.2
GPU: MetLevel = ("default", 0, "{gpu}")
NET: MetLevel = ("default", 0, "{net}")


def require(sql: Sql, task_id: UUID, *names: str) -> UUID:
    sql("update pgqueue.tasks set requires = %s where id = %s", list(names), task_id)
    return task_id


# -- workers


@pytest.fixture
def ran(app: App) -> list[str]:
    """The names of the tasks that were run, in order."""
    names: list[str] = []

    @app.task
    def work(name: str) -> None:
        names.append(name)

    return names


def enqueue(app: App, sql: Sql, name: str, *requires: str, **options: Any) -> UUID:
    made = app.action("work").using(**options).enqueue(name=name).id
    return require(sql, made, *requires) if requires else made


def test_worker_runs_what_its_offers_cover_and_leaves_the_rest(
    app: App, sql: Sql, burst: Burst, ran: list[str]
) -> None:
    enqueue(app, sql, "plain")
    enqueue(app, sql, "met", "gpu")
    enqueue(app, sql, "both", "gpu", "licence")
    unmet = enqueue(app, sql, "unmet", "gpu", "net")
    assert burst(offers=["licence", "gpu"]) == 0
    assert sorted(ran) == ["both", "met", "plain"]
    assert app.client.get(unmet).status is Status.PENDING
    assert app.client.get(unmet).fence == 0


def test_worker_without_offers_leaves_every_conditional_task(app: App, sql: Sql, burst: Burst, ran: list[str]) -> None:
    enqueue(app, sql, "met", "gpu")
    enqueue(app, sql, "of an agent", "gpu", agent="a")
    enqueue(app, sql, "plain")
    assert burst() == 0
    assert ran == ["plain"]


def test_worker_runs_conditional_tasks_of_agents(app: App, sql: Sql, burst: Burst, ran: list[str]) -> None:
    enqueue(app, sql, "first", "gpu", agent="a")
    enqueue(app, sql, "second", agent="a")
    enqueue(app, sql, "unmet", "net", agent="b")
    assert burst(offers=["gpu"]) == 0
    assert ran == ["first", "second"]


def test_worker_goes_by_priority_whether_there_is_a_condition_or_not(
    app: App, sql: Sql, burst: Burst, ran: list[str]
) -> None:
    for priority in (0, 9, -9, 5):
        enqueue(app, sql, str(priority), *(["gpu"] if priority % 2 else []), priority=priority)
    assert burst(offers=["gpu"], concurrency=1) == 0
    assert ran == ["9", "5", "0", "-9"]


def test_burst_runs_more_conditions_than_one_walk_goes_over(app: App, sql: Sql, burst: Burst, ran: list[str]) -> None:
    app.client.enqueue_many(NewTask("work", {"name": str(n)}, {}) for n in range(1200))
    sql("update pgqueue.tasks set requires = array['c' || (payload ->> 'name')]")
    assert burst(offers=[f"c{n}" for n in range(1200)], concurrency=100) == 0
    assert sorted(map(int, ran)) == list(range(1200))


def test_idle_worker_hears_of_a_condition_that_it_has_never_seen(
    app: App, sql: Sql, start: Start, ran: list[str], database_url: str
) -> None:
    start(offers=["gpu", "net"])
    became(app, enqueue(app, sql, "plain"), Status.COMPLETED)
    with connect(database_url) as connection:
        for name in ("gpu", "net"):
            task_id = new_id()
            connection.execute(
                "insert into pgqueue.tasks (id, queue, action, payload, requires)"
                " values (%s, 'default', 'work', %s, %s)",
                [task_id, f'{{"name": "{name}"}}', [name]],
            )
            became(app, task_id, Status.COMPLETED)
    assert ran == ["plain", "gpu", "net"]


def test_worker_says_at_the_start_what_it_offers(
    app: App, burst: Burst, ran: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pgqueue.worker"):
        burst(offers=["licence", "gpu"])
        burst()
    hello = [record.getMessage() for record in caplog.records if ": database " in record.getMessage()]
    assert ", actions work, offers gpu, licence, concurrency 20" in hello[0]
    assert ", actions work, concurrency 20" in hello[1]


def test_offers_are_kept_sorted_and_once() -> None:
    assert WorkerConfig(offers=("b", "a", "b")).offers == ("a", "b")
    assert WorkerConfig.of({"offers": ["b", "a"]}).offers == ("a", "b")
    assert WorkerConfig.of({"offers": None}).offers == ()


@pytest.mark.parametrize(
    ("offers", "says"),
    [
        (("",), "offers is empty; give at least one character, or leave it out"),
        (("gpu", ""), "offers is empty"),
        (("a\nb",), "offers holds a control character"),
        (("x" * 513,), "offers has 513 bytes"),
        ((5,), "offers must be a str"),
        ("gpu", "offers must be a sequence of names, not 'gpu'; write [name]"),
        (5, "offers must be a sequence of names, not 5"),
    ],
)
def test_bad_offers_are_refused(offers: Any, says: str) -> None:
    for make in (lambda given: WorkerConfig(**given), WorkerConfig.of):
        with pytest.raises(ConfigError) as caught:
            make({"offers": offers})
        assert says in str(caught.value)
        assert caught.value.field == "offers"


# -- the claiming side by itself


@pytest.fixture
def fetcher(database: Database) -> Fetcher:
    return Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=5, offers=("gpu", "net"))


def test_next_due_counts_conditional_tasks_that_the_offers_cover(fetcher: Fetcher, client: Client, sql: Sql) -> None:
    require(sql, client.enqueue("work", delay=60).id, "licence")
    assert fetcher.run_once(5) == []
    assert fetcher.next_due() is None
    require(sql, client.enqueue("work", delay=600).id, "gpu")
    require(sql, client.enqueue("work", delay=3600, priority=3).id, "gpu", "net")
    # Where a walk was dear, the next one waits.
    wait = eventually(lambda: fetcher.next_due() if fetcher.run_once(5) == [] else None)
    assert wait is not None
    assert 500 < wait <= 600


class Backlog:
    """A fetcher whose every claim is full, of tasks with and without a condition."""

    def __init__(self, fetcher: Fetcher, client: Client, sql: Sql) -> None:
        self.fetcher, self.client, self.sql = fetcher, client, sql
        client.enqueue_many(NewTask("work", None, {}) for _ in range(4000))
        sql("update pgqueue.tasks set requires = '{gpu}' where id in (select id from pgqueue.tasks limit 2000)")
        eventually(lambda: self.claimed() and set(self.bounds()) >= {("default", 0), GPU})

    def claimed(self) -> set[UUID]:
        found = {task.id for task in self.fetcher.run_once(5)}
        assert len(found) == 5, "the backlog is used up: nothing proves that a full look found it"
        return found

    def bounds(self) -> Mapping[Level, datetime]:
        return self.fetcher._floors.bounds(["default"], time.monotonic(), met=[GPU])

    def add(self, *requires: str, hours: int = 1, priority: int = 0) -> UUID:
        task_id = new_id()
        self.sql(
            "insert into pgqueue.tasks (id, queue, action, requires, priority, not_before)"
            " values (%s, 'default', 'work', %s, %s, now() - %s * interval '1 hour')",
            task_id,
            list(requires),
            priority,
            hours,
        )
        return task_id

    def finds(self, task_id: UUID) -> None:
        eventually(lambda: task_id in self.claimed())


@pytest.fixture
def backlog(fetcher: Fetcher, client: Client, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(module, "_EVERY", 0.2)
    return Backlog(fetcher, client, sql)


def test_fetcher_under_full_claims_finds_a_condition_that_is_new(backlog: Backlog) -> None:
    backlog.finds(backlog.add("net", priority=1))
    backlog.finds(backlog.add("gpu", "net", priority=0))


def test_fetcher_under_full_claims_finds_a_conditional_row_below_the_floor(backlog: Backlog) -> None:
    backlog.finds(backlog.add("gpu"))


def test_fetcher_finds_a_conditional_task_that_came_back_with_its_old_place(backlog: Backlog) -> None:
    task_id = backlog.add("net", priority=1)
    backlog.finds(task_id)
    eventually(lambda: backlog.claimed() and ("default", 1, "{net}") not in backlog.fetcher._conditions.met)
    backlog.client.evict(task_id)
    backlog.fetcher.came_back("default")
    assert task_id in backlog.claimed()


def test_fetcher_claims_both_sides_of_a_backlog(backlog: Backlog) -> None:
    """Whichever side has the older tasks: the other is not starved by a first task that somebody has locked."""
    kinds: set[str] = set()
    ((locked,),) = backlog.sql(
        "update pgqueue.tasks set not_before = now() - interval '1 day' where id ="
        " (select id from pgqueue.tasks where status = 'pending' and requires = '{}' limit 1) returning id"
    )
    with connect(backlog.client.database.url) as other, other.transaction():
        other.execute("select from pgqueue.tasks where id = %s for update", [locked])
        for _ in range(100):
            ((requires,),) = backlog.sql(
                "select requires::text from pgqueue.tasks where id = %s", next(iter(backlog.claimed()))
            )
            kinds.add(requires)
    assert kinds == {"{}", "{gpu}"}


def test_fetcher_that_looks_whole_sees_every_condition_at_once(backlog: Backlog) -> None:
    task_id = backlog.add("net", priority=9)
    assert task_id in {task.id for task in backlog.fetcher.run_once(5, whole=True)}


@pytest.mark.parametrize("whole", [True, False])
def test_fetcher_finds_what_is_due_behind_more_conditions_than_one_walk_goes_over(
    database: Database, client: Client, sql: Sql, whole: bool
) -> None:
    client.enqueue_many(NewTask("work", {"n": n}, {"delay": 3600}) for n in range(1200))
    sql("update pgqueue.tasks set requires = array['c' || (payload ->> 'n')]")
    task_id = require(sql, client.enqueue("work").id, "z")
    offers = ["z", *(f"c{n}" for n in range(1200))]
    fetcher = Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=5, offers=offers)
    if not whole:
        eventually(lambda: fetcher._conditions.after or fetcher.run_once(5))
        eventually(lambda: [task.id for task in fetcher.run_once(5)] == [task_id])
    else:
        assert [task.id for task in fetcher.run_once(5, whole=True)] == [task_id]


def test_fetcher_without_offers_never_asks_for_conditions(
    database: Database, client: Client, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    require(sql, client.enqueue("work").id, "gpu")
    fetcher = Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=5)
    monkeypatch.setattr(fetcher._store, "met_levels", None)
    monkeypatch.setattr(fetcher._store, "claim_conditional", None)
    assert [fetcher.run_once(5, whole=whole) for whole in (False, True)] == [[], []]


def test_fetchers_of_two_workers_share_conditional_tasks(database: Database, client: Client, sql: Sql) -> None:
    client.enqueue_many(NewTask("work", None, {}) for _ in range(200))
    sql("update pgqueue.tasks set requires = '{gpu}'")
    taken: list[UUID] = []

    def work() -> None:
        fetcher = Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=5, offers=("gpu",))
        while found := fetcher.run_once(5, whole=True):
            taken.extend(task.id for task in found)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(taken) == len(set(taken)) == 200


# -- what it remembers


def task(not_before: datetime = NOW, *, priority: int = 0) -> Claimed:
    lease = Lease(new_id(), uuid4(), 1, None, "default", NOW)
    return Claimed(lease, "work", None, priority, 1, 3, not_before, None, NOW, None, None)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def learnt(found: Mapping[Level, datetime], *, size: int, met: list[MetLevel]) -> Mapping[Level, datetime]:
    """The floors after one full look that brought a task for each of `found`."""
    floors = Floors()
    claims = Claims([task(since, priority=level[1]) for level, since in found.items()], NOW, list(found))
    floors.learn(["default"], claims, size=size, bounds={}, cost=DEAR, now=0.0, met=met)
    return floors.bounds(["default"], 0.5, met=met)


def test_level_with_a_condition_has_a_floor_of_its_own() -> None:
    bounds = learnt({GPU: ago(50), ("default", 0): ago(10)}, size=10, met=[GPU, NET])
    assert bounds[GPU] == ago(50) - SLACK
    assert bounds["default", 0] == ago(10) - SLACK
    assert bounds[NET] == NOW - SLACK


def test_full_claim_moves_no_floor_of_its_last_priority_but_where_it_found_something() -> None:
    high: MetLevel = ("default", 9, "{net}")
    bounds = learnt({GPU: ago(50)}, size=1, met=[GPU, NET, high])
    assert bounds[GPU] == ago(50) - SLACK
    assert bounds[high] == NOW - SLACK
    assert bounds["default", 1] == NOW - SLACK
    assert NET not in bounds
    assert ("default", 0) not in bounds
    assert ("default", -1) not in bounds


def test_floors_of_conditions_that_are_gone_are_forgotten() -> None:
    floors = Floors()
    floors.learn(["default"], Claims([], NOW), size=1, bounds={}, cost=DEAR, now=0.0, met=[GPU, NET])
    floors.keep([NET])
    assert GPU not in floors.bounds(["default"], 0.5, met=[GPU, NET])
    assert floors.bounds(["default"], 0.5, met=[GPU, NET]).keys() >= {NET, ("default", 0)}
    floors.look_whole("default")
    assert floors.bounds(["default"], 0.5, met=[NET]) == {}


@pytest.mark.parametrize(("cost", "bound"), [(CHEAP, 1.0), (0.04, 1.0), (0.5, 10.0), (30.0, 60.0)])
def test_conditions_are_asked_for_again_within_the_bound(cost: float, bound: float) -> None:
    conditions = Conditions()
    assert conditions.stale(100.0)
    conditions.learn(Met({GPU: NOW}, {}, NOW), cost=cost, now=100.0)
    assert conditions.met == [GPU]
    assert not conditions.stale(100.0 + bound * 0.99)
    assert conditions.stale(100.0 + bound)


@pytest.mark.parametrize(("cost", "wait"), [(CHEAP, 0.0), (0.01, 0.2), (DEAR, 4.0)])
def test_conditions_are_asked_for_sooner_after_a_short_claim(cost: float, wait: float) -> None:
    conditions = Conditions()
    conditions.learn(Met({}, {}, NOW), cost=cost, now=100.0)
    conditions.came_short()
    assert conditions.stale(100.0 + wait * 0.99) is (wait == 0.0)
    assert conditions.stale(100.0 + wait * 1.01)
    conditions.look()
    assert conditions.stale(100.0)


def test_walk_that_was_cut_goes_on_from_there() -> None:
    conditions = Conditions()
    conditions.learn(Met({GPU: NOW}, {"default": ("{gpu}", 0)}, NOW), cost=CHEAP, now=100.0)
    assert conditions.after == {"default": ("{gpu}", 0)}
    conditions.learn(Met({NET: NOW}, {}, NOW), cost=CHEAP, now=101.0)
    assert (conditions.met, conditions.after) == ([NET], {})
