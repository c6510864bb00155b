"""The pruner: one pass, the loop around it, and its place in a worker."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import App, ConfigError, DatabaseError, Pruned
from pgqueue.client import Client
from pgqueue.config import DEFAULTS, WorkerConfig
from pgqueue.database import Database
from pgqueue.maintenance import Pruner

from ..support import Sql, connect, eventually
from .conftest import Start

WEEK = timedelta(days=7)


@pytest.fixture
def finished(sql: Sql) -> Callable[..., None]:
    """`finished(count, days)`: so many tasks that completed so many days ago, each with an event."""

    def finished(count: int = 1, days: int = 8) -> None:
        sql(
            "with made as (insert into pgqueue.tasks (id, queue, action, status, finished_at)"
            " select gen_random_uuid(), 'default', 'x', 'completed', clock_timestamp() - make_interval(days => %s)"
            " from generate_series(1, %s) returning id)"
            " insert into pgqueue.task_events (task_id, event, to_status) select id, 'fail', 'dead' from made",
            days,
            count,
        )

    return finished


class Recorded(threading.Event):
    """A stop flag that notes how long each wait would have been, and waits next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        return super().wait(min(timeout, 0.01))


@pytest.fixture
def recorded(database: Database) -> Iterator[Callable[..., tuple[Pruner, Recorded]]]:
    made: list[Pruner] = []

    def recorded(**options: Any) -> tuple[Pruner, Recorded]:
        pruner = Pruner(database, **options)
        pruner._stopping = event = Recorded()
        made.append(pruner)
        return pruner, event

    yield recorded
    for pruner in made:
        pruner.stop()


# -- one pass


def test_pass_goes_on_until_nothing_is_left_and_keeps_the_rest(
    client: Client, database: Database, finished: Callable[..., None]
) -> None:
    finished(2500)
    finished(3, days=6)
    done = Pruner(database).run_once()
    assert (done.tasks, done.events, done.more) == (2500, 2500, False)
    assert client.stats()["total"] == 3


def test_pass_is_a_row_of_small_transactions_with_a_breath_after_each(
    recorded: Callable[..., tuple[Pruner, Recorded]], finished: Callable[..., None]
) -> None:
    finished(2500)
    pruner, event = recorded()
    batches: list[Pruned] = []
    prune = pruner._store.prune

    def watched(*args: Any, **kwargs: Any) -> Pruned:
        batches.append(prune(*args, **kwargs))
        return batches[-1]

    pruner._store.prune = watched  # type: ignore[method-assign]
    pruner.run_once()
    assert [batch.tasks for batch in batches] == [1000, 1000, 500]
    assert len(event.waits) == 2
    assert min(event.waits) >= 0.05


def test_pass_ends_between_two_batches_when_told_to_stop(
    client: Client, database: Database, finished: Callable[..., None]
) -> None:
    finished(2500)
    pruner = Pruner(database)
    pruner.stop()
    done = pruner.run_once()
    assert (done.tasks, done.more) == (1000, True)
    assert client.stats()["total"] == 1500


def test_pass_leaves_dead_tasks_and_keys_that_are_used_for_ever(
    client: Client, database: Database, sql: Sql, finished: Callable[..., None]
) -> None:
    finished(2)
    sql("update pgqueue.tasks set dedupe_key = id::text, dedupe_forever = true")
    client.enqueue("x")
    client.bury(client.claim_batch("default")[0], "no use")
    sql("update pgqueue.tasks set finished_at = now() - interval '1 year'")
    assert Pruner(database, retention=timedelta(0)).run_once() == Pruned()
    assert client.stats()["total"] == 3


def test_row_that_somebody_holds_stops_no_other(
    client: Client, database: Database, database_url: str, finished: Callable[..., None]
) -> None:
    finished(5)
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks limit 1 for update")
        assert Pruner(database).run_once().tasks == 4
        other.execute("rollback")
    assert Pruner(database).run_once().tasks == 1


def test_pruners_share_and_each_task_goes_once(database: Database, finished: Callable[..., None]) -> None:
    finished(3000)
    done: list[Pruned] = []
    threads = [threading.Thread(target=lambda: done.append(Pruner(database).run_once()), daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    # What the others had locked is left to them.
    assert sum(one.tasks for one in done) == sum(one.events for one in done) == 3000


# -- the loop


def test_loop_prunes_about_once_a_minute_and_never_in_step(
    client: Client, recorded: Callable[..., tuple[Pruner, Recorded]], finished: Callable[..., None]
) -> None:
    finished()
    pruner, event = recorded()
    pruner.start()
    eventually(lambda: client.stats()["total"] == 0)
    eventually(lambda: len(event.waits) >= 20)
    assert all(30 <= wait <= 90 for wait in event.waits)
    assert len(set(event.waits)) > 10


def test_loop_outlives_an_outage_and_what_it_does_not_understand(
    client: Client, recorded: Callable[..., tuple[Pruner, Recorded]], finished: Callable[..., None]
) -> None:
    finished()
    pruner, _ = recorded()
    errors: list[Exception] = [DatabaseError("the server cannot be reached"), RuntimeError("a bug of ours")]
    prune = pruner._store.prune

    def troubled(*args: Any, **kwargs: Any) -> Pruned:
        if errors:
            raise errors.pop()
        return prune(*args, **kwargs)

    pruner._store.prune = troubled  # type: ignore[method-assign]
    pruner.start()
    eventually(lambda: client.stats()["total"] == 0)
    assert errors == []


def test_start_and_stop_come_in_any_order_and_twice(database: Database) -> None:
    pruner = Pruner(database)
    pruner.stop()
    pruner.start()
    pruner.stop()
    assert not pruner._thread.is_alive()
    other = Pruner(database)
    other.start()
    other.start()
    other.stop()
    other.stop()
    assert not other._thread.is_alive()


# -- in a worker


def test_worker_prunes_with_its_retention(
    app: App, start: Start, finished: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def noop() -> None: ...

    monkeypatch.setattr(Pruner.__init__, "__kwdefaults__", {"retention": WEEK, "every": timedelta(seconds=0.05)})
    finished(2, days=3)
    finished(3, days=1)
    start(retention=timedelta(days=2))
    eventually(lambda: app.client.stats()["total"] == 3)


@pytest.mark.parametrize("off", [None, "off"])
def test_worker_without_retention_has_no_pruner(app: App, start: Start, off: Any) -> None:
    @app.task
    def noop() -> None: ...

    running = start(retention=off)
    assert running.worker._pruner is None
    noop.enqueue()
    eventually(lambda: app.client.stats()["completed"] == 1)
    running.stop()
    assert running.join() == 0


def test_pruner_ends_with_its_worker(app: App, start: Start) -> None:
    @app.task
    def noop() -> None: ...

    running = start()
    pruner = running.worker._pruner
    assert pruner is not None
    eventually(pruner._thread.is_alive)
    running.stop()
    assert running.join() == 0
    assert not pruner._thread.is_alive()


def test_retention_is_a_setting_with_a_default_and_an_off() -> None:
    assert WorkerConfig().retention == DEFAULTS.retention == WEEK
    assert WorkerConfig(retention=3600).retention == timedelta(hours=1)  # type: ignore[arg-type]
    assert WorkerConfig(retention=timedelta(0)).retention == timedelta(0)
    assert WorkerConfig(retention=timedelta(days=365)).retention == timedelta(days=365)
    assert WorkerConfig.of({"retention": None}).retention is None
    assert WorkerConfig.of({"retention": "off"}).retention is None
    assert WorkerConfig.of({}).retention == WEEK


@pytest.mark.parametrize("bad", [-1, timedelta(seconds=-1), "7d", True, float("nan"), timedelta(days=4000)])
def test_retention_out_of_range_is_refused(bad: Any) -> None:
    with pytest.raises(ConfigError, match="retention") as caught:
        WorkerConfig(retention=bad)
    assert caught.value.field == "retention"
