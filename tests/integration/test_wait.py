"""`client.wait`, and `wait` of what an action's enqueue gave: until a task has ended, whichever way."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import pickle
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import Connection

from pgqueue import (
    App,
    AsyncClient,
    Client,
    Enqueued,
    InputError,
    PgqueueError,
    Status,
    Task,
    TaskNotFound,
    WaitTimeout,
    new_id,
)
from pgqueue.store import Store
from tests.support import Sql, eventually


def end(client: Client, task_id: UUID, how: str) -> None:
    if how == "cancelled":
        client.cancel(task_id)
        return
    [held] = client.claim_batch(limit=1)
    if how == "completed":
        client.complete(held, {"n": 1})
    else:
        client.bury(held, "no")


@pytest.mark.parametrize("how", ["completed", "dead", "cancelled"])
def test_task_that_has_ended_is_returned_at_once_however_it_ended(face: Client, client: Client, how: str) -> None:
    made = client.enqueue("x")
    end(client, made.id, how)
    for asked in (made, made.id):
        task = face.wait(asked, timeout=0)
        assert (type(task), task.id, task.status) == (Task, made.id, Status(how))
        assert (task.result == {"n": 1}) is (how == "completed")


def test_wait_returns_when_the_task_ends_meanwhile(client: Client) -> None:
    made = client.enqueue("x")
    found: list[Task] = []
    thread = threading.Thread(target=lambda: found.append(client.wait(made, timeout=30)))
    thread.start()
    end(client, made.id, "completed")
    thread.join(30)
    assert [task.status for task in found] == [Status.COMPLETED]


def test_async_wait_leaves_the_loop_free(
    client: Client, async_client: Callable[[Callable[[AsyncClient], Awaitable[Any]]], Any]
) -> None:
    made = client.enqueue("x")

    async def scenario(asynchronous: AsyncClient) -> Status:
        waiting = asyncio.create_task(asynchronous.wait(made, timeout=30))
        [held] = await asynchronous.claim_batch(limit=1)
        await asynchronous.complete(held)
        return (await waiting).status

    assert async_client(scenario) is Status.COMPLETED


def test_timeout_says_which_task_what_it_is_and_where_to_look(face: Client) -> None:
    made = face.enqueue("x")
    with pytest.raises(WaitTimeout) as late:
        face.wait(made, timeout=0.05)
    assert (late.value.task_id, late.value.status) == (made.id, Status.PENDING)
    assert isinstance(late.value, TimeoutError)
    assert isinstance(late.value, PgqueueError)
    assert f"`pgqueue show {made.id}`" in str(late.value)
    assert "is still pending after" in str(late.value)
    assert face.get(made.id).status is Status.PENDING


def test_unknown_task_and_wrong_arguments_are_refused(face: Client) -> None:
    with pytest.raises(TaskNotFound):
        face.wait(new_id(), timeout=5)
    for wrong in ("0195f2b4-7c31-7b4a-9f00-0123456789ab", 3, None):
        with pytest.raises(InputError):
            face.wait(wrong, timeout=5)  # type: ignore[arg-type]
    for duration in (-1, "5s", float("nan")):
        with pytest.raises(InputError) as refused:
            face.wait(new_id(), timeout=duration)  # type: ignore[arg-type]
        assert refused.value.field == "timeout"


def test_in_a_callers_transaction_it_looks_once(rolled_back: Connection) -> None:
    client = Client("postgresql://nobody@127.0.0.1:1/nowhere").on(rolled_back)
    made = client.enqueue("x", dedupe_key="only here")
    with pytest.raises(InputError, match="a wait in your transaction would see no change"):
        client.wait(made, timeout=30)
    client.cancel(made.id)
    assert client.wait(made, timeout=30).status is Status.CANCELLED


def test_looks_grow_rare_and_read_no_payload(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    made = client.enqueue("x", "a payload")
    slept: list[float] = []
    looked: list[str] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 14:
            client.cancel(made.id)

    run = Client._run

    def counted(self: Client, verb: Any, /, *args: Any, **kwargs: Any) -> Any:
        looked.append(verb.__name__)
        return run(self, verb, *args, **kwargs)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(Client, "_run", counted)
    client.wait(made, timeout=3600)
    assert slept[:3] == pytest.approx([0.02, 0.03, 0.045])
    assert slept[-1] == 1.0
    assert sum(slept[:-1]) > 4
    assert looked.count("get") == 1
    assert Store.status_of.__name__ in looked


# -- on the value itself


def test_what_an_action_enqueued_waits_by_itself(database_url: str) -> None:
    app = App(database_url)

    @app.task
    def work() -> None: ...

    made = work.enqueue()
    thread = threading.Thread(target=lambda: end(app.client, made.id, "completed"))
    thread.start()
    assert made.wait(30).status is Status.COMPLETED
    thread.join()
    app.client.close()


def test_async_enqueue_gives_it_too(database_url: str) -> None:
    app = App(database_url)

    @app.task
    def work() -> None: ...

    async def main() -> Enqueued:
        made = await work.aenqueue()
        await app.async_client.cancel(made.id)
        assert (await app.async_client.wait(made, timeout=30)).status is Status.CANCELLED
        await app.aclose()
        return made

    assert asyncio.run(main()).wait(0).status is Status.CANCELLED
    app.client.close()


def test_value_is_what_it_was_equal_hashable_printable_and_picklable(untouched: Client) -> None:
    app = App("postgresql://nobody@127.0.0.1:1/nowhere")
    plain = Enqueued(new_id(), created=True)
    asking = app._waitable(Enqueued(plain.id, created=True))
    assert (asking, hash(asking), repr(asking)) == (plain, hash(plain), repr(plain))
    assert dataclasses.asdict(asking) == {"id": plain.id, "created": True}
    for same in (copy.copy(asking), copy.deepcopy(asking), pickle.loads(pickle.dumps(asking))):  # noqa: S301
        assert same == plain
    with pytest.raises(dataclasses.FrozenInstanceError):
        asking.created = False  # type: ignore[misc]


def test_value_that_knows_no_app_says_what_to_call_instead(client: Client) -> None:
    made = client.enqueue("x")
    with pytest.raises(InputError, match=r"call client\.wait"):
        made.wait(1)
    app = App("postgresql://nobody@127.0.0.1:1/nowhere")
    asking = app._waitable(made)
    del app
    with pytest.raises(InputError, match=r"call client\.wait"):
        eventually(lambda: asking.wait(1))


def test_wait_does_not_see_what_is_not_committed(client: Client, sql: Sql, database: Any) -> None:
    with database.begin() as connection:
        made = client.on(connection).enqueue("x")
        with pytest.raises(TaskNotFound):
            client.wait(made, timeout=5)
    assert sql("select count(*) from pgqueue.tasks") == [(1,)]
