"""enqueue, enqueue_new, enqueue_many: what is written, what is adopted, what is refused, who hears of it."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.errors import InputError, PayloadError, RetryTransaction
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.options import Enqueued, NewTask
from pgqueue.statements import channel
from tests.support import Sql, connect, eventually, somebody_waits


def test_enqueue_writes_one_pending_row_with_the_defaults(face: Client, sql: Sql) -> None:
    made = face.enqueue("resize", {"path": "/a", "n": [1, None, 2.5]})
    task = face.get(made.id)
    assert made.created
    assert made.id.version == 7
    assert (task.action, task.queue, task.status, task.priority) == ("resize", "default", Status.PENDING, 0)
    assert (task.attempts, task.max_attempts, task.fence, task.agent, task.dedupe_key) == (0, 3, 0, None, None)
    assert task.payload == {"path": "/a", "n": [1, None, 2.5]}
    assert (task.timeout, task.trigger, task.metadata, task.result) == (None, None, None, None)
    assert sql("select count(*) from pgqueue.tasks") == [(1,)]


def test_enqueue_writes_every_option(face: Client) -> None:
    at = datetime(2099, 5, 6, 7, 8, 9, tzinfo=UTC)
    wanted = new_id()
    made = face.enqueue(
        "resize",
        None,
        id=wanted,
        queue="images",
        agent="gpu-1",
        account="acme",
        priority=-9,
        not_before=at,
        max_attempts=1000,
        timeout=1.5,
        dedupe_key="k",
        trigger={"user": "ann"},
        metadata={"trace": "00-é"},
    )
    task = face.get(wanted)
    assert made == Enqueued(wanted, created=True)
    assert (task.queue, task.agent, task.account, task.priority) == ("images", "gpu-1", "acme", -9)
    assert (task.not_before, task.max_attempts, task.timeout) == (at, 1000, timedelta(seconds=1.5))
    assert (task.dedupe_key, task.trigger, task.metadata) == ("k", {"user": "ann"}, {"trace": "00-é"})
    assert task.payload is None


def test_enqueue_with_a_delay_counts_from_the_servers_clock(face: Client, sql: Sql) -> None:
    face.enqueue("later", delay=timedelta(hours=1))
    ((wait,),) = sql("select not_before - created_at from pgqueue.tasks")
    assert timedelta(minutes=59) < wait < timedelta(minutes=61)


def test_enqueue_due_in_the_past_becomes_due_now(face: Client, sql: Sql) -> None:
    # The line is ordered by when a task became due: a backdated one would jump it, and hide below the claims' floor.
    face.enqueue("late", not_before=datetime(2001, 1, 1, tzinfo=UTC))
    ((late,),) = sql("select not_before - created_at from pgqueue.tasks")
    assert abs(late) < timedelta(seconds=5)


@pytest.mark.parametrize("payload", [0, "", "text", [], {}, True, [None], 1.5, {"é": "\U0001f600"}])
def test_enqueue_of_any_json_value_comes_back_equal(face: Client, payload: Any) -> None:
    assert face.get(face.enqueue("echo", payload).id).payload == payload


def test_enqueue_with_the_same_id_returns_the_same_task(face: Client, sql: Sql) -> None:
    wanted = new_id()
    first = face.enqueue("x", 1, id=wanted)
    second = face.enqueue("x", 2, id=wanted)
    assert (first, second) == (Enqueued(wanted, created=True), Enqueued(wanted, created=False))
    assert sql("select payload from pgqueue.tasks") == [(1,)]


def test_enqueue_with_the_same_id_finds_a_finished_task_before_it_looks_at_the_key(face: Client, sql: Sql) -> None:
    # Repeated after a lost COMMIT, when the task has long ended and its key is held by another.
    wanted = new_id()
    face.enqueue("x", id=wanted, dedupe_key="k")
    face.cancel(wanted)
    other = face.enqueue("x", dedupe_key="k")
    assert face.enqueue("x", id=wanted, dedupe_key="k") == Enqueued(wanted, created=False)
    assert other.created
    assert sql("select count(*) from pgqueue.tasks") == [(2,)]


def test_enqueue_of_a_held_key_adopts_the_holder_and_its_options(face: Client) -> None:
    first = face.enqueue("x", 1, dedupe_key="k", priority=1)
    second = face.enqueue("y", 2, dedupe_key="k", priority=9, queue="other")
    assert second == Enqueued(first.id, created=False)
    task = face.get(first.id)
    assert (task.action, task.payload, task.priority, task.queue) == ("x", 1, 1, "default")


def test_enqueue_of_a_key_that_runs_adopts_it(face: Client) -> None:
    first = face.enqueue("x", dedupe_key="k", agent="a")
    assert face.claim("a") is not None
    assert face.enqueue("x", dedupe_key="k", agent="a") == Enqueued(first.id, created=False)


@pytest.mark.parametrize("ending", ["complete", "bury", "cancel"])
def test_enqueue_of_a_key_whose_holder_ended_makes_a_new_task(face: Client, ending: str) -> None:
    first = face.enqueue("x", dedupe_key="k", agent="a")
    if ending == "cancel":
        face.cancel(first.id)
    else:
        held = face.claim("a")
        assert held is not None
        face.complete(held) if ending == "complete" else face.bury(held, "no")
    second = face.enqueue("x", dedupe_key="k", agent="a")
    assert second.created
    assert second.id != first.id


def test_enqueue_of_one_key_for_two_agents_makes_two_tasks(face: Client) -> None:
    made = [face.enqueue("x", dedupe_key="k", agent=agent) for agent in ("a", "b", None)]
    assert [m.created for m in made] == [True, True, True]
    assert not face.enqueue("x", dedupe_key="k").created


def test_enqueue_of_an_empty_key_never_dedupes(face: Client, sql: Sql) -> None:
    assert face.enqueue("x", dedupe_key="").created
    assert face.enqueue("x", dedupe_key="").created
    assert sql("select distinct dedupe_key from pgqueue.tasks") == [(None,)]


def test_enqueue_of_one_key_by_many_threads_makes_one_task(database: Database, sql: Sql) -> None:
    client = Client(database)
    made: list[Enqueued] = []
    start = threading.Barrier(8)

    def enqueue() -> None:
        start.wait()
        for _ in range(10):
            made.append(client.enqueue("x", dedupe_key="k"))

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(made) == 80
    assert len({m.id for m in made}) == 1
    assert sum(m.created for m in made) == 1
    assert sql("select count(*) from pgqueue.tasks") == [(1,)]


def test_enqueue_of_a_key_that_another_transaction_is_inserting_waits_and_adopts(
    client: Client, database: Database, sql: Sql
) -> None:
    done: list[Enqueued] = []
    with database.begin() as connection:
        first = client.on(connection).enqueue("x", dedupe_key="k")
        waiting = threading.Thread(target=lambda: done.append(client.enqueue("x", dedupe_key="k")))
        waiting.start()
        eventually(lambda: somebody_waits(sql))
        assert done == []
    waiting.join(30)
    assert done == [Enqueued(first.id, created=False)]


def heard(listener: Any, *, at_least: int) -> list[Any]:
    """What arrives on the channel, in the order in which it came."""
    got: list[Any] = []

    def enough() -> bool:
        got.extend(listener.notifies(timeout=0.05))
        return len(got) >= at_least

    eventually(enough)
    return got


def test_enqueue_hints_to_the_queue_on_the_schemas_channel(face: Client, database_url: str) -> None:
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        face.enqueue("x", queue="images")
        (hint,) = heard(listener, at_least=1)
    assert (hint.channel, hint.payload) == ("pgqueue_tasks", "images")


def test_enqueue_many_hints_once_to_each_queue(face: Client, database_url: str) -> None:
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        face.enqueue_many([NewTask("x", None, {"queue": f"q{n % 3}"}) for n in range(9)])
        hints = heard(listener, at_least=3)
    assert sorted(hint.payload for hint in hints) == ["q0", "q1", "q2"]


def test_enqueue_of_an_adopted_key_hints_to_nobody(face: Client, database_url: str) -> None:
    face.enqueue("x", dedupe_key="k", queue="first")
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        face.enqueue("x", dedupe_key="k", queue="second")
        face.enqueue("x", queue="third")
        assert [hint.payload for hint in heard(listener, at_least=1)] == ["third"]


def test_enqueue_while_another_hint_is_in_flight_is_muted_and_succeeds(
    client: Client, database: Database, database_url: str
) -> None:
    with connect(database_url) as listener:
        listener.execute(f"listen {channel('pgqueue')}")
        with database.begin() as connection:
            client.on(connection).enqueue("x", queue="q")
            assert client.enqueue("x", queue="q").created
            assert client.enqueue("x", queue="other").created
        assert sorted(hint.payload for hint in heard(listener, at_least=2)) == ["other", "q"]


@pytest.mark.parametrize("schema", ["pgqueue", "a" * 63])
def test_channel_of_any_schema_fits_into_an_identifier(schema: str) -> None:
    assert len(channel(schema)) <= 63


def test_enqueue_many_returns_one_answer_per_task_in_order(face: Client, sql: Sql) -> None:
    tasks = [NewTask("x", {"n": n}, {"dedupe_key": f"k{9 - n}", "priority": n % 3}) for n in range(10)]
    made = face.enqueue_many(tasks)
    assert [m.created for m in made] == [True] * 10
    assert [face.get(m.id).payload for m in made] == [{"n": n} for n in range(10)]
    assert sql("select count(*) from pgqueue.tasks") == [(10,)]


def test_enqueue_many_makes_ids_in_the_order_given(face: Client) -> None:
    ids = [m.id for m in face.enqueue_many(NewTask("x", n, {}) for n in range(50))]
    assert ids == sorted(ids)


def test_enqueue_many_with_a_key_twice_in_a_batch_makes_it_once(face: Client, sql: Sql) -> None:
    made = face.enqueue_many([NewTask("x", n, {"dedupe_key": f"k{n % 3}"}) for n in range(7)])
    assert [m.created for m in made] == [True, True, True, False, False, False, False]
    assert [made[n].id for n in range(3, 7)] == [made[0].id, made[1].id, made[2].id, made[0].id]
    assert sorted(sql("select payload from pgqueue.tasks")) == [(0,), (1,), (2,)]


def test_enqueue_many_with_an_id_twice_in_a_batch_makes_it_once(face: Client, sql: Sql) -> None:
    wanted = new_id()
    made = face.enqueue_many([NewTask("x", n, {"id": wanted}) for n in range(2)])
    assert made == [Enqueued(wanted, created=True), Enqueued(wanted, created=False)]
    assert sql("select payload from pgqueue.tasks") == [(0,)]


def test_enqueue_many_beside_a_held_key_adopts_it(face: Client) -> None:
    holder = face.enqueue("x", dedupe_key="k")
    made = face.enqueue_many([NewTask("x", None, {"dedupe_key": k}) for k in ("j", "k", "l")])
    assert [m.created for m in made] == [True, False, True]
    assert made[1].id == holder.id


def test_enqueue_many_keeps_agents_apart(face: Client) -> None:
    made = face.enqueue_many(
        [NewTask("x", None, {"dedupe_key": "k", "agent": a}) for a in ("b", "a", "b")]
        + [NewTask("x", None, {"dedupe_key": "k"})]
    )
    assert [m.created for m in made] == [True, True, False, True]


def test_enqueue_many_of_nothing_does_nothing(face: Client, sql: Sql) -> None:
    assert face.enqueue_many([]) == []
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_enqueue_many_of_more_than_a_batch_takes_an_iterator_piecewise(face: Client, sql: Sql) -> None:
    held: list[int] = []

    def tasks() -> Iterator[NewTask]:
        for n in range(2345):
            if n % 1000 == 1:
                held.append(sql("select count(*) from pgqueue.tasks")[0][0])
            yield NewTask("x", n, {"dedupe_key": f"k{2345 - n}"})

    made = face.enqueue_many(tasks())
    assert len({m.id for m in made}) == 2345
    assert all(m.created for m in made)
    # Each thousand was committed before the next was asked for.
    assert held == [0, 1000, 2000]
    assert [face.get(made[n].id).payload for n in (0, 999, 1000, 2344)] == [0, 999, 1000, 2344]


def test_enqueue_many_with_the_same_key_over_two_batches_makes_it_once(face: Client) -> None:
    made = face.enqueue_many(NewTask("x", n, {"dedupe_key": f"k{n % 700}"}) for n in range(1400))
    assert [m.created for m in made] == [True] * 700 + [False] * 700
    assert [m.id for m in made[:700]] == [m.id for m in made[700:]]


def test_enqueue_many_takes_an_asynchronous_iterator(
    async_client: Callable[[Callable[[AsyncClient], Awaitable[Any]]], Any], sql: Sql
) -> None:
    async def tasks() -> AsyncIterator[NewTask]:
        for n in range(1234):
            yield NewTask("x", n, {})

    async def scenario(client: AsyncClient) -> list[Enqueued]:
        return await client.enqueue_many(tasks())

    assert len(async_client(scenario)) == 1234
    assert sql("select count(*), count(distinct payload) from pgqueue.tasks") == [(1234, 1234)]


def test_enqueue_many_with_one_bad_task_writes_nothing_of_its_batch(face: Client, sql: Sql) -> None:
    with pytest.raises(InputError, match="priority"):
        face.enqueue_many([NewTask("x", None, {}), NewTask("x", None, {"priority": 10}), NewTask("x", None, {})])
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def lose(sql: Sql, times: int) -> None:
    """The next so many statements that insert a task end in a deadlock, as the server would have it."""
    sql("create sequence public.losses")
    sql(
        "create function public.lose() returns trigger language plpgsql as $$ begin"
        f" if nextval('public.losses') <= {times} then raise exception 'lost' using errcode = '40P01'; end if;"
        " return new; end $$"
    )
    sql("create trigger lose before insert on pgqueue.tasks for each row execute function public.lose()")


def test_enqueue_that_lost_a_race_in_its_own_transaction_is_run_again(face: Client, sql: Sql) -> None:
    lose(sql, 2)
    assert [made.created for made in face.enqueue_many(NewTask("noop", n, {}) for n in range(3))] == [True] * 3
    assert face.enqueue("noop").created
    assert sql("select count(*) from pgqueue.tasks") == [(4,)]


def test_enqueue_that_loses_every_race_says_so(face: Client, sql: Sql) -> None:
    lose(sql, 1000)
    with pytest.raises(RetryTransaction):
        face.enqueue("noop")


def test_enqueue_that_lost_a_race_in_a_callers_transaction_is_the_callers_to_run_again(
    client: Client, database: Database, sql: Sql
) -> None:
    lose(sql, 1)
    with database.engine.connect() as connection, pytest.raises(RetryTransaction):
        client.on(connection).enqueue("noop")


def test_enqueue_many_beside_held_keys_does_not_insert_them_again(client: Client, database: Database, sql: Sql) -> None:
    """It would wait, out of the order of keys, for others that insert theirs: a deadlock."""
    client.enqueue("noop", dedupe_key="a")
    sent: list[str] = []
    sa.event.listen(database.engine, "before_cursor_execute", lambda c, cursor, text, *rest: sent.append(text))
    made = client.enqueue_many([NewTask("noop", None, {"dedupe_key": key}) for key in "ab"])
    assert [m.created for m in made] == [False, True]
    assert len([text for text in sent if "INSERT INTO pgqueue.tasks" in text]) == 1


def test_enqueue_many_of_an_encoded_payload_keeps_its_text(face: Client) -> None:
    (made,) = face.enqueue_many([NewTask("x", '{"a": 1}', {}, encoded=True)])
    assert face.get(made.id).payload == {"a": 1}


NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 - that is the mistake

REFUSED: list[tuple[str, Any]] = [
    ("queue", {"queue": ""}),
    ("queue", {"queue": "a\nb"}),
    ("queue", {"queue": "x" * 513}),
    ("queue", {"queue": 5}),
    ("agent", {"agent": ""}),
    ("agent", {"agent": "\x00"}),
    ("account", {"account": "\ud800"}),
    ("dedupe_key", {"dedupe_key": "k" * 513}),
    ("priority", {"priority": 10}),
    ("priority", {"priority": -10}),
    ("priority", {"priority": 1.0}),
    ("priority", {"priority": True}),
    ("max_attempts", {"max_attempts": 0}),
    ("max_attempts", {"max_attempts": 1001}),
    ("delay", {"delay": -1}),
    ("delay", {"delay": float("nan")}),
    ("delay", {"delay": 1e12}),
    ("delay", {"delay": 1, "not_before": datetime(2030, 1, 1, tzinfo=UTC)}),
    ("not_before", {"not_before": NAIVE}),
    ("not_before", {"not_before": "tomorrow"}),
    ("timeout", {"timeout": 0}),
    ("timeout", {"timeout": -5}),
    ("id", {"id": "0198c0de-0000-7000-8000-000000000000"}),
    ("trigger", {"trigger": [1]}),
    ("metadata", {"metadata": "text"}),
    ("colour", {"colour": "red"}),
]


@pytest.mark.parametrize(("field", "options"), REFUSED)
def test_enqueue_with_a_bad_option_is_refused_by_name_and_writes_nothing(
    untouched: Client, field: str, options: Any
) -> None:
    with pytest.raises(InputError) as caught:
        untouched.enqueue("x", None, **options)
    assert caught.value.field == field
    assert field in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("action", ["", "a\tb", "x" * 513, None, 7])
def test_enqueue_of_a_bad_action_is_refused(untouched: Client, action: Any) -> None:
    with pytest.raises(InputError, match="action") as caught:
        untouched.enqueue(action)
    assert caught.value.field == "action"


@pytest.mark.parametrize(
    "payload",
    [float("nan"), float("inf"), "\x00", "\ud800", {1: 2}, {"a": {"b": object()}}, b"bytes", NAIVE, {"s": {1}}],
)
def test_enqueue_of_a_payload_that_is_no_json_is_refused(untouched: Client, payload: Any) -> None:
    with pytest.raises(PayloadError):
        untouched.enqueue("x", payload)


def test_enqueue_of_an_oversized_payload_says_the_limit(untouched: Client) -> None:
    with pytest.raises(PayloadError, match=r"1,048,576|1 MiB"):
        untouched.enqueue("x", "x" * (1024 * 1024))


def test_enqueue_of_the_longest_names_is_accepted(face: Client) -> None:
    name = "é" * 256
    made = face.enqueue(name, queue=name, agent=name, account=name, dedupe_key=name)
    assert face.get(made.id).dedupe_key == name
    assert not face.enqueue(name, queue=name, agent=name, dedupe_key=name).created


def test_enqueue_of_an_id_of_another_kind_is_kept(face: Client) -> None:
    wanted: UUID = uuid4()
    assert face.enqueue("x", id=wanted).id == wanted
    assert face.get(wanted).id == wanted


def test_enqueue_keeps_a_key_byte_by_byte(face: Client) -> None:
    made = [face.enqueue("x", dedupe_key=key) for key in ("\u00e9", "e\u0301", "K", "k", " k", "%", "_", "'; --")]
    assert all(m.created for m in made)
