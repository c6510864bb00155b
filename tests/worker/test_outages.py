"""A server that freezes, statements that fail for no reason known, rows that object: a worker goes on, and can stop."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, Unpack

import pytest
import sqlalchemy as sa

from pgqueue import App, DatabaseError, Status
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.lifecycle import Event
from pgqueue.options import NewTask, Options
from pgqueue.patience import Patience
from pgqueue.store import Settlement
from pgqueue.task import Lease
from pgqueue.worker.fetch import Fetcher
from pgqueue.worker.keep import Keeper
from pgqueue.worker.running import Held, Running
from pgqueue.worker.settle import Settler

from ..support import Sql, connect, eventually
from ..support.proxy import Proxy
from .conftest import InThread, Start, became

LEASE = timedelta(minutes=1)


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    # Not in pytest's own directory: the path of a socket may have 107 bytes.
    with tempfile.TemporaryDirectory() as directory, Proxy(database_url, Path(directory)) as proxy:
        yield proxy


@pytest.fixture
def through(proxy: Proxy) -> Iterator[Database]:
    database = Database(proxy.url, schema="pgqueue")
    yield database
    database.dispose()


# -- a server that does not answer


def ask(database: Database) -> int:
    with database.begin() as connection:
        return int(connection.execute(sa.text("select 1")).scalar_one())


def test_call_under_way_ends_when_it_is_hurried(proxy: Proxy, through: Database) -> None:
    assert ask(through) == 1
    proxy.freeze()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, through)
        through.hurry(0.2)
        with pytest.raises(DatabaseError, match="does not answer"):
            asked.result(30)
    proxy.thaw()
    through.hurry(30)
    assert ask(through) == 1, "the connection that gave no answer was used again"


def test_call_under_way_ends_for_asyncio_too(proxy: Proxy, through: Database) -> None:
    async def ask() -> None:
        async with through.abegin() as connection:
            await connection.execute(sa.text("select 1"))

    async def main() -> None:
        await ask()
        proxy.freeze()
        through.hurry(0.2)
        with pytest.raises(DatabaseError, match="does not answer"):
            await asyncio.wait_for(ask(), 30)
        proxy.thaw()
        through.hurry(30)
        await ask()
        await through.adispose()

    asyncio.run(main())


def test_answer_that_comes_slowly_is_waited_for(through: Database) -> None:
    through.hurry(30)
    with through.begin() as connection:
        assert connection.execute(sa.text("select 1 from pg_sleep(0.5)")).scalar_one() == 1


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_worker_stops_while_the_server_is_frozen(
    app: App, proxy: Proxy, gate: threading.Event, caplog: pytest.LogCaptureFixture, busy: bool
) -> None:
    distant = App(proxy.url)

    @distant.task
    def work() -> None:
        gate.wait(30)

    if busy:
        app.client.enqueue("work", {})
    caplog.set_level(logging.INFO)
    worker = InThread(distant, {"listen": True, "drain": 0, "cancel_grace": 0, "poll": 0.05})
    if busy:
        eventually(lambda: app.client.stats()["running"] == 1)
    eventually(lambda: worker.worker._fetcher._passes > 2)
    proxy.freeze()
    worker.stop()
    gate.set()
    assert worker.join() == 0


def test_worker_goes_on_after_the_server_was_frozen(app: App, proxy: Proxy) -> None:
    distant = App(proxy.url)

    @distant.task
    def work() -> None: ...

    worker = InThread(distant, {"poll": 0.05})
    first = app.client.enqueue("work", {})
    became(app, first.id, Status.COMPLETED)
    proxy.freeze()
    second = app.client.enqueue("work", {})
    # Whatever it asks just now gets no answer; it gives the connection up and opens another.
    worker.worker._database.hurry(0.1)
    proxy.thaw()
    became(app, second.id, Status.COMPLETED)
    worker.stop()
    assert worker.join() == 0


# -- what nobody foresaw


def test_worker_survives_a_claim_that_raises_what_nobody_foresaw(
    app: App, start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work() -> None: ...

    worker = start().worker

    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("in the middle of it")

    with monkeypatch.context() as patch:
        patch.setattr(worker._fetcher, "run_once", broken)
        eventually(lambda: "cannot claim: in the middle of it" in caplog.text)
    assert "Traceback" in caplog.text, "where it was is what one wants to know"
    became(app, work.enqueue().id, Status.COMPLETED)


def test_patience_says_at_most_a_line_a_second_and_waits_no_longer_than_it_may(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    stopping = threading.Event()
    monkeypatch.setattr(stopping, "wait", waits.append)
    patience = Patience(logging.getLogger("pgqueue.test"), stopping, longest=0.4)
    for _ in range(10):
        patience.failed("cannot", DatabaseError("away"))
    assert max(waits) <= 0.4
    assert len(caplog.records) == 1
    assert "Traceback" not in caplog.text


def test_handler_gets_a_thread_while_a_claim_hangs(
    app: App, start: Start, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Semaphore(0)

    @app.task
    def work() -> None:
        inside.release()
        gate.wait(30)

    app.client.enqueue_many([work.new() for _ in range(3)])
    claim = Fetcher.run_once

    def once(fetcher: Fetcher, room: int, *, whole: bool = False) -> Any:
        found = claim(fetcher, room, whole=whole)
        if not found:
            gate.wait(30)
        return found

    monkeypatch.setattr(Fetcher, "run_once", once)
    start()
    for _ in range(3):
        assert inside.acquire(timeout=30)
    assert not gate.is_set()


def test_what_waits_for_a_thread_is_no_stuck_handler(app: App, start: Start, gate: threading.Event) -> None:
    """It is given back; where that cannot be written, the worker ends all the same, and not with 70."""

    @app.task
    def work() -> None:
        gate.wait(30)

    worker = start(concurrency=3, drain=0)
    worker.worker._executor._max_threads = 1
    app.client.enqueue_many([work.new() for _ in range(3)])
    eventually(lambda: app.client.stats()["running"] == 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pgqueue.worker.service._SETTLE_WITHIN", 0.2)
        patch.setattr(worker.worker._settler, "run_once", _away)
        worker.stop()
        gate.set()
        assert worker.join() == 0


def _away(*_: Any, **__: Any) -> Any:
    raise DatabaseError("the server cannot be reached")


def test_asyncio_task_that_a_handler_left_behind_is_cancelled_at_the_end(app: App, start: Start) -> None:
    ended: list[str] = []
    left = []

    async def background() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    @app.task
    async def work() -> None:
        left.append(asyncio.create_task(background()))
        await asyncio.sleep(0)

    worker = start()
    became(app, work.enqueue().id, Status.COMPLETED)
    worker.stop()
    assert worker.join() == 0
    assert ended == ["cancelled"]


# -- rows that object


@pytest.fixture
def objecting(sql: Sql) -> str:
    """The agent whose tasks nobody can write."""
    sql(
        """
        create function object() returns trigger language plpgsql as
        $$ begin raise exception 'not this one'; end $$;
        create trigger object before update on pgqueue.tasks for each row
        when (old.status = 'running' and old.agent = 'objects') execute function object();
        """
    )
    return "objects"


def hold(client: Client, count: int, **options: Unpack[Options]) -> list[Running]:
    client.enqueue_many(NewTask("noop", None, options) for _ in range(count))
    return [Running(claimed, None) for claimed in eventually(lambda: client.claim_batch(limit=20, lease=LEASE))]


def keeper(database: Database, held: Held) -> Keeper:
    def never(*_: Any) -> None:
        raise AssertionError

    return Keeper(database, held, lease=LEASE, grace=LEASE, interrupt=never, stuck=never)


def test_row_that_objects_costs_no_other_its_lease(database: Database, client: Client, objecting: str) -> None:
    runs = hold(client, 5) + hold(client, 1, agent=objecting)
    held = Held(10)
    held.add(runs)
    assert len(runs) == 6
    assert keeper(database, held).run_once() == 5


def test_progress_of_a_row_that_somebody_has_locked_is_written_later(
    database: Database, client: Client, database_url: str
) -> None:
    (run,) = hold(client, 1)
    held = Held(1)
    held.add([run])
    kept = keeper(database, held)
    kept.report(run.lease, 40, "almost half")
    with connect(database_url) as other, other.transaction():
        other.execute("select from pgqueue.tasks where id = %s for update", [run.lease.task_id])
        assert kept.write_progress() == 0
    assert kept.write_progress() == 1
    task = client.get(run.lease.task_id)
    assert (task.progress, task.message) == (40, "almost half")
    held.remove([run.lease])
    kept.report(run.lease, 50, None)
    client.complete(run.lease)
    assert kept.write_progress() == 0
    assert kept._progress == {}, "progress of what is not held any more is kept for ever"


def test_row_that_stays_locked_is_no_flood_of_lines(
    database: Database,
    client: Client,
    database_url: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pgqueue.worker.settle._ALONE_AGAIN", 0.0)
    (run,) = hold(client, 1)
    settled: list[Lease] = []
    tries: list[bool] = []
    settler = Settler(database, batch=10, settled=settled.extend, refused=lambda *_: None, others_running=lambda: 0)
    alone = settler._settle_alone

    def counted() -> bool:
        tries.append(alone())
        return tries[-1]

    monkeypatch.setattr(settler, "_settle_alone", counted)
    with connect(database_url) as other, other.transaction():
        other.execute("select from pgqueue.tasks where id = %s for update", [run.lease.task_id])
        settler.start()
        settler.put(Settlement(Event.COMPLETE, run.lease))
        eventually(lambda: sum(tries) >= 5)
    eventually(lambda: settled == [run.lease])
    assert settler.stop(30)
    assert caplog.text.count("has it locked") == 1
    assert "is back" not in caplog.text
