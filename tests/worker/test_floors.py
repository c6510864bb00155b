"""The floors of the claims: five ways in which one can hide a row, and each is caught within its bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.ids import new_id
from pgqueue.options import NewTask
from pgqueue.statements import LEVELS
from pgqueue.store import SLACK, Claims, Level
from pgqueue.task import Claimed, Lease
from pgqueue.worker import floors as module
from pgqueue.worker.fetch import Fetcher
from pgqueue.worker.floors import Floors

from ..support import Sql, connect, eventually

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUES = ["default"]
LEVEL = ("default", 0)
CHEAP, DEAR = 0.001, 0.2


def task(not_before: datetime = NOW, *, priority: int = 0, queue: str = "default") -> Claimed:
    lease = Lease(new_id(), uuid4(), 1, None, queue, NOW)
    return Claimed(lease, "work", None, priority, 1, 3, not_before, None, NOW, None, None)


class Looker:
    """A worker's claims as its floors see them: `look` is one claim at a moment of the worker's clock."""

    def __init__(self, queues: list[str] | None = None) -> None:
        self.floors = Floors()
        self.queues = queues or QUEUES

    def look(self, at: float, *found: Claimed, size: int = 1, cost: float = DEAR, now: datetime = NOW) -> None:
        bounds = self.floors.bounds(self.queues, at)
        self.floors.learn(self.queues, Claims(list(found), now), size=size, bounds=bounds, cost=cost, now=at)

    def sees(self, not_before: datetime, at: float, level: tuple[str, int] = LEVEL) -> bool:
        floor = self.floors.bounds(self.queues, at).get(level)
        return floor is None or floor <= not_before


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def test_nothing_is_hidden_before_the_first_look() -> None:
    assert Looker().floors.bounds(QUEUES, 0.0) == {}


def test_floor_stays_the_slack_behind_the_best_that_was_claimed() -> None:
    looker = Looker()
    looker.look(0.0, task(ago(10)))
    assert looker.floors.bounds(QUEUES, 0.5)[LEVEL] == ago(10) - SLACK


def test_level_that_was_looked_at_in_vain_has_its_floor_at_the_slack_behind_now() -> None:
    looker = Looker()
    looker.look(0.0, size=10)
    assert looker.floors.bounds(QUEUES, 0.5)[LEVEL] == NOW - SLACK


@pytest.mark.parametrize("priority", [p for p in LEVELS if p < 3])
def test_way_1_a_level_that_was_not_looked_at_keeps_its_floor(priority: int) -> None:
    looker = Looker()
    looker.look(0.0, task(priority=3))
    assert looker.sees(ago(1000), 0.5, ("default", priority)), "a full claim stopped above it"
    looker.look(10.0, size=2)
    before = looker.floors.bounds(QUEUES, 10.5)["default", priority]
    later = NOW + timedelta(hours=1)
    looker.look(10.5, task(later, priority=3), now=later)
    assert looker.floors.bounds(QUEUES, 10.6)["default", priority] == before


def test_way_1_a_queue_that_was_not_looked_at_keeps_its_floor() -> None:
    looker = Looker(["first", "second"])
    looker.look(0.0, task(queue="first"))
    assert looker.sees(ago(1000), 0.5, ("second", 9))
    assert not looker.sees(ago(1000), 0.5, ("first", 9))


def test_way_2_a_commit_that_comes_late_is_within_the_slack() -> None:
    looker = Looker()
    looker.look(0.0, size=10)
    assert looker.sees(ago(SLACK.total_seconds()), 0.5)


@pytest.mark.parametrize(
    ("way", "not_before"),
    [
        ("2: a commit that comes very late", ago(30)),
        ("3: a row that became due with an old time", ago(86_400)),
        ("4: a row that somebody had locked", ago(5)),
        ("5: a clock that stepped back", ago(3600)),
    ],
)
@pytest.mark.parametrize(("cost", "bound"), [(CHEAP, 1.0), (0.04, 1.0), (0.5, 10.0), (2.9, 58.0), (30.0, 60.0)])
def test_ways_2_to_5_are_caught_by_the_next_full_look(
    way: str, not_before: datetime, cost: float, bound: float
) -> None:
    looker = Looker()
    looker.look(100.0, task(), cost=cost)
    assert not looker.sees(not_before, 100.0 + bound * 0.99), way
    # However full the claims in between are.
    for step in range(1, 10):
        looker.look(100.0 + bound * step / 10, task(), cost=DEAR)
    assert looker.sees(not_before, 100.0 + bound), way


def test_short_claim_after_a_cheap_full_look_is_followed_by_another_full_look() -> None:
    looker = Looker()
    looker.look(0.0, task(), cost=CHEAP)
    assert not looker.sees(ago(3600), 0.1)
    looker.look(0.1, size=10)
    assert looker.sees(ago(3600), 0.1001)


def test_short_claim_after_a_dear_full_look_waits_its_turn() -> None:
    looker = Looker()
    looker.look(0.0, task(), cost=DEAR)
    looker.look(0.1, size=10)
    assert not looker.sees(ago(3600), 0.2)
    assert looker.sees(ago(3600), 4.0)


def test_row_found_below_pulls_the_floor_back() -> None:
    looker = Looker()
    looker.look(0.0, task(), cost=CHEAP)
    looker.look(2.0, task(ago(3600)), cost=CHEAP)
    assert looker.sees(ago(3600), 2.5)


def test_clock_that_stepped_back_pulls_the_floor_back_at_the_next_full_look() -> None:
    looker = Looker()
    looker.look(0.0, task(), cost=CHEAP)
    looker.look(1.5, size=10, cost=CHEAP, now=ago(3600))
    assert looker.floors.bounds(QUEUES, 2.0)[LEVEL] == ago(3600) - SLACK


def test_something_that_came_back_is_looked_for_at_once() -> None:
    looker = Looker(["default", "other"])
    looker.look(0.0, size=10)
    looker.floors.look_whole("default")
    assert looker.sees(ago(3600), 0.1)
    assert not looker.sees(ago(3600), 0.1, ("other", 0)), "the other queue pays nothing"


# -- the same with the real fetcher, while a backlog keeps every claim full


class Backlog:
    """A fetcher whose floors are above the past, over a queue with more than enough for full claims."""

    def __init__(self, client: Client, sql: Sql) -> None:
        self.client, self.sql = client, sql
        client.enqueue_many(NewTask("noop", None, {"priority": 1}) for _ in range(4000))
        sql("analyze pgqueue.tasks")
        self.fetcher = Fetcher(client.database, QUEUES, owner="me", lease=timedelta(minutes=1), batch=5)

    def warm(self, level: tuple[str, int] = ("default", 1)) -> None:
        """Claim until a floor stands."""
        eventually(lambda: self.claimed() and level in self.bounds())

    def claimed(self) -> set[UUID]:
        found = {task.id for task in self.fetcher.run_once(5)}
        assert len(found) == 5, "the backlog is used up: nothing proves that a full look found it"
        return found

    def bounds(self) -> dict[Level, datetime]:
        return self.fetcher._floors.bounds(QUEUES, time.monotonic())

    def hides(self, task_id: UUID, priority: int = 1) -> bool:
        floor = self.bounds().get(("default", priority))
        ((not_before,),) = self.sql("select not_before from pgqueue.tasks where id = %s", task_id)
        return floor is not None and not_before < floor

    def finds(self, task_id: UUID) -> None:
        eventually(lambda: task_id in self.claimed())


@pytest.fixture
def backlog(database: Database, client: Client, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(module, "_EVERY", 0.2)
    return Backlog(client, sql)


def insert_old(execute: Callable[..., object], priority: int = 1) -> UUID:
    task_id = new_id()
    execute(
        "insert into pgqueue.tasks (id, queue, action, priority, not_before)"
        " values (%s, 'default', 'noop', %s, now() - interval '1 hour')",
        [task_id, priority],
    )
    return task_id


def test_fetcher_finds_a_commit_that_was_held_back(backlog: Backlog, database_url: str) -> None:
    with connect(database_url) as held_back, held_back.transaction():
        task_id = insert_old(held_back.execute)
        backlog.warm()
    backlog.finds(task_id)


def test_fetcher_finds_a_row_that_was_locked_and_rolled_back(backlog: Backlog, database_url: str) -> None:
    ((task_id,),) = backlog.sql("select id from pgqueue.tasks order by not_before, id limit 1")
    backlog.sql("update pgqueue.tasks set not_before = not_before - interval '1 hour' where id = %s", task_id)
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [task_id])
        backlog.warm()
        assert task_id not in backlog.claimed()
        other.execute("rollback")
    backlog.finds(task_id)


def test_fetcher_finds_a_task_that_came_back_with_its_old_place(backlog: Backlog) -> None:
    backlog.sql(
        "update pgqueue.tasks set not_before = not_before - interval '1 hour' where id in (select id from"
        " pgqueue.tasks order by id limit 1)"
    )
    (taken,) = backlog.client.claim_batch(limit=1)
    backlog.warm()
    backlog.client.evict(taken.id)
    backlog.finds(taken.id)


@pytest.mark.parametrize("priority", [-9, 0, 2, 9])
def test_fetcher_finds_a_row_of_another_level(backlog: Backlog, priority: int) -> None:
    backlog.warm()
    task_id = insert_old(lambda text, params: backlog.sql(text, *params), priority)
    if priority > 1:
        backlog.finds(task_id)
        return
    # A lower level's turn comes when the backlog above it is done.
    backlog.sql("delete from pgqueue.tasks where status = 'pending' and priority = 1")
    assert task_id in {task.id for task in backlog.fetcher.run_once(5)}


def test_fetcher_finds_everything_after_the_clock_was_set_back(backlog: Backlog) -> None:
    backlog.warm()
    backlog.sql("update pgqueue.tasks set not_before = not_before - interval '1 day' where status = 'pending'")
    ((task_id,),) = backlog.sql("select id from pgqueue.tasks where status = 'pending' order by not_before limit 1")
    assert backlog.hides(task_id) or backlog.bounds() == {}
    eventually(lambda: task_id in {task.id for task in backlog.fetcher.run_once(5)})


def test_fetcher_that_looks_whole_sees_below_every_floor(backlog: Backlog) -> None:
    backlog.warm()
    task_id = insert_old(lambda text, params: backlog.sql(text, *params))
    assert task_id in {task.id for task in backlog.fetcher.run_once(5, whole=True)}
