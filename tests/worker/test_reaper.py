"""What becomes of tasks whose holder is gone, and when a reaper may say so."""

from __future__ import annotations

import threading
import time
import types
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import App, Claimed, DatabaseError, Status
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.maintenance import Reaper
from pgqueue.store import Reaped

from ..support import Sql, connect, eventually
from .conftest import Start, became

MINUTE = timedelta(minutes=1)


def make(database: Database, **options: Any) -> Reaper:
    settings: dict[str, Any] = {"longest_sleep": timedelta(seconds=0.2), "settle_in": timedelta(0)} | options
    return Reaper(database, **settings)


@pytest.fixture
def reaper(database: Database) -> Reaper:
    return make(database)


def lost(client: Client, lease: float = 0.05, **options: Any) -> Claimed:
    """A task that is claimed by somebody who is never heard of again."""
    made = client.enqueue("noop", {}, **options)
    return lost_again(client, lease, owner="gone", wanted=made.id)


def lost_again(client: Client, lease: float = 0.05, *, owner: str = "gone", wanted: Any = None) -> Claimed:
    claimed = eventually(lambda: client.claim_batch("default", limit=1, owner=owner, lease=lease))[0]
    assert wanted is None or claimed.id == wanted
    return claimed


def reaped(reaper: Reaper) -> list[Reaped]:
    return eventually(reaper.run_once)


# -- one pass


def test_first_expiry_returns_the_task_to_its_old_place(client: Client, reaper: Reaper) -> None:
    task = lost(client)
    (one,) = reaped(reaper)
    assert (one.id, one.status, one.owner, one.agent, one.queue) == (task.id, Status.PENDING, "gone", None, "default")
    now = client.get(task.id)
    assert (now.not_before, now.attempts, now.fence) == (task.not_before, 1, 1)
    assert now.last_error == "lease expired: gone stopped renewing (attempt 1 of 3)"
    assert (now.lease_owner, now.lease_expires_at) == (None, None)
    (event,) = client.events(task.id)
    assert (event.event, event.by, event.to_status, event.attempt) == ("expire", "gone", Status.PENDING, 1)


def test_second_expiry_waits_out_a_backoff(client: Client, reaper: Reaper) -> None:
    task = lost(client)
    reaped(reaper)
    lost_again(client, wanted=task.id)
    reaped(reaper)
    now = client.get(task.id)
    assert (now.status, now.attempts) == (Status.PENDING, 2)
    assert timedelta(seconds=4) < now.not_before - now.updated_at < timedelta(seconds=6)


def test_expiry_of_the_last_attempt_is_dead(client: Client, reaper: Reaper) -> None:
    task = lost(client, max_attempts=1)
    (one,) = reaped(reaper)
    assert one.status is Status.DEAD
    now = client.get(task.id)
    assert (now.status, now.last_error) == (Status.DEAD, "lease expired: gone stopped renewing (attempt 1 of 1)")


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_expiry_of_what_was_to_be_cancelled_is_cancelled(client: Client, reaper: Reaper, max_attempts: int) -> None:
    task = lost(client, max_attempts=max_attempts)
    client.cancel(task.id)
    (one,) = reaped(reaper)
    assert one.status is Status.CANCELLED
    assert client.get(task.id).status is Status.CANCELLED


def test_lease_that_has_not_run_out_is_nobodys_business(client: Client, reaper: Reaper) -> None:
    client.enqueue("noop")
    client.claim_batch(limit=1, lease=60)
    assert reaper.run_once() == []


def test_holder_that_is_late_but_not_yet_reaped_may_still_settle(client: Client, reaper: Reaper) -> None:
    task = lost(client)
    eventually(lambda: reaper._next_wait() == 0)
    client.complete(task)
    assert reaper.run_once() == []
    assert client.get(task.id).status is Status.COMPLETED


def test_row_that_somebody_holds_stops_no_other(client: Client, reaper: Reaper, database_url: str) -> None:
    locked, free = lost(client), lost(client)
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for update", [locked.id])
        assert [one.id for one in reaped(reaper)] == [free.id]
        other.execute("rollback")
    assert [one.id for one in reaped(reaper)] == [locked.id]


def test_two_reapers_share_and_never_reap_twice(client: Client, database: Database) -> None:
    client.enqueue_many(_noops(300))
    eventually(lambda: client.claim_batch(limit=100, lease=0.05, owner="gone") == [])
    reapers = [make(database), make(database)]
    found: list[Reaped] = []
    lock = threading.Lock()

    def work(reaper: Reaper) -> None:
        while len(found) < 300:
            done = reaper.run_once()
            with lock:
                found.extend(done)

    threads = [threading.Thread(target=work, args=[reaper], daemon=True) for reaper in reapers]
    for thread in threads:
        thread.start()
    eventually(lambda: len(found) >= 300)
    for thread in threads:
        thread.join(30)
    assert len({one.id for one in found}) == len(found) == 300


def _noops(count: int) -> Iterator[Any]:
    from pgqueue import NewTask

    return (NewTask("noop", None, {}) for _ in range(count))


# -- when it may


def test_nothing_is_reaped_before_the_server_has_been_up_for_long_enough(client: Client, database: Database) -> None:
    lost(client)
    patient = make(database, settle_in=timedelta(days=3650))
    eventually(lambda: patient._next_wait() == 0)
    assert patient.run_once() == []
    assert reaped(make(database))


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
def recorded(database: Database) -> Iterator[Callable[..., tuple[Reaper, Recorded]]]:
    made: list[Reaper] = []

    def recorded(**options: Any) -> tuple[Reaper, Recorded]:
        reaper = make(database, **options)
        reaper._stopping = event = Recorded()
        made.append(reaper)
        return reaper, event

    yield recorded
    for reaper in made:
        reaper.stop()


@pytest.mark.parametrize("lease", [0.05, 3600], ids=["expired", "for another hour"])
def test_reaper_settles_in_after_it_has_connected_and_no_longer_than_that(
    client: Client, recorded: Callable[..., tuple[Reaper, Recorded]], lease: float
) -> None:
    """In that time live holders renew; a lease that runs for an hour is no reason to look away for an hour."""
    task = lost(client, lease)
    reaper, event = recorded(settle_in=timedelta(seconds=1.5), longest_sleep=timedelta(seconds=7))
    reaper.start()
    if lease < 1:
        eventually(lambda: client.get(task.id).status is Status.PENDING, 60)
    else:
        eventually(lambda: len(event.waits) >= 3)
        assert event.waits[1] == 7
    assert event.waits[0] == 1.5


def test_reaper_settles_in_again_after_an_outage(
    client: Client, recorded: Callable[..., tuple[Reaper, Recorded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reaper, event = recorded(settle_in=timedelta(seconds=1.5), longest_sleep=timedelta(seconds=7))
    reaper.start()
    eventually(lambda: 7 in event.waits)

    def away(*_: Any, **__: Any) -> Any:
        raise DatabaseError("the server cannot be reached")

    look = reaper._store.earliest_expiry
    monkeypatch.setattr(reaper._store, "earliest_expiry", away)
    eventually(lambda: event.waits[-1] not in (7, 1.5))
    before = len(event.waits)
    monkeypatch.setattr(reaper._store, "earliest_expiry", look)
    eventually(lambda: event.waits[-1] == 7)
    assert 1.5 in event.waits[before - 1 :]


def test_reaper_outlives_what_it_does_not_understand(
    client: Client, recorded: Callable[..., tuple[Reaper, Recorded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reaper, _ = recorded()
    calls: list[int] = []
    look = reaper._store.earliest_expiry

    def strange(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) < 3:
            raise RuntimeError("a bug of ours")
        return look(*args, **kwargs)

    monkeypatch.setattr(reaper._store, "earliest_expiry", strange)
    task = lost(client)
    reaper.start()
    eventually(lambda: client.get(task.id).status is Status.PENDING)


def test_reaper_sees_a_lease_that_is_shorter_than_those_it_knew(client: Client, reaper: Reaper) -> None:
    """The floor of its looks stays below the server's now, or a short lease would hide under a long one's end."""
    client.enqueue("noop")
    client.claim_batch(limit=1, lease=3600)
    assert reaper._next_wait() > 3000
    short = lost(client)
    eventually(lambda: reaper._next_wait() == 0)
    assert [one.id for one in reaped(reaper)] == [short.id]


def test_start_and_stop_come_in_any_order_and_twice(reaper: Reaper) -> None:
    reaper.stop()
    reaper.start()
    reaper.stop()
    assert not reaper._thread.is_alive()


# -- in a worker


def test_worker_runs_what_another_one_lost(app: App, start: Start) -> None:
    ran: list[int] = []

    @app.task
    def noop() -> None:
        ran.append(1)

    task = lost(app.client, 1.0)
    start(lease=0.6)
    now = became(app, task.id, Status.COMPLETED)
    assert (now.attempts, now.fence, len(ran)) == (2, 2, 1)


def test_agent_of_a_lost_task_goes_on_in_order(app: App, start: Start) -> None:
    ran: list[int] = []

    @app.task
    def noop(n: int) -> None:
        ran.append(n)

    for n in range(3):
        noop.using(agent="a").enqueue(n=n)
    assert app.client.claim("a", lease=1, owner="gone")
    start(lease=0.6)
    eventually(lambda: app.client.stats()["completed"] == 3)
    assert ran == [0, 1, 2]


def test_reap_wakes_a_worker_that_would_sleep_for_an_hour(app: App, start: Start) -> None:
    @app.task
    def noop() -> None: ...

    task = lost(app.client, 1.0)
    start(lease=0.6, listen=True, poll=3600)
    eventually(lambda: app.client.get(task.id).status is Status.COMPLETED)


def test_expired_lease_below_the_floors_is_found_again(app: App, start: Start, sql: Sql) -> None:
    """What keeps its place comes back with an old time, below what the worker has claimed since."""

    @app.task
    def noop() -> None: ...

    task = lost(app.client, 1.0)
    sql("update pgqueue.tasks set not_before = now() - interval '1 hour' where id = %s", task.id)
    start(lease=0.6)
    for _ in range(20):
        noop.enqueue()
    eventually(lambda: app.client.get(task.id).status is Status.COMPLETED)


def test_reaper_settles_in_again_after_a_pause_in_which_nobody_could_renew(
    client: Client, recorded: Callable[..., tuple[Reaper, Recorded]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was suspended, a server that was frozen: no connection broke, and every lease has run out."""
    reaper, event = recorded(settle_in=timedelta(seconds=1.5), longest_sleep=timedelta(seconds=7))
    reaper.start()
    eventually(lambda: 7 in event.waits)
    ahead = 60.0
    before = len(event.waits)
    monkeypatch.setattr(
        "pgqueue.maintenance.reap.time", types.SimpleNamespace(monotonic=lambda: time.monotonic() + ahead)
    )
    eventually(lambda: 7 in event.waits[before + 2 :])
    assert event.waits[before - 1 :].count(1.5) == 1


def test_reaper_asks_less_and_less_for_what_it_cannot_have(
    client: Client, recorded: Callable[..., tuple[Reaper, Recorded]]
) -> None:
    lost(client)
    never = timedelta(days=3650)
    reaper, event = recorded(settle_in=never, longest_sleep=timedelta(seconds=7))
    reaper.start()
    eventually(lambda: event.waits.count(1.0) >= 2)
    assert event.waits[0] == never.total_seconds()
    tries = event.waits[event.waits.index(0.05) :]
    assert tries[:7] == [0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
