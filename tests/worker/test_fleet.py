"""Workers see pauses and resumes, and say that they are there."""

from __future__ import annotations

import logging
import os
import socket
import threading
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from pgqueue import App, LeaseNotHeld, Status, WorkerInfo
from pgqueue.config import VERSION
from pgqueue.database import Database
from pgqueue.maintenance import Registrar
from pgqueue.worker.fetch import Fetcher

from ..support import Sql, eventually
from .conftest import Burst, Start, became

HOUR: dict[str, Any] = {"listen": True, "poll": 3600}


def hears(worker: Any) -> None:
    assert worker._listener is not None
    assert worker._listener.listening.wait(30)


# -- pauses


@pytest.mark.parametrize("options", [HOUR, {"listen": False}], ids=["told", "polling"])
@pytest.mark.parametrize("kind", ["queue", "agent"])
def test_worker_leaves_alone_what_is_paused_until_it_is_resumed(
    app: App, start: Start, kind: Any, options: dict[str, Any]
) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    @app.task(queue="other")
    def other() -> None: ...

    worker = start(**options).worker
    if options is HOUR:
        hears(worker)
    name = "default" if kind == "queue" else "host-7"
    app.client.pause(kind, name)
    made = [work.using(agent="host-7" if n % 2 or kind == "agent" else None).enqueue(n=n) for n in range(4)]
    # The worker has looked since then.
    became(app, other.enqueue().id, Status.COMPLETED)
    assert ran == []
    app.client.resume(kind, name)
    for one in made:
        became(app, one.id, Status.COMPLETED)
    assert sorted(ran) == [0, 1, 2, 3]


def test_burst_ends_with_paused_tasks_left(app: App, burst: Burst) -> None:
    ran: list[int] = []

    @app.task
    def work(n: int) -> None:
        ran.append(n)

    app.client.pause("agent", "a")
    app.client.pause("queue", "mail")
    for n, options in enumerate(({"agent": "a"}, {"queue": "mail"}, {"queue": "mail", "agent": "b"}, {})):
        work.using(**options).enqueue(n=n)  # type: ignore[arg-type]
    assert burst(queues=["default", "mail"]) == 0
    assert ran == [3]
    app.client.resume("queue", "mail")
    assert burst(queues=["default", "mail"]) == 0
    assert sorted(ran) == [1, 2, 3]


def test_what_became_due_during_a_pause_is_found_at_the_first_look_after_it(app: App, database: Database) -> None:
    """No floor and no cursor has passed it meanwhile."""
    fetcher = Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=10)
    app.client.enqueue("x")
    app.client.enqueue("x", agent="a")
    assert len(fetcher.run_once(10)) == 2
    app.client.pause("queue", "default")
    free, of_agent = app.client.enqueue("x"), app.client.enqueue("x", agent="b")
    for _ in range(5):
        assert fetcher.run_once(10) == []
    app.client.resume("queue", "default")
    assert {task.id for task in fetcher.run_once(10)} == {free.id, of_agent.id}


def test_resumed_agent_behind_a_thousand_others_is_found_at_the_next_look(
    app: App, database: Database, sql: Sql
) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, agent, not_before)"
        " select gen_random_uuid(), 'default', 'x', 'a-' || n, now() - interval '1 hour'"
        " from generate_series(1, 3000) n"
    )
    sql("insert into pgqueue.pauses (kind, name) select 'agent', 'a-' || n from generate_series(1, 3000) n")
    fetcher = Fetcher(database, ["default"], owner="me", lease=timedelta(minutes=1), batch=10)
    for _ in range(10):
        assert fetcher.run_once(10) == []
    fetcher.look_at_pauses()
    app.client.resume("agent", "a-2345")
    fetcher._pauses_at = 0.0
    fetcher.look_at_pauses()
    assert [task.agent for task in fetcher.run_once(10)] == ["a-2345"]


# -- who is there


def mine(app: App, name: str) -> list[WorkerInfo]:
    return [worker for worker in app.client.workers() if worker.name == name]


def test_worker_is_listed_while_it_works(app: App, start: Start) -> None:
    @app.task(queue="mail")
    def work() -> None: ...

    worker = start(name="w-1", offers=["gpu"], concurrency=7)
    [found] = eventually(lambda: mine(app, "w-1"))
    assert (found.host, found.pid, found.version) == (socket.gethostname(), os.getpid(), VERSION)
    assert (found.queues, found.actions, found.offers) == (("mail",), ("work",), ("gpu",))
    assert (found.concurrency, found.stale) == (7, False)
    assert found.started_at <= found.seen_at
    worker.stop()
    assert worker.join() == 0
    assert mine(app, "w-1") == []


def registrar(database: Database, **changes: Any) -> Registrar:
    who: Any = {"name": "w", "host": "h", "pid": 1, "version": "0", "queues": ["a"], "actions": ["x"], "offers": []}
    return Registrar(database, lambda: who | {"concurrency": 1} | changes)


def test_beat_writes_only_when_it_was_seen(app: App, database: Database) -> None:
    one = registrar(database)
    one.run_once()
    [first] = app.client.workers()
    one.run_once()
    [second] = app.client.workers()
    assert second.seen_at > first.seen_at
    assert second.started_at == first.started_at
    one.stop()
    assert app.client.workers() == []


def test_worker_that_was_not_seen_is_stale_and_then_forgotten(app: App, database: Database, sql: Sql) -> None:
    registrar(database, name="late").run_once()
    registrar(database, name="gone").run_once()
    sql("update pgqueue.workers set seen_at = now() - interval '46 s' where name = 'late'")
    sql("update pgqueue.workers set seen_at = now() - interval '61 min' where name = 'gone'")
    assert [(worker.name, worker.stale) for worker in app.client.workers()] == [("gone", True), ("late", True)]
    assert registrar(database, name="new").run_once() == 1
    assert [(worker.name, worker.stale) for worker in app.client.workers()] == [("late", True), ("new", False)]


def test_worker_whose_role_may_not_register_works_all_the_same(
    app: App, start: Start, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    sql("create function refuse() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$")
    sql("create trigger refuse before insert on pgqueue.workers for each row execute function refuse()")

    @app.task
    def work() -> None: ...

    with caplog.at_level(logging.WARNING):
        start()
        became(app, work.enqueue().id, Status.COMPLETED)
        eventually(lambda: any("cannot register the worker" in record.message for record in caplog.records))


def test_two_workers_of_one_name_do_not_keep_each_others_tasks(app: App, start: Start, gate: threading.Event) -> None:
    """Leases go by their tokens: a name is what people read."""
    begun = [threading.Event(), threading.Event()]

    @app.task
    def work(n: int) -> None:
        begun[n].set()
        gate.wait(30)

    first = work.enqueue(n=0)
    one = start(name="twin", concurrency=1, lease=1, maintenance=60)
    assert begun[0].wait(30)
    two = start(name="twin", concurrency=1, lease=1)
    second = work.enqueue(n=1)
    assert begun[1].wait(30)
    eventually(lambda: len(mine(app, "twin")) == 2)
    # The first one's keeper falls silent: the other renews its own task and not this one, and reaps it.
    one.worker._keeper.stop()
    eventually(lambda: app.client.get(first.id).last_error is not None)
    assert "stopped renewing" in str(app.client.get(first.id).last_error)
    held = app.client.get(second.id)
    assert (held.status, held.fence, held.last_error) == (Status.RUNNING, 1, None)
    gate.set()
    became(app, second.id, Status.COMPLETED)
    assert two.alive


def test_claims_of_one_owners_name_cannot_settle_each_others(app: App) -> None:
    for agent in ("a", "b"):
        app.client.enqueue("x", agent=agent)
    one, two = (app.client.claim(agent, owner="twin") for agent in ("a", "b"))
    assert one is not None
    assert two is not None
    stolen = type(one.lease)(one.id, two.lease.token, one.fence, "a", "default", one.lease.deadline)
    for verb in (app.client.renew, app.client.complete, app.client.release):
        with pytest.raises(LeaseNotHeld):
            verb(stolen)
    assert app.client.get(one.id).lease_owner == "twin"


# -- agents


def test_agents_lists_who_has_something_to_do(app: App, sql: Sql) -> None:
    client = app.client
    for agent, tasks in (("a", 3), ("b", 1), ("c", 1)):
        for n in range(tasks):
            client.enqueue("x", agent=agent, queue="one" if n else "two")
    parent = client.enqueue("x")
    client.enqueue("y", agent="d", depends_on=[parent.id])
    client.enqueue("z", agent="e", delay=1000)
    done = client.claim("b", queue="two")
    assert done is not None
    client.complete(done)
    runs = client.claim("a", queue=["one", "two"], owner="me")
    assert runs is not None
    paused = client.pause("agent", "c")
    found = {agent.agent: agent for agent in client.agents()}
    assert {name: agent.pending for name, agent in found.items()} == {"a": 2, "c": 1, "d": 1, "e": 1}
    assert (found["a"].running, found["a"].action, found["a"].owner) == (runs.id, "x", "me")
    assert found["a"].started_at == client.get(runs.id).started_at
    assert found["c"].paused_at == paused.since
    assert [found[name].running for name in "cde"] == [None] * 3


def test_agents_comes_in_pages_by_name(app: App) -> None:
    names = [f"agent-{n:02}" for n in range(7)]
    for name in names:
        app.client.enqueue("x", agent=name, queue=name[-1])
    after, pages = None, []
    while page := app.client.agents(after=after, limit=3):
        pages.append([agent.agent for agent in page])
        after = pages[-1][-1]
    assert pages == [names[:3], names[3:6], names[6:]]


def test_agents_of_nobody_are_none(app: App) -> None:
    app.client.enqueue("x")
    assert app.client.agents() == []
    assert app.client.agents(after=str(uuid4())) == []
