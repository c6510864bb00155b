"""Who comes for the edges that a commit or an ending had to leave, and when."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue import App, DatabaseError, Status, new_id
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.edges import Fate
from pgqueue.maintenance import Sweeper
from pgqueue.store import Swept

from ..support import Sql, connect, eventually
from ..support.edges import completed, is_free, parent, waits
from .conftest import Burst, Start, became


def make(database: Database, longest: float = 3600) -> Sweeper:
    return Sweeper(database, longest_sleep=timedelta(seconds=longest))


@pytest.fixture
def sweeper(database: Database) -> Iterator[Sweeper]:
    sweeper = make(database)
    yield sweeper
    sweeper.stop()


@pytest.fixture
def started(database: Database) -> Iterator[Callable[..., Sweeper]]:
    made: list[Sweeper] = []

    def started(longest: float = 3600) -> Sweeper:
        made.append(make(database, longest))
        made[-1].start()
        return made[-1]

    yield started
    for sweeper in made:
        sweeper.stop()


def left_over(client: Client, sql: Sql, **options: Any) -> UUID:
    """A child whose parent completed while its transaction was open."""
    above = parent(client)
    with client.database.begin() as mine:
        below = client.on(mine).enqueue("child", {}, depends_on=[above], **options).id
        completed(client, sql, above)
    return below


# -- one pass


def test_pass_frees_what_was_left_over(client: Client, sql: Sql, sweeper: Sweeper) -> None:
    below = left_over(client, sql)
    assert waits(client, below)
    assert sweeper._next_wait() == 0
    assert [(one.child, one.fate) for one in sweeper.run_once()] == [(below, Fate.LIFT)]
    assert is_free(client, below)
    assert sweeper.run_once() == []
    assert sweeper._next_wait() == 3600


def test_sleeps_until_the_first_edge_is_due(client: Client, sql: Sql, sweeper: Sweeper) -> None:
    client.enqueue("child", None, depends_on=[new_id()])
    assert 200 < sweeper._next_wait() <= 300


def test_edge_that_is_due_now_is_seen_while_others_wait(client: Client, sql: Sql, sweeper: Sweeper) -> None:
    """The floor stays below the server's now, or a late edge would hide under an absent parent's."""
    client.enqueue("child", None, depends_on=[new_id()])
    assert sweeper._next_wait() > 200
    below = left_over(client, sql)
    assert sweeper._next_wait() == 0
    assert [one.child for one in sweeper.run_once()] == [below]


def test_edge_below_the_floor_is_found_by_the_next_full_look(
    client: Client, sql: Sql, sweeper: Sweeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written long before it was committed."""
    client.enqueue("child", None, depends_on=[new_id()])
    assert sweeper._next_wait() > 200
    below = left_over(client, sql)
    sql("update pgqueue.task_dependencies set look_at = now() - interval '1 hour' where child_id = %s", below)
    assert sweeper._next_wait() > 0
    sweeper._full_at = 0.0
    assert sweeper._next_wait() == 0
    assert [one.child for one in sweeper.run_once()] == [below]


def test_parent_that_never_appeared_is_in_the_log(
    client: Client, sql: Sql, sweeper: Sweeper, caplog: pytest.LogCaptureFixture
) -> None:
    missing = new_id()
    below = client.enqueue("child", None, depends_on=[missing]).id
    sql("update pgqueue.task_dependencies set look_at = now()")
    with caplog.at_level(logging.WARNING, "pgqueue.sweeper"):
        sweeper.run_once()
    assert [record.getMessage() for record in caplog.records] == [
        f"task {below} no longer waits for its parent {missing}, which never appeared"
    ]
    assert is_free(client, below)


def test_two_sweepers_share_and_never_free_twice(client: Client, database: Database, sql: Sql) -> None:
    ids = [left_over(client, sql) for _ in range(40)]
    sweepers = [make(database), make(database)]
    found: list[Swept] = []

    def work(sweeper: Sweeper) -> None:
        while done := sweeper.run_once():
            found.extend(done)

    threads = [threading.Thread(target=work, args=[sweeper], daemon=True) for sweeper in sweepers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(one.child for one in found) == sorted(ids)
    assert all(is_free(client, one) for one in ids)


# -- the loop


def test_wake_up_ends_its_sleep(client: Client, sql: Sql, started: Callable[..., Sweeper]) -> None:
    sweeper = started()
    eventually(lambda: sweeper._floor.year > 1970 or sweeper._full_at > 0)
    below = left_over(client, sql)
    sweeper.wake()
    eventually(lambda: is_free(client, below))


def test_looks_by_itself_where_nobody_wakes_it(client: Client, sql: Sql, started: Callable[..., Sweeper]) -> None:
    started(longest=0.05)
    below = left_over(client, sql)
    eventually(lambda: is_free(client, below))


def test_child_that_somebody_has_locked_is_freed_when_he_lets_go(
    client: Client, sql: Sql, database_url: str, started: Callable[..., Sweeper]
) -> None:
    below = left_over(client, sql)
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [below])
        sweeper = started(longest=0.05)
        passes = sweeper._pass
        looks: list[int] = []

        def counted() -> list[Swept]:
            looks.append(1)
            return passes()

        sweeper._pass = counted  # type: ignore[method-assign]
        eventually(lambda: len(looks) >= 3)
        assert waits(client, below)
        other.execute("rollback")
    eventually(lambda: is_free(client, below))


def test_sweeper_outlives_an_outage_and_what_it_does_not_understand(
    client: Client, sql: Sql, started: Callable[..., Sweeper]
) -> None:
    sweeper = started(longest=0.05)
    look, failures = sweeper._next_wait, [DatabaseError("away"), RuntimeError("a bug of ours"), DatabaseError("away")]

    def strange() -> float:
        if failures:
            raise failures.pop()
        return look()

    sweeper._next_wait = strange  # type: ignore[method-assign]
    below = left_over(client, sql)
    eventually(lambda: is_free(client, below))
    assert failures == []


def test_start_and_stop_come_in_any_order_and_twice(sweeper: Sweeper) -> None:
    sweeper.stop()
    sweeper.start()
    sweeper.stop()
    assert not sweeper._thread.is_alive()


# -- in a worker


@pytest.fixture
def ran(app: App) -> list[UUID]:
    """The children that ran."""
    from pgqueue import Context

    ran: list[UUID] = []

    @app.task
    def child(ctx: Context) -> None:
        ran.append(ctx.id)

    return ran


def settled(app: App) -> None:
    """The worker has looked at everything, and sleeps."""
    eventually(lambda: app.client.stats()["pending"] == 0)


def test_worker_that_listens_is_woken_by_the_notification_of_a_commit(
    app: App, start: Start, ran: list[UUID], sql: Sql
) -> None:
    worker = start(listen=True, poll=3600, maintenance=3600)
    eventually(lambda: worker.worker._listener is not None and worker.worker._listener.listening.is_set())
    first = app.client.enqueue("child", {}).id
    eventually(lambda: ran == [first])
    below = left_over(app.client, sql)
    became(app, below, Status.COMPLETED)
    assert ran == [first, below]


def test_worker_that_listens_is_woken_by_the_notification_of_an_ending(
    app: App, start: Start, ran: list[UUID], sql: Sql, database_url: str
) -> None:
    worker = start(listen=True, poll=3600, maintenance=3600)
    eventually(lambda: worker.worker._listener is not None and worker.worker._listener.listening.is_set())
    above = parent(app.client)
    below = app.client.enqueue("child", {}, depends_on=[above]).id
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [below])
        completed(app.client, sql, above)
        other.execute("rollback")
    became(app, below, Status.COMPLETED)


def test_worker_that_is_deaf_finds_it_by_its_own_poll(app: App, start: Start, ran: list[UUID], sql: Sql) -> None:
    start()
    below = left_over(app.client, sql)
    became(app, below, Status.COMPLETED)
    assert ran == [below]


def test_burst_ends_only_when_what_its_sweep_frees_has_run(app: App, burst: Burst, ran: list[UUID], sql: Sql) -> None:
    ids = [left_over(app.client, sql) for _ in range(3)]
    last = app.client.enqueue("child", {}, depends_on=ids).id
    assert burst(maintenance=3600) == 0
    assert set(ran) == {*ids, last}
    assert app.client.stats()["pending"] == 0


def test_what_the_loop_has_freed_is_told_to_whoever_looks_next(
    client: Client, sql: Sql, started: Callable[..., Sweeper]
) -> None:
    """A burst that has just found nothing to claim, and finds nothing to sweep, would end too soon."""
    sweeper = started(longest=0.05)
    below = left_over(client, sql)
    eventually(lambda: is_free(client, below))
    assert [one.child for one in sweeper.run_once()] == [below]
    assert sweeper.run_once() == []


def test_burst_does_not_wait_for_who_may_appear(app: App, burst: Burst, ran: list[UUID], sql: Sql) -> None:
    waiting = app.client.enqueue("child", {}, depends_on=[new_id()]).id
    assert burst() == 0
    assert ran == []
    assert waits(app.client, waiting)


def test_handlers_see_their_parents(app: App, burst: Burst) -> None:
    from pgqueue import Context

    seen: list[tuple[Any, ...]] = []

    @app.task
    def count(n: int) -> int:
        return n

    @app.task
    def total(ctx: Context) -> None:
        seen.append(tuple((one.status, one.result) for one in ctx.parents()))

    @app.task
    async def async_total(ctx: Context) -> None:
        seen.append(tuple((one.status, one.result) for one in await ctx.aparents()))

    parents = [count.enqueue(n=n) for n in range(3)]
    total.using(depends_on=parents).enqueue()
    async_total.using(depends_on=parents).enqueue()
    assert burst() == 0
    assert seen == [tuple((Status.COMPLETED, n) for n in range(3))] * 2
