"""A listener that hears nothing notices; behind a pooler everything works, with a direct URL for LISTEN or without."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest

from pgqueue import App, Status
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.notify import Listener

from ..support import Sql, connect, eventually, pooler
from .conftest import InThread, Start, became


class Heard:
    """What a listener passed on."""

    def __init__(self) -> None:
        self.all: list[str | None] = []

    def __call__(self, payload: str | None) -> None:
        self.all.append(payload)


@pytest.fixture
def heard() -> Heard:
    return Heard()


def listens(database: Database, heard: Heard, **options: float) -> Listener:
    listener = Listener(database, heard, **options)
    listener.start()
    return listener


def test_listener_counts_as_hearing_when_it_has_heard_itself(database: Database, heard: Heard, sql: Sql) -> None:
    listener = listens(database, heard)
    try:
        assert listener.listening.wait(30)
        eventually(lambda: heard.all == [None])
        sql("notify pgqueue_tasks, 'mail'")
        eventually(lambda: heard.all == [None, "mail"])
        # What other listeners ask themselves means nothing here.
        sql("notify pgqueue_tasks, E'\\x01echo other'")
        sql("notify pgqueue_tasks, 'more'")
        eventually(lambda: heard.all == [None, "mail", "more"])
    finally:
        listener.stop()


def test_listener_that_hears_is_quiet_and_asks_itself_only_after_a_silence(
    database: Database, heard: Heard, database_url: str
) -> None:
    with connect(database_url) as other:
        other.execute("listen pgqueue_tasks")
        listener = listens(database, heard, echo_every=0.3)
        try:
            told = [one.payload for one in other.notifies(timeout=30, stop_after=3)]
        finally:
            listener.stop()
    # Each names the same word, which means something to this listener alone.
    assert len(set(told)) == 1
    assert told[0].startswith("\x01echo ")
    assert heard.all == [None]


def test_listener_that_hears_nothing_says_so_once_and_hears_again(
    database: Database, heard: Heard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("pgqueue.notify._DEAF_WAITS", (0.01, 0.02))
    with monkeypatch.context() as deaf:
        # As behind a pooler: LISTEN is accepted, and what is told arrives elsewhere.
        deaf.setattr("pgqueue.notify.channel", lambda _: "elsewhere")
        listener = Listener(database, heard, echo_within=0.05)
        with caplog.at_level(logging.DEBUG, logger="pgqueue.listener"):
            listener.start()
            eventually(lambda: sum("do not arrive" in record.message for record in caplog.records) >= 3)
        assert not listener.listening.is_set()
        assert heard.all == []
    try:
        assert listener.listening.wait(30)
        eventually(lambda: heard.all == [None])
    finally:
        listener.stop()
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warned) == 1
    assert "PGQUEUE_LISTEN_URL" in warned[0].getMessage()


def test_listener_that_goes_deaf_later_is_noticed(
    database: Database, heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []
    raw = database.raw

    def remembered(*, listening: bool = False) -> object:
        connections.append(raw(listening=listening))
        return connections[-1]

    monkeypatch.setattr(database, "raw", remembered)
    listener = listens(database, heard, echo_every=0.1, echo_within=0.2)
    try:
        assert listener.listening.wait(30)
        # The server keeps the connection and forgets who listens, as after somebody's DISCARD ALL.
        connections[0].execute("unlisten *")
        eventually(lambda: len(connections) > 1)
        eventually(lambda: listener.listening.is_set() and heard.all.count(None) >= 2)
    finally:
        listener.stop()


def test_worker_whose_listener_is_deaf_polls_as_one_that_cannot_listen(
    app: App, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pgqueue.notify.channel", lambda _: "elsewhere")

    @app.task
    def work() -> None: ...

    worker = start(listen=True, poll=3600).worker
    assert worker._listener is not None
    for _ in range(3):
        became(app, work.enqueue().id, Status.COMPLETED)
    assert not worker._listener.listening.is_set()


def test_database_listens_elsewhere_where_it_is_told_so(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nowhere = "postgresql://nobody@/nothing?host=/nonexistent"
    assert Database(nowhere).can_listen
    assert not Database(nowhere, pooler=True).can_listen
    direct = Database(nowhere, pooler=True, listen=database_url)
    assert direct.can_listen
    assert direct.sibling().can_listen
    monkeypatch.setenv("PGQUEUE_LISTEN_URL", database_url)
    for database in (direct, direct.sibling(), Database(nowhere, pooler=True)):
        with database.raw(listening=True) as connection:
            assert connection.execute("select 1").fetchone() == (1,)


# -- through PgBouncer

bouncer = pytest.mark.skipif(pooler.program() is None, reason="PgBouncer is not on this machine")


@pytest.fixture
def through(database_url: str) -> Iterator[str]:
    with pooler.pooled(database_url) as url:
        yield url


@bouncer
@pytest.mark.parametrize("direct", [True, False])
def test_worker_behind_a_pooler_does_all_that_others_do(
    through: str, database_url: str, direct: bool, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUEUE_POOLER", "transaction")
    if direct:
        monkeypatch.setenv("PGQUEUE_LISTEN_URL", database_url)
    app = App(through)
    attempts: list[int] = []
    begun = threading.Event()

    @app.task
    def fine(n: int) -> int:
        return n

    @app.task(max_attempts=2, backoff=lambda _: 0.01)
    async def flaky() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("not yet")

    @app.task
    def long() -> None:
        begun.set()
        gate.wait(30)

    worker = InThread(app, {"listen": True, "poll": 3600 if direct else 0.05, "lease": 1, "concurrency": 8})
    try:
        many = app.client.enqueue_many(fine.using(agent=f"a-{n % 7}").new(n=n) for n in range(50))
        child = fine.using(depends_on=many[:3]).enqueue(n=7)
        again = flaky.enqueue()
        asked = long.enqueue()
        if direct:
            assert worker.worker._listener is not None
            assert worker.worker._listener.listening.wait(30)
        assert begun.wait(30)
        app.client.cancel(asked.id)
        for made in (*many, child, again):
            became(app, made.id, Status.COMPLETED)
        app.client.pause("queue", "default")
        held = fine.enqueue(n=1)
        assert app.client.claim_batch() == []
        app.client.resume("queue", "default")
        became(app, held.id, Status.COMPLETED)
        gate.set()
        became(app, asked.id, Status.COMPLETED)
    finally:
        gate.set()
        worker.stop()
        assert worker.join() == 0
        app.client.close()


@bouncer
def test_listener_through_a_pooler_is_found_to_be_deaf(
    through: str, heard: Heard, caplog: pytest.LogCaptureFixture
) -> None:
    database = Database(through, pooler=True, listen=through)
    listener = listens(database, heard, echo_within=0.3)
    try:
        eventually(lambda: any("do not arrive" in record.message for record in caplog.records))
        assert not listener.listening.is_set()
        assert Client(database).enqueue("x").created
    finally:
        listener.stop()
        database.dispose()
