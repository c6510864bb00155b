"""`dedupe="forever"`: a key is used once, ever; and what happens where the two modes meet."""

from __future__ import annotations

import threading
from typing import Any
from uuid import UUID

import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError, KeyHeld, RetryTransaction
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.options import Enqueued, NewTask
from tests.support import Sql, eventually, somebody_waits
from tests.support.edges import ENDS, take

from .callers import KINDS

EVER: Any = "forever"
every_end = pytest.mark.parametrize("end", ENDS)
LEVELS = ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"]


def once(client: Client, key: str = "k", **options: Any) -> Enqueued:
    return client.enqueue("once", {"n": 1}, dedupe_key=key, dedupe=EVER, **options)


def used(client: Client, sql: Sql, end: str, key: str = "k", agent: str = "a") -> UUID:
    """A forever key whose task has ended."""
    made = once(client, key, agent=agent)
    ENDS[end](client, sql, made.id)
    return made.id


# -- once, ever


def test_key_is_used_once_while_its_task_lives(face: Client) -> None:
    made = once(face)
    assert made.created
    assert once(face) == Enqueued(made.id, created=False)
    [held] = face.claim_batch("default")
    assert once(face) == Enqueued(made.id, created=False)
    face.complete(held)


@every_end
def test_key_stays_used_when_its_task_has_ended(end: str, face: Client, sql: Sql) -> None:
    first = used(face, sql, end)
    before = face.get(first)
    assert once(face, agent="a", priority=9) == Enqueued(first, created=False)
    assert (
        face.enqueue_many([NewTask("once", None, {"dedupe_key": "k", "dedupe": EVER, "agent": "a"})] * 2)
        == [Enqueued(first, created=False)] * 2
    )
    # Adoption ignores the newcomer's options, and revives nobody.
    assert face.get(first) == before


def test_key_is_free_again_once_its_row_is_pruned(client: Client, sql: Sql) -> None:
    first = used(client, sql, "completed")
    assert client.prune(retention=0).tasks == 0
    assert once(client, agent="a").created is False
    assert client.prune(retention=0, forever=True).tasks == 1
    again = once(client, agent="a")
    assert again.created
    assert again.id != first


def test_key_is_used_per_agent_and_nobody_is_one(face: Client) -> None:
    made = [once(face, agent=agent) for agent in ("a", "b", None)]
    assert all(one.created for one in made)
    assert [once(face, agent=agent).id for agent in ("a", "b", None)] == [one.id for one in made]


@pytest.mark.parametrize("key", [None, ""])
def test_forever_needs_a_key(key: str | None, untouched: Client) -> None:
    with pytest.raises(InputError, match="needs a dedupe_key") as caught:
        untouched.enqueue("once", None, dedupe_key=key, dedupe=EVER)
    assert caught.value.field == "dedupe"
    with pytest.raises(InputError, match="needs a dedupe_key"):
        untouched.enqueue("once", None, dedupe=EVER)


def test_unknown_mode_is_refused(untouched: Client) -> None:
    with pytest.raises(InputError, match="dedupe") as caught:
        untouched.enqueue("once", None, dedupe_key="k", dedupe="sometimes")  # type: ignore[arg-type]
    assert caught.value.field == "dedupe"


def test_tasks_without_keys_are_nobodys_twins(face: Client) -> None:
    assert all(face.enqueue("once", None, dedupe_key=key).created for key in (None, "", None, ""))


def test_own_id_comes_before_the_key(client: Client, sql: Sql) -> None:
    """An enqueue that is sent again after a lost COMMIT finds its own task, whatever has become of it."""
    task_id = new_id()
    assert once(client, id=task_id, agent="a") == Enqueued(task_id, created=True)
    assert once(client, id=task_id, agent="a") == Enqueued(task_id, created=False)
    ENDS["completed"](client, sql, task_id)
    assert once(client, id=task_id, agent="a") == Enqueued(task_id, created=False)
    # A colliding id is no dedupe hit: it is its own task, not the key's.
    other = client.enqueue("other").id
    assert once(client, id=other, agent="a") == Enqueued(other, created=False)


# -- the two modes


def test_newcomer_of_either_mode_adopts_a_live_holder_of_the_other(face: Client) -> None:
    forever, active = once(face, "f").id, face.enqueue("often", None, dedupe_key="a").id
    assert face.enqueue("often", None, dedupe_key="f") == Enqueued(forever, created=False)
    assert once(face, "a") == Enqueued(active, created=False)
    made = face.enqueue_many(
        [NewTask("x", None, {"dedupe_key": "f"}), NewTask("x", None, {"dedupe_key": "a", "dedupe": EVER})]
    )
    assert [(one.id, one.created) for one in made] == [(forever, False), (active, False)]


@every_end
def test_forever_does_not_see_an_active_keys_past(end: str, client: Client, sql: Sql) -> None:
    before = client.enqueue("often", None, dedupe_key="k", agent="a").id
    ENDS[end](client, sql, before)
    made = once(client, agent="a")
    assert made.created
    assert once(client, agent="a").id == made.id


@every_end
def test_active_does_not_see_a_forever_keys_past(end: str, client: Client, sql: Sql) -> None:
    first = used(client, sql, end)
    made = client.enqueue("often", None, dedupe_key="k", agent="a")
    assert made.created
    # The one that lives holds the key for its own mode; for ever it was used by the first.
    assert client.enqueue("often", None, dedupe_key="k", agent="a").id == made.id
    assert once(client, agent="a").id == first


# -- many at once


def test_enqueue_many_makes_each_key_once(face: Client, sql: Sql) -> None:
    first = used(face, sql, "completed", key="k1")
    tasks = [NewTask("once", n, {"dedupe_key": f"k{n % 3}", "dedupe": EVER, "agent": "a"}) for n in range(9)]
    made = face.enqueue_many(tasks)
    assert [one.created for one in made] == [True, False, True] + [False] * 6
    assert {one.id for one in made[1::3]} == {first}
    assert [one.id for one in made[3:6]] == [one.id for one in made[:3]]


# -- retry


def test_dead_task_is_retried_though_it_has_used_its_key_for_ever(client: Client, sql: Sql) -> None:
    first = used(client, sql, "buried")
    assert client.retry(first).status is Status.PENDING
    assert once(client, agent="a") == Enqueued(first, created=False)
    client.complete(take(client, first))
    assert once(client, agent="a") == Enqueued(first, created=False)


def test_retry_of_a_dead_task_whose_key_is_active_elsewhere_names_the_holder(client: Client, sql: Sql) -> None:
    first = used(client, sql, "buried")
    holder = client.enqueue("often", None, dedupe_key="k", agent="a").id
    with pytest.raises(KeyHeld) as caught:
        client.retry(first)
    assert caught.value.holder == holder


# -- two at once


@pytest.mark.parametrize("commits", [True, False])
def test_second_of_two_at_once_waits_for_the_first(commits: bool, client: Client, database: Database, sql: Sql) -> None:
    answers: list[Enqueued] = []
    with database.engine.connect() as mine:
        first = once(client.on(mine))
        thread = threading.Thread(target=lambda: answers.append(once(client)))
        thread.start()
        eventually(lambda: somebody_waits(sql))
        mine.commit() if commits else mine.rollback()
        thread.join(30)
    [second] = answers
    assert second.created is not commits
    assert (second.id == first.id) is commits


def test_two_that_meet_the_end_of_the_first_make_no_second(client: Client, database: Database, sql: Sql) -> None:
    """Its key is not free when it ends: what an active key's newcomer would take over stays the first's."""
    first = once(client, agent="a").id
    held = take(client, first)
    answers: list[Enqueued] = []
    with database.begin() as ending:
        client.on(ending).complete(held)
        thread = threading.Thread(target=lambda: answers.append(once(client, agent="a")))
        thread.start()
        eventually(lambda: somebody_waits(sql))
    thread.join(30)
    assert answers == [Enqueued(first, created=False)]


# -- in callers' transactions


@pytest.mark.parametrize("kind", ["psycopg-session", "psycopg2-connection", "async-asyncpg-session", "bare"])
@pytest.mark.parametrize("level", LEVELS)
def test_key_used_before_the_callers_snapshot_is_adopted(
    kind: str, level: str, client: Client, database: Database, sql: Sql
) -> None:
    first = used(client, sql, "completed")
    with KINDS[kind](database, isolation=level) as caller:
        assert once(caller.client, agent="a") == Enqueued(first, created=False)
        mine = once(caller.client, "mine")
        assert once(caller.client, "mine") == Enqueued(mine.id, created=False)
        caller.commit()
    assert once(client, "mine").id == mine.id


@pytest.mark.parametrize("end", ["completed", "buried", None])
def test_key_used_after_the_callers_transaction_began_is_adopted_at_read_committed(
    end: str | None, client: Client, database: Database, sql: Sql
) -> None:
    with database.begin() as mine:
        mine.exec_driver_sql("select count(*) from pgqueue.tasks").scalar_one()
        first = once(client, agent="a").id if end is None else used(client, sql, end)
        assert once(client.on(mine), agent="a") == Enqueued(first, created=False)


@pytest.mark.parametrize("level", LEVELS[1:])
@pytest.mark.parametrize("end", ["completed", None])
def test_key_used_after_the_callers_snapshot_is_a_race_to_run_again(
    end: str | None, level: str, client: Client, database: Database, sql: Sql
) -> None:
    with database.engine.connect().execution_options(isolation_level=level) as mine:
        mine.exec_driver_sql("select count(*) from pgqueue.tasks").scalar_one()
        first = once(client, agent="a").id if end is None else used(client, sql, end)
        with pytest.raises(RetryTransaction):
            once(client.on(mine), agent="a")
        mine.rollback()
        assert once(client.on(mine), agent="a") == Enqueued(first, created=False)
        mine.commit()
