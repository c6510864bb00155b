"""What callers pass that is no id, no name, no list, or can be read once only: refused in one line, or taken whole."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from pgqueue.client import Client
from pgqueue.errors import InputError, RetryTransaction
from pgqueue.lifecycle import Status
from pgqueue.options import NewTask
from pgqueue.store import Store
from tests.support import Sql
from tests.support.edges import parent, waits

NO_IDS = [None, 5, "x", "01a228ab-0079-73db-a81d-8c39605f8866", b"x"]
BY_ID: dict[str, Callable[[Client, Any], object]] = {
    "get": lambda client, given: client.get(given),
    "events": lambda client, given: client.events(given),
    "cancel": lambda client, given: client.cancel(given),
    "retry": lambda client, given: client.retry(given),
    "dismiss": lambda client, given: client.dismiss(given),
    "evict": lambda client, given: client.evict(given),
    "reschedule": lambda client, given: client.reschedule(given, priority=1),
    "set_gate": lambda client, given: client.set_gate(given),
    "parents": lambda client, given: client.parents(given),
}


def refused(caught: pytest.ExceptionInfo[InputError], field: str) -> None:
    assert caught.value.field == field
    assert re.fullmatch(rf"{field} [^;]+; .+", str(caught.value))


@pytest.mark.parametrize("given", NO_IDS, ids=repr)
@pytest.mark.parametrize("verb", BY_ID)
def test_what_is_no_id(face: Client, verb: str, given: Any) -> None:
    with pytest.raises(InputError) as caught:
        BY_ID[verb](face, given)
    refused(caught, "task_id")


@pytest.mark.parametrize(("field", "given"), [("floor", "x"), ("floor", None), ("children", ["x"])])
def test_sweep_of_what_it_cannot_look_at(face: Client, field: str, given: Any) -> None:
    with pytest.raises(InputError) as caught:
        face.sweep(**{field: given})
    refused(caught, field)


@pytest.mark.parametrize("field", ["after", "task_id"])
@pytest.mark.parametrize("given", NO_IDS[1:], ids=repr)
def test_audit_of_what_is_no_id(face: Client, field: str, given: Any) -> None:
    with pytest.raises(InputError) as caught:
        face.audit(**{field: given})
    refused(caught, field)


@pytest.mark.parametrize("given", [None, 5, 0], ids=repr)
def test_parents_that_are_no_list(face: Client, sql: Sql, given: Any) -> None:
    above = parent(face)
    for call in (lambda: face.enqueue("child", depends_on=given), lambda: face.set_gate(above, depends_on=given)):
        with pytest.raises(InputError) as caught:
            call()
        refused(caught, "depends_on")
    assert sql("select count(*) from pgqueue.task_dependencies") == [(0,)]


@pytest.mark.parametrize("given", [None, 5, "gpu"], ids=repr)
def test_offers_that_are_no_list(face: Client, given: Any) -> None:
    for call in (lambda: face.claim("host", offers=given), lambda: face.claim_batch(offers=given)):
        with pytest.raises(InputError) as caught:
            call()
        refused(caught, "offers")


def test_floor_that_is_no_instant(face: Client) -> None:
    with pytest.raises(InputError) as caught:
        face.prune(floor=cast("Any", "yesterday"))
    refused(caught, "floor")


@pytest.mark.parametrize("own", [True, False], ids=["own transaction", "caller's"])
def test_names_of_several_types_in_one_batch(client: Client, own: bool) -> None:
    tasks = [NewTask("act", None, cast("Any", {"agent": 5})), NewTask("act", None, {"agent": "host"})]
    with client.database.begin() as connection, pytest.raises(InputError) as caught:
        (client if own else client.on(connection)).enqueue_many(tasks)
    refused(caught, "agent")


@pytest.mark.parametrize("own", [True, False], ids=["own transaction", "caller's"])
def test_batch_of_what_are_no_tasks(client: Client, own: bool) -> None:
    with client.database.begin() as connection, pytest.raises(InputError) as caught:
        (client if own else client.on(connection)).enqueue_many(cast("Any", ["act"]))
    refused(caught, "tasks")


@pytest.mark.parametrize(
    "by", ["a\0b", "\udcff", 5, b"ada", "x" * 100_000], ids=["nul", "surrogate", "int", "bytes", "long"]
)
def test_whoever_asked_cannot_stop_what_he_asked_for(face: Client, by: Any) -> None:
    task_id = face.enqueue("act").id
    face.reschedule(task_id, priority=1, by=by)
    face.set_gate(task_id, by=by)
    assert face.cancel(task_id, by=by) is Status.CANCELLED
    events = face.events(task_id)
    assert [event.event for event in events] == ["reschedule", "gate", "cancel"]
    for event in events:
        assert event.by
        assert len(event.by.encode()) <= 512
        assert "\0" not in event.by


@pytest.fixture
def one_race_lost(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The first transaction that writes a gate or claims is rolled back as by a deadlock."""
    lost: list[str] = []

    def losing(verb: Callable[..., object]) -> Callable[..., object]:
        def loses(*args: Any, **kwargs: Any) -> object:
            result = verb(*args, **kwargs)
            if not lost:
                lost.append(verb.__name__)
                raise RetryTransaction("the transaction was in a deadlock: roll back and run it again")
            return result

        return loses

    for name in ("_link", "_claim_of_nobody"):
        monkeypatch.setattr(Store, name, losing(getattr(Store, name)))
    yield
    assert lost


@pytest.mark.usefixtures("one_race_lost")
def test_gate_of_iterators_is_whole_where_it_is_tried_again(face: Client) -> None:
    above, task_id = parent(face), face.enqueue("child").id
    assert face.set_gate(task_id, depends_on=iter([above]), requires=(name for name in ["gpu"]))
    assert waits(face, task_id)
    assert face.get(task_id).requires == ("gpu",)


@pytest.mark.usefixtures("one_race_lost")
def test_claim_with_iterators_is_whole_where_it_is_tried_again(face: Client) -> None:
    task_id = face.enqueue("act", queue="mail", requires=["gpu"]).id
    claimed = face.claim_batch(cast("Any", iter(["mail"])), offers=cast("Any", iter(["gpu"])))
    assert [task.id for task in claimed] == [task_id]
