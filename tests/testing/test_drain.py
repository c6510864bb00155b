"""`drain`: what is due runs here, in order, in the app's own transactions or in the caller's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from pgqueue import App, Context, InputError, PayloadError, Permanent, Snooze, Status, UnknownAction, WrongIsolation
from pgqueue.database import Database
from pgqueue.testing import Ran, drain, in_transaction
from tests.support import Sql


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    app = App(database_url)
    yield app
    app.client.close()


@pytest.fixture(params=["own transactions", "a caller's transaction"])
def drained(request: pytest.FixtureRequest, app: App, database: Database, sql: Sql) -> Iterator[Callable[..., Any]]:
    """`drain` over the app, once as it commits and once in a transaction that never does."""
    if request.param == "own transactions":
        yield lambda **options: drain(app, **options)
        return
    with database.engine.connect() as connection:
        with in_transaction(app, connection):
            yield lambda **options: drain(app, **options)
        connection.rollback()
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_everything_due_runs_in_order_with_what_it_enqueues(app: App, drained: Callable[..., list[Ran]]) -> None:
    story: list[str] = []

    @app.task
    def first(n: int) -> int:
        story.append(f"first {n}")
        second.using(priority=1).enqueue(n=n)
        return n

    @app.task(queue="other")
    async def second(ctx: Context, n: int) -> None:
        story.append(f"second {n}")
        if n == 1:
            await third.aenqueue(m=n)

    @app.task(queue="other")
    async def third(ctx: Context, m: int) -> str:
        story.append(f"third {m}")
        return "end"

    first.enqueue(n=1)
    first.enqueue(n=2)
    first.using(delay=3600).enqueue(n=3)
    ran = drained()
    assert sorted(story) == ["first 1", "first 2", "second 1", "second 2", "third 1"]
    assert [one for one in story if one.startswith("first")] == ["first 1", "first 2"]
    assert story.index("second 1") < story.index("third 1")
    assert {(one.action, one.status, one.attempt) for one in ran} == {
        (name, Status.COMPLETED, 1) for name in ("first", "second", "third")
    }
    assert [one.value for one in ran if one.action == "third"] == ["end"]
    assert app.client.count_tasks(status="completed") == 5
    assert drained() == []


def test_outcomes_are_a_workers(app: App, drained: Callable[..., list[Ran]]) -> None:
    @app.task(max_attempts=2)
    def ends(how: str) -> Any:
        match how:
            case "raise":
                raise ValueError("boom")
            case "permanent":
                raise Permanent("never")
            case "snooze":
                return Snooze(60)
            case "exit":
                raise SystemExit(1)
            case "set":
                return {1, 2}
        return how

    for how in ("raise", "permanent", "snooze", "exit", "set", "fine"):
        ends.using(priority=0).enqueue(how=how)
    app.client.enqueue("ends", {"how": 3})
    app.client.enqueue("unheard of")
    ran = drained()
    assert [(type(one.error), one.status, one.detail is not None) for one in ran] == [
        (ValueError, Status.PENDING, True),
        (Permanent, Status.DEAD, True),
        (type(None), Status.PENDING, False),
        (SystemExit, Status.PENDING, True),
        (type(None), Status.DEAD, True),
        (type(None), Status.COMPLETED, False),
        (PayloadError, Status.DEAD, True),
        (UnknownAction, Status.PENDING, False),
    ]
    assert "ValueError: boom" in str(app.client.get(ran[0].id).last_error)
    assert drained() == []
    app.client.reschedule(ran[0].id, delay=0)
    [again] = drained()
    assert (again.id, again.attempt, again.status) == (ran[0].id, 2, Status.DEAD)


def test_raise_errors_raises_what_the_handler_raised_after_its_row_says_so(
    app: App, drained: Callable[..., list[Ran]]
) -> None:
    @app.task
    def breaks() -> None:
        raise ValueError("boom")

    @app.task
    def useless() -> Any:
        return {1}

    made = breaks.enqueue()
    with pytest.raises(ValueError, match="boom"):
        drained(raise_errors=True)
    assert app.client.get(made.id).attempts == 1
    useless.enqueue()
    with pytest.raises(AssertionError, match="useless: the work is done, but its result cannot be kept"):
        drained(raise_errors=True)


def test_handler_that_enqueues_itself_meets_the_limit(app: App, drained: Callable[..., list[Ran]]) -> None:
    @app.task
    def again() -> None:
        again.enqueue()

    again.enqueue()
    with pytest.raises(AssertionError, match="5 tasks have run and more are due, the next of 'again'"):
        drained(limit=5)
    assert app.client.count_tasks(status="running") == 0


def test_children_run_after_their_parents_and_agents_one_at_a_time(app: App, drained: Callable[..., list[Ran]]) -> None:
    story: list[str] = []

    @app.task
    def step(name: str) -> str:
        story.append(name)
        return name

    @app.task
    def gathers(ctx: Context) -> None:
        story.append("+".join(sorted(str(parent.result) for parent in ctx.parents())))

    parents = [step.enqueue(name=name) for name in "ab"]
    gathers.using(depends_on=parents).enqueue()
    step.using(agent="host-1").enqueue(name="c")
    step.using(agent="host-1").enqueue(name="d")
    step.using(requires=["gpu"]).enqueue(name="e")
    drained()
    assert story.index("a+b") > max(story.index("a"), story.index("b"))
    assert story.index("c") < story.index("d")
    assert "e" not in story
    drained(offers=["gpu"])
    assert story[-1] == "e"


def test_lifespan_and_middleware_are_a_workers(app: App, drained: Callable[..., list[Ran]]) -> None:
    story: list[Any] = []

    @contextlib.asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[str]:
        story.append("open")
        yield "state"
        story.append("close")

    def around(ctx: Context, call: Callable[[], Any]) -> Any:
        story.append(ctx.state)
        return call()

    app.lifespan = lifespan
    app._around = App(middleware=[around])._around

    @app.task
    def plain() -> None:
        story.append("plain")

    plain.enqueue()
    drained()
    assert story == ["open", "state", "plain", "close"]


def test_progress_and_waiting_for_what_has_ended(app: App, drained: Callable[..., list[Ran]]) -> None:
    @app.task
    def works(ctx: Context) -> None:
        ctx.progress(40, "half way")
        assert app.client.get(ctx.id).progress == 40

    made = works.enqueue()
    drained(raise_errors=True)
    assert made.wait(0).status is Status.COMPLETED


def test_test_frameworks_own_exceptions_pass(app: App, drained: Callable[..., list[Ran]]) -> None:
    @app.task
    def asserts() -> None:
        pytest.fail("in the handler")

    @app.task
    async def interrupted() -> None:
        raise KeyboardInterrupt

    asserts.enqueue()
    with pytest.raises(pytest.fail.Exception, match="in the handler"):
        drained()
    interrupted.enqueue()
    with pytest.raises(KeyboardInterrupt):
        drained()


# -- in a transaction


def test_handler_whose_sql_failed_in_the_transaction_has_its_outcome_written(app: App, database: Database) -> None:
    with database.engine.connect() as connection:

        @app.task(max_attempts=1)
        def breaks() -> None:
            after.enqueue()
            connection.execute(sa.text("select 1/0"))

        @app.task
        def after() -> None: ...

        with in_transaction(app, connection):
            made = breaks.enqueue()
            [ran] = drain(app)
            assert ran.status is Status.DEAD
            assert "division by zero" in str(app.client.get(made.id).last_error)


def test_what_a_failed_handler_enqueued_stays_as_it_does_in_a_worker(
    app: App, drained: Callable[..., list[Ran]]
) -> None:
    @app.task(max_attempts=1)
    def breaks() -> None:
        after.enqueue()
        raise ValueError("boom")

    @app.task
    def after() -> None: ...

    breaks.enqueue()
    assert [(one.action, one.status) for one in drained()] == [("breaks", Status.DEAD), ("after", Status.COMPLETED)]


def test_sessions_on_the_same_connection_take_part(app: App, database: Database, sql: Sql) -> None:
    with database.engine.connect() as connection:
        connection.begin()
        session = Session(connection, join_transaction_mode="create_savepoint")
        session.execute(sa.text("create temporary table orders (number int)"))
        session.commit()

        @app.task
        def ship(ctx: Context, number: int) -> None:
            session.execute(sa.text("insert into orders values (:number)"), {"number": number})
            if number == 1:
                ctx.complete("in the session", connection=session)
            session.commit()
            session.execute(sa.text("select 1"))  # left open, with a savepoint of its own

        with in_transaction(app, connection):
            for number in range(3):
                ship.enqueue_on(session, number=number)
            session.commit()
            assert [one.status for one in drain(app, raise_errors=True)] == [Status.COMPLETED] * 3
            session.commit()
            assert session.execute(sa.text("select count(*) from orders")).scalar_one() == 3
        session.close()
        connection.rollback()
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_completion_that_was_not_committed_is_a_failure_as_in_a_worker(app: App, database: Database) -> None:
    @app.task
    def forgets(ctx: Context) -> None:
        with database.engine.connect() as connection:
            ctx.complete(connection=connection)

    forgets.enqueue()
    [ran] = drain(app)
    assert (ran.status, ran.error) == (Status.PENDING, None)
    assert "never committed" in str(ran.detail)


@pytest.mark.parametrize("kind", ["connection", "session", "psycopg"])
def test_every_kind_of_synchronous_connection(app: App, database: Database, kind: str, sql: Sql) -> None:
    app.task(name="work")(lambda: None)
    with contextlib.ExitStack() as stack:
        connection: Any
        if kind == "psycopg":
            connection = stack.enter_context(psycopg.connect(database.url))
        elif kind == "connection":
            connection = stack.enter_context(database.engine.connect())
        else:
            connection = stack.enter_context(Session(database.engine))
        app.action("work").enqueue_on(connection)
        assert [one.status for one in drain(app, connection=connection)] == [Status.COMPLETED]
        assert app.client.count_tasks() == 0
        connection.rollback()
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_transaction_that_is_not_read_committed_is_refused(app: App, database: Database) -> None:
    app.task(name="work")(lambda: None)
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as connection:
        app.action("work").enqueue_on(connection)
        with pytest.raises(WrongIsolation):
            drain(app, connection=connection)


def test_thread_with_a_running_loop_is_told_what_to_do(app: App) -> None:
    app.task(name="work")(lambda: None)
    made = app.action("work").enqueue()

    async def main() -> list[Ran]:
        with pytest.raises(InputError, match=r"await asyncio\.to_thread\(drain, app\)"):
            drain(app)
        return await asyncio.to_thread(drain, app)

    assert [one.id for one in asyncio.run(main())] == [made.id]


def test_app_is_its_own_again_after_the_block(app: App, rolled_back: Connection) -> None:
    before = app.client
    with in_transaction(app, rolled_back) as same:
        assert same is app
        assert app.client is not before
    assert app.client is before
