"""In which order, when, and by whom: agents, queues, delays, and what wakes a worker."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import App, Context, DatabaseError, NewTask, Status
from pgqueue.config import WorkerConfig
from pgqueue.database import Database
from pgqueue.task import Claimed
from pgqueue.worker import Worker
from pgqueue.worker.fetch import Fetcher

from ..support import Sql, eventually
from .conftest import Burst, Start, became

HOUR = 3600


# -- agents


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_agents_run_one_at_a_time_and_in_order_whoever_works(app: App, start: Start, kind: str) -> None:
    agents = [f"host-{n}" for n in range(6)]
    lock = threading.Lock()
    seen: dict[str, list[int]] = {agent: [] for agent in agents}
    busy: set[str] = set()
    twice: list[str] = []

    def enter(agent: str, n: int) -> None:
        with lock:
            if agent in busy:
                twice.append(agent)
            busy.add(agent)
            seen[agent].append(n)

    def leave(agent: str) -> None:
        with lock:
            busy.discard(agent)

    if kind == "def":

        @app.task(name="work")
        def work(ctx: Context, n: int) -> None:
            enter(str(ctx.agent), n)
            threading.Event().wait(random.uniform(0, 0.003))
            leave(str(ctx.agent))
    else:

        @app.task(name="work")
        async def awork(ctx: Context, n: int) -> None:
            enter(str(ctx.agent), n)
            await asyncio.sleep(random.uniform(0, 0.003))
            leave(str(ctx.agent))

    action = app.action("work")
    app.client.enqueue_many(action.using(agent=agent).new(n=n) for n in range(25) for agent in agents)
    start(concurrency=8)
    start(concurrency=8)
    eventually(lambda: app.client.stats()["completed"] == 150)
    assert twice == []
    assert seen == {agent: list(range(25)) for agent in agents}


def test_agents_task_with_a_higher_priority_goes_first(app: App, burst: Burst) -> None:
    ran: list[str] = []

    @app.task
    def work(name: str) -> None:
        ran.append(name)

    for name, priority in (("first", 0), ("low", -5), ("high", 5), ("second", 0)):
        work.using(agent="a", priority=priority).enqueue(name=name)
    burst()
    assert ran == ["high", "first", "second", "low"]


def test_agents_failed_task_lets_the_next_one_go_ahead(app: App, burst: Burst) -> None:
    ran: list[str] = []

    @app.task
    def work(name: str) -> None:
        ran.append(name)
        if name == "first":
            raise ValueError(name)

    for name in ("first", "second", "third"):
        work.using(agent="a").enqueue(name=name)
    burst()
    assert ran == ["first", "second", "third"]


def test_burst_runs_an_agents_whole_chain_before_it_ends(app: App, burst: Burst) -> None:
    @app.task
    def step(ctx: Context, n: int) -> None:
        if n:
            step.using(agent=ctx.agent).enqueue(n=n - 1)

    step.using(agent="a").enqueue(n=20)
    step.using(agent="b").enqueue(n=3)
    assert burst() == 0
    assert app.client.stats()["completed"] == 25


def test_burst_leaves_what_is_not_due(app: App, burst: Burst) -> None:
    @app.task
    def work() -> None: ...

    later = work.using(delay=HOUR).enqueue()
    now = work.enqueue()
    burst()
    assert app.client.get(now.id).status is Status.COMPLETED
    assert app.client.get(later.id).status is Status.PENDING


# -- fairness


def test_queues_are_served_in_turn_however_deep_one_is(app: App, burst: Burst) -> None:
    ran: list[str] = []

    @app.task
    def work(ctx: Context) -> None:
        ran.append(ctx.queue)

    for queue, count in (("deep", 200), ("one", 4), ("two", 4)):
        app.client.enqueue_many(work.using(queue=queue).new() for _ in range(count))
    burst(queues=("deep", "one", "two"), concurrency=1, batch=1)
    assert len(ran) == 208
    assert {queue for queue in ran[:20] if queue != "deep"} == {"one", "two"}
    assert sum(queue != "deep" for queue in ran[:40]) == 8


@pytest.mark.parametrize("concurrency", [1, 20], ids=["one slot", "many slots"])
def test_agents_are_served_although_tasks_of_no_agent_fill_every_claim(
    app: App, burst: Burst, concurrency: int
) -> None:
    ran: list[str | None] = []

    @app.task
    async def work(ctx: Context) -> None:
        ran.append(ctx.agent)

    app.client.enqueue_many(work.new() for _ in range(600))
    app.client.enqueue_many(work.using(agent=f"a{n}").new() for n in range(3))
    burst(concurrency=concurrency, batch=concurrency)
    assert len(ran) == 603
    assert sum(agent is not None for agent in ran[:300]) == 3


def test_agents_of_every_queue_are_served_although_no_claim_has_room_left(app: App, burst: Burst) -> None:
    ran: list[tuple[str, str | None]] = []

    @app.task
    def work(ctx: Context) -> None:
        ran.append((ctx.queue, ctx.agent))

    for queue in ("one", "two"):
        app.client.enqueue_many(work.using(queue=queue).new() for _ in range(100))
        app.client.enqueue_many(work.using(queue=queue, agent=f"{queue}-{n}").new() for n in range(20))
    burst(queues=("one", "two"), concurrency=1, batch=1)
    early = {queue for queue, agent in ran[:60] if agent is not None}
    assert early == {"one", "two"}


def test_worker_serves_the_queues_that_its_actions_name_and_no_other(app: App, burst: Burst) -> None:
    @app.task(queue="mail")
    def send() -> None: ...

    @app.task
    def work() -> None: ...

    made = [send.enqueue(), work.enqueue()]
    elsewhere = work.using(queue="elsewhere").enqueue()
    burst()
    assert {app.client.get(one.id).status for one in made} == {Status.COMPLETED}
    assert app.client.get(elsewhere.id).status is Status.PENDING


def test_priorities_go_before_age_within_a_queue(app: App, burst: Burst) -> None:
    ran: list[int] = []

    @app.task
    def work(ctx: Context, priority: int) -> None:
        ran.append(priority)

    order = list(range(-9, 10))
    random.shuffle(order)
    app.client.enqueue_many(work.using(priority=p).new(priority=p) for p in order)
    burst(concurrency=1, batch=1)
    assert ran == sorted(order, reverse=True)


# -- what wakes a worker


def listening(app: App, start: Start) -> Worker:
    """A worker that would sleep for an hour, and has just gone to sleep."""
    worker = start(listen=True, poll=HOUR).worker
    listener = worker._listener
    assert listener is not None
    assert listener.listening.wait(30)
    # It looked once more when it began to listen, and again after 5, 25, 125 ms.
    waits: list[float] = []
    pause = worker._pause

    def recorded(seconds: float) -> None:
        waits.append(seconds)
        pause(seconds)

    worker._pause = recorded  # type: ignore[method-assign]
    worker._heard(None)
    eventually(lambda: waits and waits[-1] > 60)
    return worker


def test_notification_wakes_a_worker_that_would_sleep_for_an_hour(app: App, start: Start) -> None:
    @app.task
    def work() -> None: ...

    listening(app, start)
    for _ in range(3):
        made = work.enqueue()
        eventually(lambda made=made: app.client.get(made.id).status is Status.COMPLETED)  # type: ignore[misc]


@pytest.mark.parametrize("agent", [None, "host-7"])
def test_delayed_task_starts_when_it_is_due_and_not_before(app: App, start: Start, agent: str | None) -> None:
    @app.task
    def work() -> None: ...

    listening(app, start)
    made = work.using(delay=0.4, agent=agent).enqueue()
    task = became(app, made.id, Status.COMPLETED)
    assert task.started_at is not None
    assert task.started_at >= task.not_before
    assert task.not_before - task.created_at > timedelta(seconds=0.3)


def test_retry_by_a_person_wakes_the_worker(app: App, start: Start) -> None:
    fails = [True]

    @app.task(max_attempts=1)
    def work() -> None:
        if fails[0]:
            raise ValueError("not yet")

    made = work.enqueue()
    listening(app, start)
    eventually(lambda: app.client.get(made.id).status is Status.DEAD)
    fails[0] = False
    app.client.retry(made.id)
    eventually(lambda: app.client.get(made.id).status is Status.COMPLETED)


def test_worker_that_does_not_listen_finds_tasks_by_polling(app: App, start: Start, sql: Sql) -> None:
    @app.task
    def work() -> None: ...

    worker = start(listen=False)
    assert worker.worker._listener is None
    made = [work.enqueue() for _ in range(3)]
    eventually(lambda: {app.client.get(one.id).status for one in made} == {Status.COMPLETED})
    listeners = "select pid from pg_stat_activity where query ilike 'listen%%' and datname = current_database()"
    assert sql(listeners) == []


# -- the claiming side by itself


@pytest.fixture
def fetcher(database: Database) -> Fetcher:
    return Fetcher(database, ["one", "two"], owner="me", lease=timedelta(minutes=1), batch=10)


def agents_of(tasks: list[Claimed]) -> list[str | None]:
    return [task.agent for task in tasks]


def test_fetcher_claims_no_more_than_there_is_room_for(fetcher: Fetcher, app: App) -> None:
    app.client.enqueue_many(NewTask("noop", None, {"queue": "one"}) for _ in range(30))
    assert [len(fetcher.run_once(room)) for room in (1, 3, 10, 99)] == [1, 2, 10, 10]


def test_fetcher_keeps_what_it_claimed_when_the_rest_of_the_look_fails(
    fetcher: Fetcher, app: App, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first statement has committed: forgetting its tasks would cost each of them an attempt."""

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise DatabaseError("the server went away")

    for name in ("one", "two"):
        app.client.enqueue("noop", None, queue=name)
    app.client.enqueue("noop", None, queue="one", agent="a")
    monkeypatch.setattr(fetcher._store, "claim_agents", broken)
    assert agents_of(fetcher.run_once(10)) == [None, None]
    assert "could not claim all" in caplog.text
    with pytest.raises(DatabaseError):
        fetcher.run_once(10)
    monkeypatch.undo()
    assert agents_of(fetcher.run_once(10)) == ["a"]


def test_fetcher_looks_first_at_agents_that_have_just_settled(fetcher: Fetcher, app: App) -> None:
    for n in range(3):
        app.client.enqueue("noop", {"n": n}, queue="one", agent="a")
    for _ in range(3):
        (task,) = fetcher.run_once(10)
        assert fetcher.run_once(10) == []
        app.client.complete(task)
        fetcher.agent_free("one", "a")
        fetcher.agent_free("elsewhere", "b")
    assert fetcher.run_once(10) == []


def test_fetcher_finds_an_agent_beside_many_that_are_not_due(fetcher: Fetcher, app: App) -> None:
    future: list[NewTask] = [
        NewTask("noop", None, {"queue": "one", "agent": f"a{n}", "delay": HOUR}) for n in range(700)
    ]
    app.client.enqueue_many(future)
    for _ in range(2):
        assert fetcher.run_once(10) == []
    app.client.enqueue("noop", None, queue="one", agent="z")
    assert agents_of(fetcher.run_once(10)) == ["z"]


def test_fetcher_passes_over_agents_that_an_open_transaction_has_claimed(fetcher: Fetcher, app: App) -> None:
    app.client.enqueue_many(NewTask("noop", None, {"queue": "one", "agent": f"a{n:02}"}) for n in range(60))
    with app.database.begin() as connection:
        assert len(app.client.on(connection).claim_batch("one", limit=50)) == 50
        assert len(fetcher.run_once(10)) == 10
        assert fetcher.run_once(10) == []
        app.client.enqueue("noop", None, queue="one", agent="z")
        assert agents_of(fetcher.run_once(10)) == ["z"]
        assert fetcher.run_once(10) == []


def test_fetcher_looks_on_past_one_agents_backlog(fetcher: Fetcher, app: App, sql: Sql) -> None:
    app.client.enqueue_many(NewTask("noop", None, {"queue": "one", "agent": "busy"}) for _ in range(2500))
    app.client.enqueue_many(
        NewTask("noop", None, {"queue": "one", "agent": f"a{n:03}", "delay": HOUR}) for n in range(600)
    )
    app.client.enqueue("noop", None, queue="one", agent="z")
    found = agents_of(fetcher.run_once(2))
    assert sorted(str(agent) for agent in found) == ["busy", "z"]


def test_next_due_is_the_earliest_plan_of_all_queues(fetcher: Fetcher, app: App) -> None:
    assert fetcher.next_due() is None
    app.client.enqueue("noop", None, queue="elsewhere", delay=1)
    assert fetcher.next_due() is None
    delays: list[tuple[dict[str, Any], Callable[[float], bool]]] = [
        ({"delay": 3000, "priority": -9}, lambda wait: 2900 < wait <= 3000),
        ({"delay": 2000, "agent": "a"}, lambda wait: 1900 < wait <= 2000),
        ({"delay": 1000, "priority": 9}, lambda wait: 900 < wait <= 1000),
    ]
    for options, fits in delays:
        app.client.enqueue("noop", None, queue="two", **options)
        wait = fetcher.next_due()
        assert wait is not None
        assert fits(wait)


def test_worker_behind_a_pooler_does_not_count_on_hearing(database_url: str) -> None:
    """There LISTEN succeeds and nothing arrives: it polls as one that cannot listen."""
    app = App(database_url)
    app.database.pooler = True

    @app.task
    def work() -> None: ...

    made = work.enqueue()
    worker = Worker(app, WorkerConfig(listen=True, burst=True))
    assert worker._listener is None
    assert worker.run() == 0
    assert app.client.get(made.id).status is Status.COMPLETED
    app.client.close()
