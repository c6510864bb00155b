"""What the keeper does when it is let run late, when nobody answers, and when a handler has completed its own task."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psycopg
import pytest

from pgqueue import App, Client, Context, DatabaseError, Status
from pgqueue.database import Database
from pgqueue.worker import keep
from pgqueue.worker.keep import Keeper
from pgqueue.worker.running import Held, Running

from ..support import eventually
from ..support.proxy import Proxy
from ..support.waiting import PATIENCE
from .conftest import Start, became


def never(*_: object) -> None:
    raise AssertionError("not expected")


def keeper(database: Database, held: Held, *, lease: float) -> Keeper:
    length = timedelta(seconds=lease)
    return Keeper(database, held, lease=length, grace=length, interrupt=never, stuck=never)


@pytest.fixture
def proxied(database_url: str, tmp_path: Path) -> Iterator[tuple[Proxy, Database]]:
    with Proxy(database_url, tmp_path) as proxy:
        database = Database(proxy.url)
        yield proxy, database
        database.dispose()


def test_keeper_that_was_kept_from_running_renews_before_the_time(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    late = iter([0.0, 0.0, 10.0, 0.0])
    renewed = []
    kept = keeper(database, Held(1), lease=60)

    def wait(pause: float) -> None:
        nonlocal now
        more = next(late, None)
        if more is None:
            kept._stopping.set()
        now += pause + (more or 0)

    def run_once() -> int:
        renewed.append(now - 1000)
        return 0

    monkeypatch.setattr(keep, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(kept, "_wake", SimpleNamespace(wait=wait, clear=lambda: None))
    monkeypatch.setattr(kept, "run_once", run_once)
    kept._loop()
    assert renewed == [10.75]


def test_keeper_is_connected_before_it_has_anything_to_renew(database: Database) -> None:
    kept = keeper(database, Held(1), lease=60)
    kept.start()
    try:
        assert database.engine.pool.checkedin() == 1  # type: ignore[attr-defined]
    finally:
        kept.stop()


def test_keeper_gives_up_a_silent_connection_and_renews_over_another(
    proxied: tuple[Proxy, Database], client: Client
) -> None:
    proxy, database = proxied
    client.enqueue("work", None, agent="host-1")
    claimed = client.claim("host-1", lease=60)
    assert claimed is not None
    held = Held(1)
    held.add([Running(claimed, None)])
    kept = keeper(database, held, lease=1)
    assert kept.run_once() == 1
    assert proxy.hush() == 1
    raised: list[DatabaseError] = []

    def renew() -> None:
        try:
            kept.run_once()
        except DatabaseError as error:
            raised.append(error)

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert raised, "it still waits for an answer"
    assert kept.run_once() == 1


def test_handler_that_has_completed_its_task_is_left_in_peace(
    app: App, start: Start, database_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns = threading.Event()
    stopped: list[bool] = []

    @app.task(max_attempts=1)
    def work(ctx: Context) -> None:
        with psycopg.connect(database_url) as connection:
            ctx.complete("done", connection=connection)
        turns.clear()
        assert turns.wait(PATIENCE)
        turns.clear()
        assert turns.wait(PATIENCE)
        stopped.append(ctx.cancelled)

    worker = start(lease=0.5).worker
    run_once = worker._keeper.run_once

    def turn() -> int:
        extended = run_once()
        turns.set()
        return extended

    monkeypatch.setattr(worker._keeper, "run_once", turn)
    task = became(app, work.enqueue().id, Status.COMPLETED)
    assert task.result == "done"
    eventually(lambda: stopped)
    assert stopped == [False]
    assert "not yours any more" not in caplog.text
