"""`set_gate`: a pending task's gates become exactly what is given; where they do not, the answer says why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import CircularDependency, InputError
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.options import NewTask
from pgqueue.task import Gated
from tests.support import Sql, eventually, somebody_waits
from tests.support.edges import ENDS, MISCOUNTED, STRANDED, buried, completed, is_free, parent, sweep, take, waits


@pytest.fixture(autouse=True)
def lawful(sql: Sql) -> Iterator[None]:
    yield
    assert sql(MISCOUNTED) == []
    assert sql(STRANDED) == []


def gates(client: Client, task_id: UUID) -> tuple[set[UUID], tuple[str, ...], str]:
    task = client.get(task_id)
    return {one.id for one in client.parents(task_id)}, task.requires, task.on_parent_failure


# -- what it answers


def test_pending_task_is_gated(face: Client, sql: Sql) -> None:
    above, task_id = parent(face), face.enqueue("child").id
    answer = face.set_gate(task_id, depends_on=[above], by="ada")
    assert answer == Gated(task_id, Status.PENDING)
    assert answer
    assert waits(face, task_id)
    [event] = face.events(task_id)
    assert (event.event, event.by, event.from_status, event.to_status) == (
        "gate",
        "ada",
        Status.PENDING,
        Status.PENDING,
    )
    assert event.detail == "1 parent(s), requires nothing"
    completed(face, sql, above)
    assert is_free(face, task_id)


def test_running_task_is_left_alone(face: Client) -> None:
    task_id = parent(face)
    held = take(face, task_id)
    answer = face.set_gate(task_id, depends_on=[new_id()], requires=["gpu"])
    assert answer == Gated(task_id, Status.RUNNING)
    assert not answer
    assert gates(face, task_id) == (set(), (), "cancel")
    face.complete(held)


@pytest.mark.parametrize("end", ENDS)
def test_finished_task_is_left_alone(end: str, face: Client, sql: Sql) -> None:
    task_id = parent(face)
    ENDS[end](face, sql, task_id)
    before = face.events(task_id)
    answer = face.set_gate(task_id, depends_on=[new_id()])
    assert answer == Gated(task_id, face.get(task_id).status)
    assert not answer
    assert face.events(task_id) == before
    assert gates(face, task_id) == (set(), (), "cancel")


def test_unknown_task_is_none(face: Client) -> None:
    task_id = new_id()
    answer = face.set_gate(task_id, depends_on=[new_id()])
    assert answer == Gated(task_id, None)
    assert not answer


def test_task_that_is_claimed_meanwhile_is_left_alone(client: Client, database: Database, sql: Sql) -> None:
    """The seed's ambiguous false: it runs already, ungated, and the caller must know."""
    task_id = parent(client)
    answers: list[Gated] = []
    with database.begin() as claiming:
        held = take(client.on(claiming), task_id)
        thread = threading.Thread(target=lambda: answers.append(client.set_gate(task_id, depends_on=[new_id()])))
        thread.start()
        eventually(lambda: somebody_waits(sql))
    thread.join(30)
    assert answers == [Gated(task_id, Status.RUNNING)]
    client.complete(held)


# -- what it sets


def test_gates_are_a_set_and_replace_what_was_there(face: Client, sql: Sql) -> None:
    one, other, third = (parent(face) for _ in range(3))
    task_id = face.enqueue("child", None, depends_on=[one, other], requires=["gpu"], on_parent_failure="run").id
    assert face.set_gate(task_id, depends_on=[other, third, other], requires=["net", "disk", "net"])
    assert gates(face, task_id) == ({other, third}, ("disk", "net"), "cancel")
    assert face.get(task_id).waiting_on == 2
    assert face.events(task_id)[-1].detail == "2 parent(s), requires disk, net"
    buried(face, sql, one)
    assert waits(face, task_id)
    completed(face, sql, other)
    completed(face, sql, third)
    assert is_free(face, task_id)


def test_gate_takes_the_answer_to_a_parents_failure(client: Client, sql: Sql) -> None:
    above, task_id = parent(client), client.enqueue("child").id
    client.set_gate(task_id, depends_on=[above], on_parent_failure="run")
    buried(client, sql, above)
    assert is_free(client, task_id)


def test_gate_of_nothing_releases(face: Client, sql: Sql) -> None:
    above = parent(face)
    task_id = face.enqueue("child", None, queue="children", depends_on=[above], requires=["gpu"]).id
    [(before,)] = sql("select clock_timestamp()")
    assert face.set_gate(task_id)
    assert gates(face, task_id) == (set(), (), "cancel")
    assert is_free(face, task_id)
    # Where the claims' floors do not hide it.
    assert face.get(task_id).not_before >= before
    assert face.claim_batch("children")[0].id == task_id


def test_gate_leaves_a_later_time_alone(client: Client) -> None:
    task_id = client.enqueue("child", None, delay=3600).id
    due = client.get(task_id).not_before
    client.set_gate(task_id)
    assert client.get(task_id).not_before == due


def test_gate_to_parents_that_have_ended(client: Client, sql: Sql) -> None:
    done, dead = parent(client), parent(client)
    completed(client, sql, done)
    buried(client, sql, dead)
    freed, doomed, runs = (client.enqueue("child").id for _ in range(3))
    assert client.set_gate(freed, depends_on=[done])
    assert client.set_gate(doomed, depends_on=[done, dead])
    assert client.set_gate(runs, depends_on=[dead], on_parent_failure="run")
    assert is_free(client, freed)
    assert client.get(doomed).last_error == f"cancelled: its parent {dead} is dead"
    assert is_free(client, runs)


def test_gate_on_one_that_is_yet_to_come(face: Client, sql: Sql) -> None:
    """Gate first, then enqueue: the other order leaves a moment in which the task runs."""
    above, task_id = new_id(), face.enqueue("child").id
    assert face.set_gate(task_id, depends_on=[above])
    face.enqueue("parent", None, id=above, agent="a")
    assert face.sweep() == []
    assert waits(face, task_id)
    completed(face, sql, above)
    assert is_free(face, task_id)


def test_gating_again_starts_the_grace_again(client: Client, sql: Sql) -> None:
    missing, task_id = new_id(), client.enqueue("child").id
    client.set_gate(task_id, depends_on=[missing])
    sql("update pgqueue.task_dependencies set look_at = now()")
    client.set_gate(task_id, depends_on=[missing])
    [(left,)] = sql("select extract(epoch from look_at - now())::float from pgqueue.task_dependencies")
    assert left > 200
    assert client.sweep() == []
    assert waits(client, task_id)


def test_gate_in_a_callers_transaction_counts_when_it_commits(client: Client, database: Database, sql: Sql) -> None:
    above, task_id = parent(client), client.enqueue("child").id
    with database.engine.connect() as mine:
        assert client.on(mine).set_gate(task_id, depends_on=[above])
        mine.rollback()
        assert is_free(client, task_id)
        assert client.events(task_id) == []
        assert client.on(mine).set_gate(task_id, depends_on=[above])
        mine.commit()
    assert waits(client, task_id)
    sweep(client)
    completed(client, sql, above)
    assert is_free(client, task_id)


def test_gate_and_the_new_parent_in_one_transaction(client: Client, database: Database, sql: Sql) -> None:
    above, task_id = new_id(), client.enqueue("child").id
    with database.begin() as mine:
        joined = client.on(mine)
        if joined.set_gate(task_id, depends_on=[above]):
            joined.enqueue("parent", None, id=above, agent="a")
    completed(client, sql, above)
    sweep(client)
    assert is_free(client, task_id)


def test_gate_while_the_new_parent_ends(client: Client, database: Database, sql: Sql) -> None:
    above, task_id = parent(client), client.enqueue("child").id
    held = take(client, above)
    with database.begin() as mine:
        assert client.on(mine).set_gate(task_id, depends_on=[above])
        client.complete(held)
    assert waits(client, task_id)
    sweep(client)
    assert is_free(client, task_id)


def test_gate_of_ten_thousand_is_replaced_by_nothing(client: Client, sql: Sql) -> None:
    above = [made.id for made in client.enqueue_many(NewTask("parent", None, {}) for _ in range(10_000))]
    task_id = client.enqueue("child").id
    assert client.set_gate(task_id, depends_on=above)
    assert client.get(task_id).waiting_on == 10_000
    assert client.set_gate(task_id)
    assert is_free(client, task_id)


def test_children_of_a_gated_task_go_on_waiting_for_it(client: Client, sql: Sql) -> None:
    task_id = client.enqueue("child", None, queue="children").id
    below = client.enqueue("grandchild", None, depends_on=[task_id]).id
    above = parent(client)
    client.set_gate(task_id, depends_on=[above])
    buried(client, sql, above)
    assert client.get(below).status is Status.CANCELLED


# -- what it refuses


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an empty name": ({"requires": [""]}, "requires"),
    "one string": ({"requires": "gpu"}, "requires"),
    "a long name": ({"requires": ["x" * 513]}, "requires"),
    "a control character": ({"requires": ["a\nb"]}, "requires"),
    "too many names": ({"requires": [f"c{n}" for n in range(10_000)]}, "requires"),
    "no id": ({"depends_on": ["x"]}, "depends_on"),
    "too many parents": ({"depends_on": [UUID(int=n) for n in range(10_001)]}, "depends_on"),
    "an unknown word": ({"on_parent_failure": "explode"}, "on_parent_failure"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_gates_are_refused_and_change_nothing(name: str, client: Client, sql: Sql) -> None:
    above = parent(client)
    task_id = client.enqueue("child", None, depends_on=[above], requires=["gpu"]).id
    given, field = REFUSED[name]
    verbs: list[Callable[[], object]] = [
        lambda: client.set_gate(task_id, **given),
        lambda: client.enqueue("child", None, **given),
    ]
    for verb in verbs:
        with pytest.raises(InputError) as caught:
            verb()
        assert caught.value.field == field
        assert "\n" not in str(caught.value)
    assert gates(client, task_id) == ({above}, ("gpu",), "cancel")
    assert client.events(task_id) == []
    assert sql("select count(*) from pgqueue.tasks") == [(2,)]


def test_task_itself_is_refused(face: Client) -> None:
    task_id = face.enqueue("child").id
    with pytest.raises(InputError, match=str(task_id)) as caught:
        face.set_gate(task_id, depends_on=[task_id])
    assert caught.value.field == "depends_on"
    assert is_free(face, task_id)


def test_circle_is_refused_and_the_old_gates_stay(face: Client, sql: Sql) -> None:
    above = parent(face)
    first = face.enqueue("child", None, depends_on=[above]).id
    second = face.enqueue("child", None, depends_on=[first]).id
    last = face.enqueue("child", None, depends_on=[second]).id
    with pytest.raises(CircularDependency) as caught:
        face.set_gate(first, depends_on=[last], requires=["gpu"])
    assert list(caught.value.path) == [first, last, second, first]
    assert gates(face, first) == ({above}, (), "cancel")
    assert face.events(first) == []
    completed(face, sql, above)
    assert is_free(face, first)


def test_edges_that_are_lifted_close_no_circle(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = client.enqueue("child", None, queue="children", depends_on=[above]).id
    client.release(take(client, above))
    client.set_gate(below)
    client.set_gate(above, depends_on=[below])
    client.complete(client.claim_batch("children")[0])
    assert is_free(client, above)
