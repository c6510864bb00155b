"""`enqueued` and `assert_enqueued`: by action, options and arguments as the handler gets them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from uuid import UUID

import pytest

from pgqueue import App, Context, InputError
from pgqueue.testing import assert_enqueued, drain, enqueued, in_transaction
from tests.support import Sql


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    app = App(database_url)
    yield app
    app.client.close()


DAY = datetime(2030, 1, 2, tzinfo=UTC)


def test_arguments_are_compared_as_the_handler_gets_them(app: App) -> None:
    @app.task
    def send(ctx: Context, order: UUID, when: datetime, copies: int = 1) -> None: ...

    first = send.enqueue(order=UUID(int=1), when=DAY)
    send.enqueue(order=UUID(int=2), when=DAY, copies=2)
    assert [task.id for task in enqueued(send, order=UUID(int=1))] == [first.id]
    assert [task.id for task in assert_enqueued(send, when=DAY, copies=1)] == [first.id]
    assert len(assert_enqueued(send)) == 2
    assert_enqueued(send, 2, when=DAY)
    assert_enqueued(send, 0, copies=3)
    assert enqueued(send, order=str(UUID(int=1))) == []


def test_options_that_using_set_are_compared_too(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    send.using(queue="mail", priority=3, agent="a", requires=["x"], metadata={"t": 1}).enqueue(to="a")
    assert_enqueued(send.using(queue="mail"), to="a")
    assert_enqueued(send.using(priority=3, agent="a", requires=["x"], metadata={"t": 1}))
    assert enqueued(send.using(queue="default")) == []
    assert enqueued(send.using(agent=None)) == []
    with pytest.raises(InputError, match="delay is no column of a task"):
        enqueued(send.using(delay=3))


def test_of_an_app_it_lists_everything_oldest_first_whatever_the_status(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    made = [send.enqueue(to=str(n)).id for n in range(3)]
    drain(app)
    made.append(app.client.enqueue("another program's").id)
    assert [task.id for task in enqueued(app)] == made
    assert len(enqueued(send)) == 3
    with pytest.raises(InputError, match="arguments are an action's"):
        enqueued(app, to="a")


def test_more_than_a_page_is_read_to_the_end(app: App) -> None:
    @app.task
    def send(n: int) -> None: ...

    app.client.enqueue_many(send.new(n=n) for n in range(1_100))
    assert [task.id for task in enqueued(send, n=0)] == [enqueued(send)[0].id]
    assert_enqueued(send, 1_100)


def test_rows_under_an_old_name_count(app: App) -> None:
    @app.task(aliases=["mail"])
    def send(to: str) -> None: ...

    app.client.enqueue("mail", {"to": "a"})
    assert_enqueued(send, to="a")


def test_failure_says_what_was_looked_for_and_what_is_there(app: App) -> None:
    @app.task(queue="mail")
    def send(to: str, copies: int = 1) -> None: ...

    with pytest.raises(AssertionError) as none:
        assert_enqueued(send, to="a")
    assert str(none.value) == ("no task of send with to='a'; there is no task of it at all; of other actions: none")
    made = send.using(agent="host", priority=2).enqueue(to="b")
    app.client.enqueue("fetch")
    app.client.enqueue("fetch")
    with pytest.raises(AssertionError) as other:
        assert_enqueued(send.using(queue="mail"), to="a")
    assert str(other.value).splitlines() == [
        "no task of send with queue='mail', to='a'; there are, of send:",
        f'  …{str(made.id)[-6:]} pending queue=mail agent=host priority=2 {{"to": "b"}}',
        "of other actions: 2 × fetch",
    ]
    with pytest.raises(AssertionError, match="1 × task of send with to='b', expected 2"):
        assert_enqueued(send, 2, to="b")
    with pytest.raises(AssertionError, match="expected 0"):
        assert_enqueued(send, 0, to="b")


def test_argument_that_the_handler_does_not_take_is_a_mistake_of_the_test(app: App) -> None:
    @app.task
    def send(ctx: Context, to: str) -> None: ...

    for name in ("too", "ctx"):
        with pytest.raises(InputError, match=f"send takes no argument '{name}'; its arguments are: to"):
            assert_enqueued(send, **{name: 1})


def test_row_that_does_not_fit_the_handler_fits_no_arguments(app: App) -> None:
    @app.task
    def send(to: str) -> None: ...

    app.client.enqueue("send", {"to": 3})
    assert (len(enqueued(send)), enqueued(send, to=3)) == (1, [])


def test_in_a_transaction_it_sees_what_is_not_committed(app: App, sql: Sql) -> None:
    @app.task
    def send(to: str) -> None: ...

    with app.database.engine.connect() as connection, in_transaction(app, connection):
        send.enqueue(to="a")
        assert_enqueued(send, 1, to="a")
        assert sql("select count(*) from pgqueue.tasks") == [(0,)]
    assert_enqueued(send, 0)
