"""A cancel request reaches a running handler by a notification, long before its lease is renewed."""

from __future__ import annotations

import asyncio
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import App, Context, Status
from pgqueue.database import Database
from pgqueue.store import Store
from pgqueue.worker.keep import Keeper
from pgqueue.worker.running import CANCELLED, LOST, Held, Running

from ..support import Sql, eventually
from . import process_app
from .conftest import InThread, Start, became

LONG: dict[str, Any] = {"listen": True, "lease": 3600, "poll": 3600}
"""Nothing is renewed for twenty minutes: what a handler hears, it hears by being told."""


def declare(app: App, kind: str) -> threading.Event:
    begun = threading.Event()
    if kind == "async":

        @app.task(name="work")
        async def awork() -> None:
            begun.set()
            await asyncio.sleep(3600)
    else:

        @app.task(name="work")
        def work(ctx: Context) -> None:
            begun.set()
            ctx.sleep(3600)
            ctx.check()

    return begun


def hears(worker: Any) -> None:
    assert worker._listener is not None
    assert worker._listener.listening.wait(30)


@pytest.mark.parametrize("kind", ["async", "thread"])
def test_cancel_reaches_a_handler_without_waiting_for_a_renewal(app: App, start: Start, kind: str) -> None:
    begun = declare(app, kind)
    hears(start(**LONG).worker)
    made = app.client.enqueue("work", {})
    assert begun.wait(30)
    assert app.client.cancel(made.id, by="ada") is Status.RUNNING
    became(app, made.id, Status.CANCELLED)


@pytest.mark.skipif(sys.platform != "linux", reason="handlers in processes")
def test_cancel_reaches_a_handler_in_a_process_without_waiting_for_a_renewal(database_url: str) -> None:
    app = process_app.app
    app.database, app._client = Database(database_url, schema="pgqueue"), None
    worker = InThread(app, {**LONG, "cancel_grace": 0.1})
    try:
        hears(worker.worker)
        made = process_app.family.enqueue()
        eventually(lambda: app.client.get(made.id).message)
        app.client.cancel(made.id)
        became(app, made.id, Status.CANCELLED)
    finally:
        worker.stop()
        worker.stop()
        worker.join()
        app.client.close()


def test_several_cancels_at_once_all_arrive(app: App, start: Start) -> None:
    begun = [threading.Event() for _ in range(20)]

    @app.task
    async def work(n: int) -> None:
        begun[n].set()
        await asyncio.sleep(3600)

    hears(start(**LONG, concurrency=20).worker)
    made = app.client.enqueue_many(work.new(n=n) for n in range(20))
    assert all(one.wait(30) for one in begun)
    for one in made[:15]:
        app.client.cancel(one.id)
    for one in made[:15]:
        became(app, one.id, Status.CANCELLED)
    # Who was not asked goes on, and its lease was not touched.
    for one in made[15:]:
        task = app.client.get(one.id)
        assert task.status is Status.RUNNING
        assert task.lease_expires_at is not None
        assert task.started_at is not None
        assert task.lease_expires_at - task.started_at < timedelta(seconds=3601)


def test_eviction_reaches_a_handler_without_waiting_for_a_renewal(app: App, start: Start) -> None:
    begun, stopped = threading.Event(), threading.Event()

    @app.task
    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.set()
            raise

    hears(start(**LONG).worker)
    made = work.enqueue()
    assert begun.wait(30)
    app.client.pause("queue", "default")
    app.client.evict(made.id, by="ada")
    assert stopped.wait(30)
    assert app.client.get(made.id).status is Status.PENDING


# -- the keeper, by itself


def keeper(database: Database, held: Held, heard: list[tuple[Any, str]]) -> Keeper:
    return Keeper(
        database,
        held,
        lease=timedelta(hours=1),
        grace=timedelta(seconds=1),
        interrupt=lambda run, why: heard.append((run.lease.task_id, why)),
        stuck=lambda _: None,
    )


def holding(app: App, database: Database, number: int) -> tuple[Held, list[Running]]:
    for n in range(number):
        app.client.enqueue("x", agent=f"a-{n}")
    with database.begin() as connection:
        claimed = Store("pgqueue").claim_batch(connection, limit=number, lease=3600)
    held, runs = Held(number), [Running(task, None) for task in claimed]
    held.add(runs)
    return held, runs


def test_look_writes_only_what_somebody_asked_about(app: App, database: Database, sql: Sql) -> None:
    held, runs = holding(app, database, 5)
    app.client.cancel(runs[0].lease.task_id)
    app.client.evict(runs[1].lease.task_id)
    before = {row[0]: row[1] for row in sql("select id, xmin::text from pgqueue.tasks")}
    heard: list[tuple[Any, str]] = []
    assert keeper(database, held, heard).look() == 1
    after = {row[0]: row[1] for row in sql("select id, xmin::text from pgqueue.tasks")}
    assert sorted(heard) == sorted([(runs[0].lease.task_id, CANCELLED), (runs[1].lease.task_id, LOST)])
    assert {task_id for task_id in before if before[task_id] != after[task_id]} == {runs[0].lease.task_id}


def test_keeper_told_of_a_task_that_is_not_held_yet_looks_again(
    app: App, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, [run] = holding(app, database, 1)
    heard: list[tuple[Any, str]] = []
    mine = Held(1)
    keeps = keeper(database, mine, heard)
    looked = threading.Event()
    look = keeps.look

    def noted() -> int:
        try:
            return look()
        finally:
            looked.set()

    monkeypatch.setattr(keeps, "look", noted)
    keeps.start()
    try:
        app.client.cancel(run.lease.task_id)
        keeps.tell()
        assert looked.wait(30)
        mine.add([run])
        eventually(lambda: heard == [(run.lease.task_id, CANCELLED)])
    finally:
        keeps.stop()
