"""Pauses: what is paused is not claimed, by any path; what runs goes on; nothing is forgotten meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from pgqueue import InputError, Pause, Status
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.store import LONG_AGO, AgentCursor, Store
from tests.support import Sql, connect

MINUTE = timedelta(seconds=60)
LISTEN = "listen pgqueue_tasks"


def heard(url: str, act: Callable[[], object]) -> list[str]:
    """The payloads that one listener hears of what `act` does."""
    with connect(url) as listener:
        listener.execute(LISTEN)
        act()
        listener.execute("notify pgqueue_tasks, 'that was all'")
        told: list[str] = []
        for notification in listener.notifies(timeout=30):
            if notification.payload == "that was all":
                return told
            told.append(notification.payload)
    raise AssertionError("the listener heard nothing")


def test_pause_says_what_it_is_and_resume_whether_there_was_one(face: Client) -> None:
    assert face.pauses() == []
    paused = face.pause("queue", "mail", by="ada")
    assert (paused.kind, paused.name, paused.by) == ("queue", "mail", "ada")
    assert isinstance(paused, Pause)
    # A second pause changes nothing, whoever asks.
    assert face.pause("queue", "mail", by="bob") == paused
    other = face.pause("agent", "mail")
    assert other.by is None
    assert face.pauses() == [paused, other]
    assert face.resume("queue", "mail") is True
    assert face.resume("queue", "mail") is False
    assert face.pauses() == [other]


@pytest.mark.parametrize("kind", ["Queue", "", None, "worker", ["queue"]])
def test_pause_of_what_is_neither_queue_nor_agent_is_refused(untouched: Client, kind: Any) -> None:
    for verb in (untouched.pause, untouched.resume):
        with pytest.raises(InputError, match="queue or agent") as refused:
            verb(kind, "mail")
        assert refused.value.field == "kind"


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 513, None, 7])
def test_pause_of_what_is_no_name_is_refused(untouched: Client, name: Any) -> None:
    for verb in (untouched.pause, untouched.resume):
        with pytest.raises(InputError) as refused:
            verb("queue", name)
        assert refused.value.field == "name"
    with pytest.raises(InputError):
        untouched.pause("queue", "mail", by="")


def test_paused_queue_is_claimed_from_by_no_path(face: Client) -> None:
    face.enqueue("x", queue="mail")
    face.enqueue("x", queue="mail", agent="a")
    face.enqueue("x", queue="mail", requires=["gpu"])
    other = face.enqueue("x", queue="other")
    face.pause("queue", "mail")
    assert face.claim("a", queue="mail") is None
    assert [task.id for task in face.claim_batch(["mail", "other"], limit=10, offers=["gpu"])] == [other.id]
    assert face.claim_batch("mail", limit=10) == []
    face.resume("queue", "mail")
    assert len(face.claim_batch("mail", limit=10, offers=["gpu"])) == 3


def test_paused_agent_is_claimed_for_by_no_path_and_others_are(face: Client) -> None:
    mine, others = (face.enqueue("x", agent=agent) for agent in ("a", "b"))
    nobodys = face.enqueue("x")
    face.pause("agent", "a")
    assert face.claim("a") is None
    assert {task.id for task in face.claim_batch(limit=10)} == {others.id, nobodys.id}
    face.resume("agent", "a")
    task = face.claim("a")
    assert task is not None
    assert task.id == mine.id


def test_pause_leaves_alone_what_runs(face: Client) -> None:
    face.enqueue("x", queue="mail", agent="a")
    task = face.claim("a", queue="mail")
    assert task is not None
    face.pause("queue", "mail")
    face.pause("agent", "a")
    face.renew(task)
    assert face.complete(task, {"done": True}).status is Status.COMPLETED


def test_pause_in_a_transaction_counts_when_it_commits(client: Client, database: Database) -> None:
    client.enqueue("x")
    with database.begin() as connection:
        client.on(connection).pause("queue", "default")
        assert len(client.claim_batch(limit=10)) == 1
    client.enqueue("x")
    assert client.claim_batch(limit=10) == []


def test_queue_and_agent_of_one_name_are_paused_apart(client: Client) -> None:
    client.enqueue("x", queue="mail")
    client.pause("agent", "mail")
    assert len(client.claim_batch("mail")) == 1


def test_resume_is_told_and_a_resume_of_nothing_is_not(client: Client, database_url: str) -> None:
    client.pause("queue", "mail")
    assert heard(database_url, lambda: client.resume("queue", "mail")) == ["\x01resumed"]
    assert heard(database_url, lambda: client.resume("queue", "mail")) == []


def test_cancel_and_release_of_what_runs_are_told_and_a_cancel_of_what_waits_is_not(
    client: Client, database_url: str
) -> None:
    for agent in ("a", "b", "c"):
        client.enqueue("x", agent=agent)
    asked, evicted = client.claim("a"), client.claim("b")
    waits = client.find_pending("x", agent="c")
    assert asked is not None
    assert evicted is not None
    assert waits is not None
    assert heard(database_url, lambda: client.cancel(asked.id)) == ["\x01asked"]
    assert heard(database_url, lambda: client.evict(evicted.id)) == ["\x01asked"]
    assert heard(database_url, lambda: client.cancel(waits.id)) == []


def test_claim_of_several_queues_says_which_are_paused(client: Client, database: Database) -> None:
    store = Store("pgqueue")
    client.enqueue("x", queue="two")
    client.pause("queue", "one")
    with database.begin() as connection:
        for met in ([], [("two", 0, "{gpu}")]):
            claim: Any = store.claim_conditional if met else store.claim_due
            more = {"met": met} if met else {}
            claims = claim(connection, ["one", "two", "three"], size=10, owner="me", lease=MINUTE, **more)
            assert claims.paused == {"one"}
        assert store.claim_due(connection, ["two"], size=10, owner="me", lease=MINUTE).paused == frozenset()


def test_search_for_agents_of_a_paused_queue_leaves_the_cursor_where_it_is(client: Client, database: Database) -> None:
    client.enqueue("x", agent="a")
    client.pause("queue", "default")
    store, cursor = Store("pgqueue"), AgentCursor(known=("b",))

    def search(cursor: AgentCursor) -> tuple[list[str | None], AgentCursor]:
        with database.begin() as connection:
            claims, moved = store.claim_agents(connection, "default", size=10, owner="me", lease=MINUTE, cursor=cursor)
        return [task.agent for task in claims.tasks], moved

    assert search(cursor) == ([], cursor)
    client.resume("queue", "default")
    agents, moved = search(cursor)
    assert agents == ["a"]
    assert moved.seen_at > LONG_AGO


def test_paused_agents_are_no_candidates(client: Client, database: Database, sql: Sql) -> None:
    """What the search keeps for the next time would else fill with them, in front of agents that may run."""
    for agent in ("a", "b", "c", "d"):
        client.enqueue("x", agent=agent)
    for agent in ("a", "b"):
        client.pause("agent", agent)
    with database.begin() as connection:
        claims, cursor = Store("pgqueue").claim_agents(
            connection, "default", size=1, owner="me", lease=MINUTE, cursor=AgentCursor()
        )
    assert [task.agent for task in claims.tasks] == ["c"]
    assert cursor.known == ("d",)


def test_claim_batch_finds_an_agent_behind_thousands_that_are_paused(client: Client, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, agent, not_before)"
        " select gen_random_uuid(), 'default', 'x', 'a-' || n, now() - interval '1 hour'"
        " from generate_series(1, 3000) n"
    )
    sql("insert into pgqueue.pauses (kind, name) select 'agent', 'a-' || n from generate_series(1, 3000) n")
    last = client.enqueue("x", agent="b")
    assert [task.id for task in client.claim_batch(limit=10)] == [last.id]


def test_next_due_leaves_out_paused_queues(client: Client, database: Database) -> None:
    for agent in (None, "a"):
        client.enqueue("x", queue="mail", delay=1000, agent=agent)
    client.enqueue("x", queue="mail", delay=1000, requires=["gpu"])
    client.enqueue("x", queue="other", delay=2000)
    client.pause("queue", "mail")
    met = [("mail", 0, "{gpu}")]
    with database.begin() as connection:
        wait = Store("pgqueue").next_due(connection, ["mail", "other"], met=met)
        assert wait is not None
        assert 1900 < wait <= 2000
        assert Store("pgqueue").next_due(connection, ["mail"], met=met) is None


def test_mark_of_the_pauses_changes_with_each_that_comes_or_goes(client: Client, database: Database) -> None:
    def mark() -> object:
        with database.begin() as connection:
            return Store("pgqueue").pauses_mark(connection)

    seen = [mark()]
    for change in (
        lambda: client.pause("queue", "a"),
        lambda: client.pause("agent", "b"),
        lambda: client.resume("queue", "a"),
        lambda: (client.pause("queue", "c"), client.resume("agent", "b")),
    ):
        change()
        seen.append(mark())
    assert len(set(seen)) == len(seen)
    assert mark() == seen[-1]
