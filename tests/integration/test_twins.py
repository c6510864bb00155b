"""Client and AsyncClient are twins: one set of names in one order, one behaviour."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.errors import LeaseNotHeld
from pgqueue.options import NewTask
from tests.support import Sql

VERBS = [
    *("enqueue", "enqueue_many", "claim", "claim_batch", "renew", "report_progress", "complete", "fail", "bury"),
    *("release", "snooze", "acknowledge_cancel", "cancel", "retry", "dismiss", "evict", "reschedule"),
    *("set_gate", "replace_pending_payload", "find_by_dedupe_key", "find_pending", "has_active", "get", "list_tasks"),
    *("count_tasks", "stats", "reap", "prune"),
]


def public(face: type) -> list[str]:
    return [name for name in vars(face) if not name.startswith("_")]


def test_twins_have_the_same_public_names_in_the_same_order() -> None:
    assert public(Client) == public(AsyncClient)


def test_twins_have_every_verb_of_the_design_in_its_order() -> None:
    assert [name for name in public(Client) if name in VERBS] == VERBS


@pytest.mark.parametrize("name", [name for name in public(Client) if name not in ("on", "enqueue_many")])
def test_twins_take_the_same_arguments(name: str) -> None:
    def parameters(face: type) -> list[inspect.Parameter]:
        return list(inspect.signature(getattr(face, name)).parameters.values())[1:]

    assert parameters(Client) == parameters(AsyncClient)


@pytest.mark.parametrize("name", public(Client))
def test_twins_are_documented(name: str) -> None:
    for face in (Client, AsyncClient):
        doc = inspect.getdoc(getattr(face, name))
        assert doc
        assert doc.splitlines()[0].endswith((".", ",", ";"))


@pytest.mark.parametrize("name", [name for name in public(Client) if name != "on"])
def test_twin_verb_is_a_coroutine_function_on_the_async_side_alone(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(AsyncClient, name))
    assert not inspect.iscoroutinefunction(getattr(Client, name))


def test_client_does_no_io_before_its_first_verb() -> None:
    nowhere = "postgresql://nobody@/nothing?host=/nonexistent"
    assert Client(nowhere).on(object()).owner is None  # type: ignore[arg-type]
    assert AsyncClient(nowhere, owner="me").owner == "me"


def told(answers: list[Any]) -> list[Any]:
    return [answer if isinstance(answer, str | int) else str(answer) for answer in answers]


def test_scenario_over_both_faces_tells_the_same_story(
    database: Database, async_client: Callable[[Callable[[AsyncClient], Awaitable[Any]]], Any], sql: Sql
) -> None:
    async def scenario(face: Any, agent: str) -> list[Any]:
        async def do(verb: str, *args: Any, **kwargs: Any) -> Any:
            answer = getattr(face, verb)(*args, **kwargs)
            return await answer if inspect.isawaitable(answer) else answer

        made = await do(
            "enqueue_many", [NewTask("x", n, {"agent": agent, "dedupe_key": f"k{n % 2}"}) for n in range(3)]
        )
        story: list[Any] = [made[0].created, made[1].created, made[2].id == made[0].id]
        held = await do("claim", agent)
        story += [held.payload, held.attempt, (await do("renew", held)).cancel_requested]
        story.append((await do("fail", held, "boom")).status)
        try:
            await do("complete", held)
        except LeaseNotHeld as error:
            story += [error.status, error.owner]
        second = await do("claim", agent)
        story += [second.payload, (await do("cancel", second.id)), (await do("acknowledge_cancel", second)).status]
        story.append([e.event for e in await do("events", held.id)])
        story.append(await do("count_tasks", agent=agent))
        return story

    sync_story = asyncio.run(scenario(Client(database), "a"))
    async_story = async_client(lambda client: scenario(client, "b"))
    assert sync_story == async_story
    assert sync_story[:4] == [True, True, True, 0]
    assert sql("select agent, count(*) from pgqueue.tasks group by 1 order by 1") == [("a", 2), ("b", 2)]


def test_client_as_a_context_manager_closes_its_connections(database_url: str, sql: Sql) -> None:
    with Client(database_url, schema="pgqueue") as client:
        client.enqueue("x")
    assert client.enqueue("x").created  # and can be used again
    client.close()


def test_async_client_used_on_one_loop_after_another_needs_closing_in_between(database: Database) -> None:
    async def enqueue() -> bool:
        async with AsyncClient(database) as client:
            return (await client.enqueue("x")).created

    assert [asyncio.run(enqueue()) for _ in range(3)] == [True, True, True]


def test_async_client_runs_verbs_side_by_side(
    async_client: Callable[[Callable[[AsyncClient], Awaitable[Any]]], Any], sql: Sql
) -> None:
    async def scenario(client: AsyncClient) -> None:
        made = await asyncio.gather(*(client.enqueue("x", n, dedupe_key=f"k{n % 5}") for n in range(40)))
        assert sum(m.created for m in made) == 5

    async_client(scenario)
    assert sql("select count(*) from pgqueue.tasks") == [(5,)]
