"""Callers' connections of every kind: what the queue writes in them counts when they commit, and not before."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.errors import InputError, LeaseNotHeld, RetryTransaction, TaskNotFound, TransitionRefused, WrongIsolation
from pgqueue.guest import ajoined, joined
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.options import Enqueued, NewTask
from pgqueue.store import Store
from pgqueue.task import Claimed
from tests.support import Sql, connect, databases, eventually, servers, somebody_waits

from .callers import KINDS, Caller

every_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="session")
def shop(server: servers.Provided, template: str) -> Iterator[Database]:
    """A database with a table of the caller's own beside the queue's."""
    name = databases.create(server, template)
    database = Database(server.url_for(name), schema="pgqueue")
    with connect(database.url) as connection:
        connection.execute("create table public.orders (id int primary key)")
        connection.execute("alter table pgqueue.tasks add constraint refused_by_a_check check (action <> 'refused')")
    yield database
    database.dispose()
    databases.drop(server, name)


@pytest.fixture
def look(shop: Database) -> Iterator[Sql]:
    """The database as others see it, emptied afterwards."""
    with connect(shop.url) as connection:
        connection.execute("set lock_timeout = '10s'")
        yield lambda text, *params: connection.execute(text, params or None).fetchall()
        connection.execute("delete from public.orders; delete from pgqueue.tasks; delete from pgqueue.task_events")


@pytest.fixture
def outside(shop: Database, look: Sql) -> Client:
    """Somebody else's client, with transactions of its own."""
    assert look("select count(*) from pgqueue.tasks") == [(0,)]
    return Client(shop)


def orders(look: Sql) -> list[int]:
    return [n for (n,) in look("select id from public.orders order by id")]


def tasks(look: Sql) -> list[tuple[Any, ...]]:
    return look("select id, status from pgqueue.tasks order by id")


def hold(client: Client, agent: str = "a", **options: Any) -> Claimed:
    client.enqueue("noop", None, agent=agent, **options)
    held = client.claim(agent, owner="me")
    assert held is not None
    return held


# -- what it says when it fails


@every_kind
def test_error_in_a_callers_transaction_holds_no_payload(kind: str, shop: Database, look: Sql) -> None:
    """In no text of a traceback, although a caller's engine shows parameters and the server quotes what it refuses."""
    payload = {"word": "".join(("sword", "fish"))}  # a traceback quotes this file, too
    with KINDS[kind](shop) as caller:
        for enqueue in (
            lambda: caller.client.enqueue("refused", payload),
            lambda: caller.client.enqueue_many([NewTask("refused", payload, {})]),
        ):
            with pytest.raises(Exception, match="refused_by_a_check") as caught:
                enqueue()
            caller.rollback()
            assert payload["word"] not in "".join(traceback.format_exception(caught.value))
    assert tasks(look) == []


# -- in a transaction


@every_kind
def test_enqueue_in_a_callers_transaction_counts_when_it_commits(kind: str, shop: Database, look: Sql) -> None:
    with KINDS[kind](shop) as caller:
        caller.write(1)
        made = caller.client.enqueue("noop", {"a": [1, "é"]}, agent="a", dedupe_key="k", timeout=2.5, delay=1)
        caller.write(2)
        assert made.created
        assert (orders(look), tasks(look)) == ([], [])
        caller.commit()
        assert (orders(look), tasks(look)) == ([1, 2], [(made.id, "pending")])


@every_kind
def test_enqueue_in_a_callers_transaction_is_gone_when_it_rolls_back(kind: str, shop: Database, look: Sql) -> None:
    with KINDS[kind](shop) as caller:
        caller.write(1)
        caller.client.enqueue("noop")
        caller.client.enqueue_many([NewTask("noop", n, {"dedupe_key": f"k{n}"}) for n in range(3)])
        caller.rollback()
        assert (orders(look), tasks(look)) == ([], [])
        # The connection is as usable as it was.
        caller.write(2)
        made = caller.client.enqueue("noop")
        caller.commit()
        assert (orders(look), tasks(look)) == ([2], [(made.id, "pending")])


@every_kind
def test_enqueue_of_a_duplicate_neither_raises_nor_aborts(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    with KINDS[kind](shop) as caller:
        caller.write(1)
        mine = caller.client.enqueue("noop", dedupe_key="mine")
        # Committed after the caller's transaction began.
        theirs = outside.enqueue("noop", dedupe_key="theirs")
        assert caller.client.enqueue("noop", dedupe_key="mine") == Enqueued(mine.id, created=False)
        assert caller.client.enqueue("noop", dedupe_key="theirs") == Enqueued(theirs.id, created=False)
        assert caller.client.enqueue("noop", id=theirs.id) == Enqueued(theirs.id, created=False)
        made = caller.client.enqueue_many([NewTask("noop", None, {"dedupe_key": k}) for k in ("theirs", "new", "mine")])
        assert [m.created for m in made] == [False, True, False]
        caller.write(2)
        caller.commit()
    assert orders(look) == [1, 2]
    assert len(tasks(look)) == 3


@every_kind
def test_complete_in_a_callers_transaction_commits_with_the_callers_rows(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    held = hold(outside)
    with KINDS[kind](shop) as caller:
        caller.write(1)
        assert caller.client.complete(held, {"n": 1}).status is Status.COMPLETED
        assert outside.get(held.id).status is Status.RUNNING
        caller.commit()
    assert orders(look) == [1]
    task = outside.get(held.id)
    assert (task.status, task.result) == (Status.COMPLETED, {"n": 1})


@every_kind
def test_complete_in_a_callers_transaction_is_undone_with_the_callers_rows(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    held = hold(outside)
    with KINDS[kind](shop) as caller:
        caller.write(1)
        caller.client.complete(held, {"n": 1})
        caller.rollback()
    assert orders(look) == []
    assert outside.get(held.id).status is Status.RUNNING
    assert outside.fail(held, "rolled back").status is Status.PENDING


@every_kind
def test_every_verb_in_a_callers_transaction_does_what_it_does_elsewhere(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    outside.enqueue_many([NewTask("free", n, {"priority": n}) for n in range(3)])
    outside.enqueue_many([NewTask("noop", None, {"agent": agent}) for agent in "abcdef"])
    with KINDS[kind](shop) as caller:
        client = caller.client
        (first,) = client.claim_batch("default", limit=1)
        assert (first.action, first.payload) == ("free", 2)
        renewed = client.renew(first, lease=120)
        assert renewed.deadline > first.lease.deadline
        client.report_progress(first, 50, "half")
        assert (client.get(first.id).progress, client.get(first.id).message) == (50, "half")
        assert client.complete(first).attempts == 1
        failed, buried, released, snoozed, evicted, stopped = (again(client, agent) for agent in "abcdef")
        assert client.fail(failed, "boom", delay=5).status is Status.PENDING
        assert client.bury(buried, "no").status is Status.DEAD
        assert client.retry(buried.id, by="ann").status is Status.PENDING
        assert client.release(released).status is Status.PENDING
        assert client.snooze(snoozed, 60).attempts == 0
        assert client.evict(evicted.id) is Status.PENDING
        assert client.cancel(stopped.id) is Status.RUNNING
        assert client.acknowledge_cancel(stopped).status is Status.CANCELLED
        assert client.bury(again(client, "e"), "no").status is Status.DEAD
        client.dismiss(evicted.id)
        assert client.find(str(stopped.id)) == stopped.id
        assert client.find(stopped.id.hex[-12:]) == stopped.id
        assert client.stats()["total"] == 9
        assert client.count_tasks(agent="a") == len(client.list_tasks(agent="a")) == 1
        assert [e.event for e in client.events(evicted.id)] == ["evict", "bury", "dismiss"]
        assert client.reap() == []
        assert outside.stats()["pending"] == 9
        caller.commit()
    assert outside.stats() == {"pending": 6, "running": 0, "completed": 1, "dead": 0, "cancelled": 2, "total": 9}


def again(client: Client, agent: str) -> Claimed:
    held = client.claim(agent)
    assert held is not None
    return held


@every_kind
def test_refusal_in_a_callers_transaction_leaves_it_usable(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    lost = hold(outside)
    outside.evict(lost.id)
    with KINDS[kind](shop) as caller:
        caller.write(1)
        with pytest.raises(LeaseNotHeld):
            caller.client.complete(lost)
        with pytest.raises(TransitionRefused):
            caller.client.retry(lost.id)
        with pytest.raises(TaskNotFound):
            caller.client.cancel(new_id())
        with pytest.raises(InputError):
            caller.client.enqueue("noop", priority=99)
        caller.write(2)
        caller.commit()
    assert orders(look) == [1, 2]
    assert tasks(look) == [(lost.id, "pending")]


@every_kind
def test_connection_is_as_it_was_afterwards(kind: str, shop: Database, look: Sql) -> None:
    with KINDS[kind](shop) as caller:
        caller.write(1)
        before = caller.state()
        for n in range(8):  # more often than it takes to prepare
            caller.client.enqueue("noop", n, dedupe_key="k")
        assert caller.client.list_tasks().tasks
        assert caller.state() == before
        caller.rollback()


@every_kind
def test_savepoint_of_the_caller_takes_back_what_was_enqueued_in_it(kind: str, shop: Database, look: Sql) -> None:
    with KINDS[kind](shop) as caller:
        before = caller.client.enqueue("noop", 1)
        with pytest.raises(ZeroDivisionError), caller.savepoint():  # noqa: PT012 - what comes before is undone
            caller.write(1)
            caller.client.enqueue("noop", 2)
            raise ZeroDivisionError
        with caller.savepoint():
            caller.write(2)
            inside = caller.client.enqueue("noop", 3)
        after = caller.client.enqueue("noop", 4)
        caller.commit()
    assert orders(look) == [2]
    assert [task_id for task_id, _ in tasks(look)] == [before.id, inside.id, after.id]


# -- at higher levels


@every_kind
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_enqueue_of_a_twin_committed_after_the_snapshot_asks_to_run_the_transaction_again(
    kind: str, level: str, shop: Database, outside: Client, look: Sql
) -> None:
    with KINDS[kind](shop, isolation=level) as caller:
        caller.write(1)
        assert caller.client.stats()["total"] == 0  # the snapshot is taken, in a pipeline too
        twin = outside.enqueue("noop", dedupe_key="k")
        with pytest.raises(RetryTransaction, match="roll back and run it again"):
            caller.client.enqueue("noop", dedupe_key="k")
        caller.rollback()
        caller.write(1)
        assert caller.client.enqueue("noop", dedupe_key="k") == Enqueued(twin.id, created=False)
        caller.commit()
    assert orders(look) == [1]


@every_kind
def test_settle_in_a_repeatable_read_transaction_is_refused_before_it_writes(
    kind: str, shop: Database, outside: Client, look: Sql
) -> None:
    held = hold(outside)
    waiting = outside.enqueue("noop")
    before = look("select t::text, xmin::text from pgqueue.tasks t order by id")
    with KINDS[kind](shop, isolation="REPEATABLE READ") as caller:
        caller.write(1)
        for verb, arguments in (
            ("complete", (held,)),
            ("fail", (held, "boom")),
            ("bury", (held, "no")),
            ("release", (held,)),
            ("snooze", (held, 5)),
            ("acknowledge_cancel", (held,)),
            ("cancel", (waiting.id,)),
            ("dismiss", (waiting.id,)),
            ("evict", (held.id,)),
            ("reap", ()),
        ):
            with pytest.raises(WrongIsolation, match=f"{verb} was joined to a REPEATABLE READ.*use a READ COMMITTED"):
                getattr(caller.client, verb)(*arguments)
        caller.write(2)
        made = caller.client.enqueue("noop")
        caller.commit()
    assert orders(look) == [1, 2]
    assert look("select t::text, xmin::text from pgqueue.tasks t where id <> %s order by id", made.id) == before


# -- in autocommit

in_autocommit = pytest.mark.parametrize(
    ("kind", "way"),
    [
        pytest.param(kind, way, id=f"{kind}-{way}")
        for kind in KINDS
        for way in ("engine", "options")
        if not (kind.startswith("bare") and way == "options")
    ],
)


@in_autocommit
def test_verb_on_an_autocommit_connection_commits_by_itself(
    kind: str, way: str, shop: Database, outside: Client, look: Sql
) -> None:
    with KINDS[kind](shop, autocommit=way) as caller:
        caller.write(1)
        before = caller.state()
        made = caller.client.enqueue("noop", agent="a")
        assert tasks(look) == [(made.id, "pending")]
        caller.client.enqueue_many([NewTask("noop", n, {"dedupe_key": f"k{n % 2}"}) for n in range(4)])
        assert len(tasks(look)) == 3
        held = again(caller.client, "a")
        assert outside.get(held.id).status is Status.RUNNING
        caller.client.complete(held, 1)
        assert outside.get(held.id).status is Status.COMPLETED
        assert caller.state() == before
        caller.write(2)
    assert orders(look) == [1, 2]


@in_autocommit
def test_verb_that_fails_on_an_autocommit_connection_leaves_nothing_half_done(
    kind: str, way: str, shop: Database, outside: Client, look: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        del args
        raise ZeroDivisionError

    waiting = outside.enqueue("noop", dedupe_key="k")
    with KINDS[kind](shop, autocommit=way) as caller:
        caller.write(1)
        with pytest.raises(TransitionRefused):
            caller.client.retry(waiting.id)
        caller.write(2)
        # By then the task has been written.
        with monkeypatch.context() as broken:
            broken.setattr(Store, "_record", fails)
            with pytest.raises(ZeroDivisionError):
                caller.client.cancel(waiting.id)
        assert tasks(look) == [(waiting.id, "pending")]
        caller.write(3)
        made = caller.client.enqueue("noop")
        assert (orders(look), len(tasks(look)), made.created) == ([1, 2, 3], 2, True)


@pytest.mark.parametrize("kind", ["bare", "bare-async", "bare-dict-row", "bare-pipeline"])
def test_enqueue_in_a_block_of_an_autocommit_connection_counts_at_the_blocks_end(
    kind: str, shop: Database, look: Sql
) -> None:
    with KINDS[kind](shop, autocommit="engine") as caller:
        with pytest.raises(ZeroDivisionError), caller.savepoint():  # noqa: PT012 - what comes before is undone
            caller.client.enqueue("noop")
            raise ZeroDivisionError
        assert tasks(look) == []
        with caller.savepoint():
            made = caller.client.enqueue("noop")
            assert tasks(look) == []
        assert tasks(look) == [(made.id, "pending")]


# -- what is no connection


class NotAConnection:
    pass


@pytest.mark.parametrize("what", [None, "postgresql://", 5, NotAConnection(), object])
def test_on_what_is_no_connection_is_refused(untouched: Client, what: Any) -> None:
    with pytest.raises(InputError, match=r"expected a .*[cC]onnection or [sS]ession") as caught:
        untouched.on(what).enqueue("noop")
    assert caught.value.field == "connection"


@pytest.mark.parametrize(
    "kind", ["async-psycopg-connection", "async-asyncpg-session", "bare-async", "async-psycopg-scoped"]
)
def test_on_an_asynchronous_connection_points_to_the_async_verb(kind: str, shop: Database) -> None:
    with KINDS[kind](shop) as caller, pytest.raises(InputError, match="use the async verb"):
        Client(shop).on(caller.connection).enqueue("noop")


@pytest.mark.parametrize("kind", ["psycopg-connection", "psycopg2-session", "bare", "psycopg-scoped"])
def test_async_client_on_a_synchronous_connection_is_refused(kind: str, shop: Database) -> None:
    import asyncio

    async def enqueue(caller: Caller) -> None:
        await AsyncClient(shop).on(caller.connection).enqueue("noop")

    with KINDS[kind](shop) as caller, pytest.raises(InputError, match="expected a SQLAlchemy AsyncConnection"):
        asyncio.run(enqueue(caller))


def test_on_leaves_the_client_itself_alone(shop: Database, look: Sql) -> None:
    client = Client(shop, owner="me")
    with KINDS["bare"](shop) as caller:
        joined_client = client.on(caller.connection)
        joined_client.enqueue("noop")
        assert client.stats()["total"] == 0
        assert client.enqueue("noop").created
        assert (joined_client.owner, joined_client.database) == (client.owner, client.database)
        caller.rollback()
    assert len(tasks(look)) == 1


def test_joined_to_one_connection_in_two_threads_keeps_them_apart(shop: Database, look: Sql) -> None:
    # Which bare connection a statement runs on is found by context, not by the process.
    client = Client(shop)
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work(number: int) -> None:
        try:
            with KINDS["bare"](shop) as caller:
                start.wait(30)
                for n in range(20):
                    client.on(caller.connection).enqueue("noop", [number, n])
                caller.commit() if number % 2 else caller.rollback()
        except BaseException as failure:  # noqa: BLE001 - shown below
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert look("select payload->>0, count(*) from pgqueue.tasks group by 1 order by 1") == [("1", 20), ("3", 20)]


def test_joined_to_two_bare_connections_at_once_keeps_them_apart(shop: Database, look: Sql) -> None:
    with KINDS["bare"](shop) as one, KINDS["bare"](shop) as two:
        with joined(one.connection) as outer:
            with joined(two.connection) as inner:
                inner.exec_driver_sql("insert into public.orders values (2)")
            outer.exec_driver_sql("insert into public.orders values (1)")
        one.commit()
        two.rollback()
    assert orders(look) == [1]


def test_ajoined_is_for_asynchronous_connections(shop: Database) -> None:
    import asyncio

    async def scenario() -> int:
        connection = await psycopg.AsyncConnection.connect(shop.url)
        async with connection, ajoined(connection) as guest:
            return int((await guest.exec_driver_sql("select 41 + 1")).scalar_one())

    assert asyncio.run(scenario()) == 42


def test_enqueue_beside_a_callers_uncommitted_twin_waits_for_it(shop: Database, look: Sql) -> None:
    client = Client(shop)
    answers: list[Enqueued] = []
    with KINDS["psycopg2-session"](shop) as caller:
        caller.client.enqueue("noop", dedupe_key="k")
        other = threading.Thread(target=lambda: answers.append(client.enqueue("noop", dedupe_key="k")))
        other.start()
        eventually(lambda: somebody_waits(look))
        caller.rollback()
        other.join(30)
    assert [a.created for a in answers] == [True]
