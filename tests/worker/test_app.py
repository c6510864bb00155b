"""Apps and actions: how they are declared, what they enqueue, and what calling one does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import pgqueue
from pgqueue import App, ConfigError, Context, Enqueued, InputError, NewTask, PayloadError, UnknownAction

from ..support import Sql

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def here() -> App:
    """An app that must not reach any database."""
    return App("postgresql://nobody@127.0.0.1:1/nowhere")


# -- declaring


def test_declaring_does_no_io_and_keeps_name_and_docstring(here: App) -> None:
    @here.task(queue="mail", max_attempts=5, timeout=30, backoff=lambda n: n)
    def send(to: str) -> None:
        """Send it."""

    assert (send.name, send.__name__, send.__doc__) == ("send", "send", "Send it.")
    assert (send.queue, send.max_attempts, send.timeout, send.is_async) == ("mail", 5, timedelta(seconds=30), False)
    assert repr(send) == "Action('send', queue='mail')"
    assert here.actions == {"send": send}
    assert here.action("send") is send


def test_bare_decorator_takes_the_defaults(here: App) -> None:
    @here.task
    async def work() -> None: ...

    assert (work.name, work.queue, work.max_attempts, work.timeout, work.is_async) == ("work", "default", 3, None, True)


def test_unknown_action_names_those_there_are(here: App) -> None:
    with pytest.raises(UnknownAction, match="declare one with @app"):
        here.action("send")

    @here.task
    def work() -> None: ...

    with pytest.raises(UnknownAction, match="this app's actions are: work") as refused:
        here.action("send")
    assert refused.value.action == "send"


def test_two_handlers_of_one_name_are_refused(here: App) -> None:
    @here.task(name="send")
    def one() -> None: ...

    with pytest.raises(ConfigError, match="two handlers are called 'send'") as refused:

        @here.task(name="send")
        def other() -> None: ...

    assert refused.value.field == "name"
    assert here.action("send") is one


def test_two_functions_of_one_name_in_one_place_are_refused(here: App) -> None:
    """The second would take the first one's tasks, and nobody would ever call the first."""

    @here.task
    def send(to: str) -> None: ...

    with pytest.raises(ConfigError, match="two handlers are called 'send'"):

        @here.task
        def send(to: int) -> None: ...


def test_module_that_is_imported_twice_declares_its_actions_again(here: App) -> None:
    for _ in range(2):

        @here.task
        def send() -> None: ...

    assert list(here.actions) == ["send"]


def test_action_is_not_decorated_twice(here: App) -> None:
    @here.task
    def send() -> None: ...

    with pytest.raises(ConfigError, match="is an action already"):
        here.task(send)


OUT_OF_RANGE: list[tuple[str, object]] = [
    ("name", "a\nb"),
    ("name", "x" * 513),
    ("queue", ""),
    ("queue", 3),
    ("max_attempts", 0),
    ("max_attempts", 1001),
    ("max_attempts", True),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", "30s"),
    ("queu", "mail"),
]


@pytest.mark.parametrize(("field", "value"), OUT_OF_RANGE, ids=[f"{f}={str(v)[:8]!r}" for f, v in OUT_OF_RANGE])
def test_option_of_a_declaration_out_of_range_names_the_field(here: App, field: str, value: object) -> None:
    options: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError) as refused:

        @here.task(**options)
        def work() -> None: ...

    assert refused.value.field == field
    assert here.actions == {}


def _generator(n: int) -> Any:
    yield n


async def _async_generator(n: int) -> Any:
    yield n


@pytest.mark.parametrize("handler", [_generator, _async_generator])
def test_generator_is_no_handler(here: App, handler: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match="cannot be a generator"):
        here.task(handler)


# -- options


def test_using_merges_and_the_later_one_wins(here: App) -> None:
    @here.task(queue="mail", max_attempts=5)
    def send(to: str) -> None: ...

    action = send.using(priority=3, agent="a").using(priority=4, dedupe_key="k")
    assert action.new(to="x").options == {
        "queue": "mail",
        "max_attempts": 5,
        "priority": 4,
        "agent": "a",
        "dedupe_key": "k",
    }
    assert send.new(to="x").options == {"queue": "mail", "max_attempts": 5}, "the action itself is as it was"
    assert send.using(queue="other", max_attempts=1).new(to="x").options == {"queue": "other", "max_attempts": 1}


def test_using_a_delay_replaces_a_not_before_and_the_other_way_round(here: App) -> None:
    @here.task
    def work() -> None: ...

    when = datetime(2030, 1, 1, tzinfo=UTC)
    assert "not_before" not in work.using(not_before=when).using(delay=5).new().options
    assert "delay" not in work.using(delay=5).using(not_before=when).new().options
    with pytest.raises(InputError, match="give one of them"):
        work.using(delay=5, not_before=when)


WRONG_OPTIONS: list[tuple[str, object]] = [
    ("priority", 10),
    ("priority", "high"),
    ("priority", True),
    ("queue", ""),
    ("agent", "a\x00"),
    ("account", "x" * 513),
    ("delay", -1),
    ("delay", float("nan")),
    ("not_before", datetime(2030, 1, 1)),  # noqa: DTZ001
    ("max_attempts", 0),
    ("timeout", 0),
    ("dedupe_key", "é" * 300),
    ("id", "0190"),
    ("trigger", "user"),
    ("metadata", [1]),
    ("prority", 3),
    ("depends_on", ["0190"]),
    ("depends_on", "0190"),
    ("depends_on", UUID(int=1)),
    ("on_parent_failure", "ignore"),
    ("requires", "gpu"),
    ("requires", [""]),
    ("requires", ["x" * 500, "y" * 500, "z" * 500]),
    ("dedupe", "once"),
    ("dedupe", "forever"),
]


@pytest.mark.parametrize(("field", "value"), WRONG_OPTIONS, ids=[f"{f}={str(v)[:8]!r}" for f, v in WRONG_OPTIONS])
def test_option_out_of_range_is_refused_where_it_is_written(here: App, field: str, value: object) -> None:
    @here.task
    def work() -> None: ...

    options: dict[str, Any] = {field: value}
    with pytest.raises(InputError) as refused:
        work.using(**options)
    assert refused.value.field == field
    assert field in str(refused.value)


def test_new_is_a_value_with_converted_arguments(here: App) -> None:
    @here.task
    def work(ctx: Context, when: datetime, note: str = "none") -> None: ...

    task = work.new(when=datetime(2026, 1, 2, tzinfo=UTC))
    assert isinstance(task, NewTask)
    assert (task.action, task.encoded) == ("work", True)
    assert task.payload == '{"when":"2026-01-02T00:00:00Z"}', "what was not passed is not stored"


# -- calling


def test_direct_call_runs_the_handler_here(here: App) -> None:
    @here.task
    def add(a: int, b: int = 1) -> int:
        return a + b

    @here.task
    async def aadd(a: int) -> int:
        return a + 1

    assert add(1) == 2
    assert add(1, b=5) == 6
    assert asyncio.run(aadd(a=1)) == 2


def test_direct_call_makes_up_a_context(here: App) -> None:
    @here.task
    def first(ctx: Context, n: int) -> Context:
        ctx.check()
        ctx.progress(50)
        return ctx

    @here.task
    def keyword(n: int, *, ctx: Context) -> Context:
        return ctx

    for made in (first(1), first(n=1), keyword(1), keyword(n=1)):  # type: ignore[call-arg]
        assert isinstance(made, Context)
        assert (made.attempt, made.fence, made.cancelled) == (1, 0, False)
    assert first(1).action == "first"


def test_direct_call_raises_what_the_handler_raises(here: App) -> None:
    @here.task
    def work() -> None:
        raise LookupError("as it is")

    with pytest.raises(LookupError, match="as it is"):
        work()


@pytest.mark.parametrize(
    ("args", "kwargs", "field"),
    [
        ((), {}, "to"),
        ((), {"too": "a"}, "too"),
        ((), {"to": 3}, "to"),
        ((), {"to": "a", "ctx": None}, "ctx"),
        (("a", "b", "c"), {}, None),
        (("a",), {"to": "b"}, "to"),
        ((), {"to": "nul\x00"}, "to"),
        ((), {"to": "a", "n": float("nan")}, "n"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_before_any_database(
    here: App, args: tuple[Any, ...], kwargs: dict[str, Any], field: str | None
) -> None:
    @here.task
    def work(ctx: Context, to: str, n: float = 0) -> None: ...

    with pytest.raises(PayloadError) as refused:
        work.enqueue(*args, **kwargs)
    assert refused.value.field == field


# -- enqueueing


def test_enqueue_commits_and_says_whether_it_made_the_task(app: App, sql: Sql) -> None:
    @app.task(queue="mail", max_attempts=5)
    def send(to: str) -> None: ...

    first = send.using(dedupe_key="k", priority=2).enqueue(to="a")
    second = send.using(dedupe_key="k").enqueue(to="b")
    assert (first.created, second) == (True, Enqueued(first.id, created=False))
    assert sql("select action, queue, max_attempts, priority, payload from pgqueue.tasks") == [
        ("send", "mail", 5, 2, {"to": "a"})
    ]


def test_aenqueue_from_two_event_loops(app: App) -> None:
    @app.task
    async def work(n: int) -> None: ...

    async def three(n: int) -> list[Enqueued]:
        try:
            return [await work.aenqueue(n=n), *await asyncio.gather(work.aenqueue(n=n), work.aenqueue(n=n))]
        finally:
            await app.aclose()

    made = asyncio.run(three(1)) + asyncio.run(three(2))
    assert all(one.created for one in made)
    assert app.client.count_tasks() == 6


def test_async_client_is_one_per_loop_and_needs_one(app: App) -> None:
    async def same() -> bool:
        return app.async_client is app.async_client

    assert asyncio.run(same())
    with pytest.raises(RuntimeError):
        app.async_client  # noqa: B018
    asyncio.run(app.aclose())


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_enqueue_on_a_session_is_there_with_the_users_row_or_not_at_all(
    app: App, sql: Sql, database_url: str, commits: bool
) -> None:
    @app.task
    def send(order: int) -> None: ...

    sql("create table orders (id int)")
    engine = sa.create_engine("postgresql+psycopg://", creator=partial(psycopg.connect, database_url))
    with Session(engine) as session:
        session.execute(sa.text("insert into orders values (1)"))
        assert send.enqueue_on(session, order=1).created
        assert app.client.count_tasks() == 0, "not before the caller commits"
        session.commit() if commits else session.rollback()
    engine.dispose()
    assert app.client.count_tasks() == sql("select count(*) from orders")[0][0] == (1 if commits else 0)


@pytest.mark.parametrize("commits", [True, False], ids=["commit", "rollback"])
def test_aenqueue_on_a_session_is_there_with_the_users_row_or_not_at_all(
    app: App, sql: Sql, database_url: str, commits: bool
) -> None:
    @app.task
    def send(order: int) -> None: ...

    async def scenario() -> None:
        async def connect() -> psycopg.AsyncConnection[Any]:
            return await psycopg.AsyncConnection.connect(database_url)

        engine = create_async_engine("postgresql+psycopg://", async_creator=connect, poolclass=NullPool)
        async with AsyncSession(engine) as session:
            await session.execute(sa.text("insert into orders values (1)"))
            assert (await send.aenqueue_on(session, order=1)).created
            await (session.commit() if commits else session.rollback())
        await engine.dispose()
        await app.aclose()

    sql("create table orders (id int)")
    asyncio.run(scenario())
    assert app.client.count_tasks() == sql("select count(*) from orders")[0][0] == (1 if commits else 0)


@pytest.mark.parametrize("wrong", [3, None, "postgresql://", object()])
def test_enqueue_on_what_is_no_connection_is_refused(here: App, wrong: Any) -> None:
    @here.task
    def work() -> None: ...

    with pytest.raises(InputError) as refused:
        work.enqueue_on(wrong)
    assert refused.value.field == "connection"


# -- the face


def test_import_of_the_package_loads_no_database_library() -> None:
    code = (
        "import sys, pgqueue; pgqueue.__version__; pgqueue.Status; dir(pgqueue)\n"
        "print([m for m in ('sqlalchemy', 'psycopg', 'alembic', 'asyncio', 'click', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_face_has_every_name_that_it_lists() -> None:
    for name in pgqueue.__all__:
        assert getattr(pgqueue, name) is not None
    assert set(pgqueue.__all__) <= set(dir(pgqueue))
    with pytest.raises(AttributeError, match="has no attribute 'Aap'"):
        pgqueue.Aap  # noqa: B018
