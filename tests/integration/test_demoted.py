"""Several hosts in the URL: the one that can be written to is used, and one that was demoted is left."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from pgqueue import App, AsyncClient, DatabaseError, OutcomeUnknown, Status, embedded, migrate
from pgqueue.client import Client
from pgqueue.config import WorkerConfig
from pgqueue.database import Database
from pgqueue.errors import EmbeddedError
from pgqueue.worker import Worker
from tests.support import connect, eventually, servers


class Node:
    """A server of a pair, with the queue's schema in it. There is no replication between them: which one answers is
    what these tests look at, and each has rows of its own.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def demote(self) -> None:
        """From now on it refuses writes, in sessions that are there already too."""
        self._set("alter system set default_transaction_read_only = on")

    def promote(self) -> None:
        self._set("alter system reset default_transaction_read_only")

    def _set(self, text: str) -> None:
        with connect(self.url) as admin:
            admin.execute(text.encode())
            admin.execute("select pg_reload_conf()")
            wanted = "on" if "set" in text and "reset" not in text else "off"
            eventually(lambda: self._reads() == wanted)

    def _reads(self) -> str:
        with connect(self.url) as fresh:
            row = fresh.execute("show default_transaction_read_only").fetchone()
        assert row is not None
        return str(row[0])

    def count(self) -> int:
        with connect(self.url) as admin:
            row = admin.execute("select count(*) from pgqueue.tasks").fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture(scope="module")
def servers_of_pair(server: servers.Provided) -> Iterator[tuple[str, str]]:
    """Two servers of our own, since a setting of the run's server would be everybody's."""
    servers._make_home()
    with contextlib.ExitStack() as stack:
        urls = []
        for name in ("one", "two"):
            try:
                one = stack.enter_context(embedded.acquire(servers.home() / name, settings=servers.SETTINGS))
            except EmbeddedError as error:
                pytest.skip(f"no server: {error}")
            urls.append(one.url)
            database = Database(one.url, schema="pgqueue")
            migrate.upgrade(database)
            database.dispose()
        yield urls[0], urls[1]


@pytest.fixture
def pair(servers_of_pair: tuple[str, str]) -> Iterator[tuple[Node, Node]]:
    nodes = (Node(servers_of_pair[0]), Node(servers_of_pair[1]))
    yield nodes
    for node in nodes:
        node.promote()
        with connect(node.url) as admin:
            admin.execute("delete from pgqueue.tasks")
            admin.execute("delete from pgqueue.workers")


def both(pair: tuple[Node, Node], **more: Any) -> str:
    one, two = (conninfo_to_dict(node.url) for node in pair)
    hosts = {key: ",".join(str(which.get(key, "")) for which in (one, two)) for key in ("host", "port")}
    return make_conninfo(pair[0].url, **hosts, **more)


def test_of_several_hosts_the_one_that_can_be_written_to_is_used(pair: tuple[Node, Node]) -> None:
    pair[0].demote()
    with Client(both(pair)) as client:
        client.enqueue("x")
    assert [node.count() for node in pair] == [0, 1]


def test_what_the_url_says_about_the_session_is_left(pair: tuple[Node, Node]) -> None:
    pair[0].demote()
    with Client(both(pair, target_session_attrs="any")) as client, pytest.raises(DatabaseError, match="read-only"):
        client.enqueue("x")
    assert [node.count() for node in pair] == [0, 0]


def test_demoted_node_is_left_by_the_call_that_finds_out(pair: tuple[Node, Node]) -> None:
    with Client(both(pair)) as client:
        assert client.enqueue("x").created
        pair[0].demote()
        # Its connection is of no use any more, and nothing was written over it: it is sent again elsewhere.
        assert client.enqueue("x").created
        assert client.stats()["total"] == 1
    assert [node.count() for node in pair] == [1, 1]


def test_demoted_node_is_left_by_asyncio_too(pair: tuple[Node, Node]) -> None:
    async def scenario() -> None:
        async with AsyncClient(both(pair)) as client:
            await client.enqueue("x")
            await asyncio.to_thread(pair[0].demote)
            await client.enqueue("x")

    asyncio.run(scenario())
    assert [node.count() for node in pair] == [1, 1]


def test_all_connections_to_a_demoted_node_are_dropped(pair: tuple[Node, Node]) -> None:
    with Client(both(pair), pool_size=4) as client, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: client.enqueue("x"), range(40)))
        pair[0].demote()
        made = list(threads.map(lambda _: client.enqueue("x"), range(40)))
    assert all(one.created for one in made)
    assert [node.count() for node in pair] == [40, 40]


def test_read_only_server_without_another_says_what_it_is_and_that_nothing_was_written(
    pair: tuple[Node, Node],
) -> None:
    with Client(pair[0].url) as client:
        client.enqueue("x")
        pair[0].demote()
        for verb in (lambda: client.enqueue("x"), lambda: client.pause("queue", "x"), client.claim_batch):
            with pytest.raises(DatabaseError, match="read-only") as refused:
                verb()
            assert not isinstance(refused.value, OutcomeUnknown)
        assert client.stats()["total"] == 1
        pair[0].promote()
        assert client.enqueue("x").created


def test_connection_of_the_caller_is_the_callers_to_drop(pair: tuple[Node, Node]) -> None:
    pair[0].demote()
    with psycopg.connect(pair[0].url) as connection, Client(pair[1].url) as client:
        with pytest.raises(DatabaseError, match="read-only"):
            client.on(connection).enqueue("x")
        assert not connection.closed


def test_worker_goes_over_to_the_node_that_can_be_written_to(pair: tuple[Node, Node]) -> None:
    app = App(both(pair))

    @app.task
    def work() -> None: ...

    before = work.enqueue()
    worker = Worker(app, WorkerConfig.of({"poll": 0.05, "lease": 1, "maintenance": 0.2, "drain": 5}))
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(worker.run)
        try:
            eventually(lambda: app.client.get(before.id).status is Status.COMPLETED)
            pair[0].demote()
            after = work.enqueue()
            eventually(lambda: app.client.get(after.id).status is Status.COMPLETED)
            # It says that it is there, there too, and hears there.
            eventually(lambda: len(app.client.workers()) == 1)
            assert worker._listener is not None
            last = work.enqueue()
            eventually(lambda: app.client.get(last.id).status is Status.COMPLETED)
        finally:
            worker.stop()
        assert running.result(30) == 0
    app.client.close()
    assert [node.count() for node in pair] == [1, 2]
