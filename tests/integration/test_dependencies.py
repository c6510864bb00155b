"""Tasks that wait for others: whatever ends a parent, whenever the child came, each child runs, ends or waits as told.

After each test every task's counter is the number of its edges that are not lifted, and nobody is stranded.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import psycopg
import pytest
from sqlalchemy import event as listening

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.edges import Fate
from pgqueue.errors import CircularDependency, InputError, WrongIsolation
from pgqueue.ids import new_id
from pgqueue.lifecycle import Event, Status
from pgqueue.options import Enqueued, NewTask
from pgqueue.store import Settlement, Store
from tests.support import Sql, connect
from tests.support.edges import (
    BADLY,
    ENDS,
    MISCOUNTED,
    STRANDED,
    buried,
    completed,
    is_free,
    parent,
    sweep,
    take,
    waits,
)

from .callers import KINDS

every_end = pytest.mark.parametrize("end", ENDS)
bad_ends = pytest.mark.parametrize("end", BADLY)


@pytest.fixture(autouse=True)
def lawful(sql: Sql) -> Iterator[None]:
    yield
    assert sql(MISCOUNTED) == []
    assert sql(STRANDED) == []


def child(client: Client, *parents: UUID, **options: Any) -> UUID:
    made = client.enqueue("child", None, depends_on=parents, **options)
    assert made.created
    return made.id


def edge(sql: Sql, child: UUID, parent: UUID) -> tuple[bool, bool | None]:
    """(lifted, whether it is to be looked at now: None: never)."""
    [row] = sql(
        "select lifted_at is not null, look_at <= clock_timestamp() from pgqueue.task_dependencies"
        " where child_id = %s and parent_id = %s",
        child,
        parent,
    )
    return row[0], row[1]


def why(client: Client, task_id: UUID) -> str:
    task = client.get(task_id)
    assert task.status is Status.CANCELLED
    [event] = client.events(task_id)
    assert (event.event, event.detail) == ("cascade", task.last_error)
    return task.last_error or ""


# -- a parent that ends after its child was enqueued


@every_end
def test_parent_that_ends_frees_its_child_or_cancels_it(end: str, face: Client, sql: Sql) -> None:
    above = parent(face)
    below = child(face, above, queue="children")
    assert waits(face, below)
    assert face.claim_batch("children") == []
    ENDS[end](face, sql, above)
    if end == "completed":
        assert is_free(face, below)
        assert face.claim_batch("children")[0].id == below
    else:
        status = face.get(above).status
        assert why(face, below) == f"cancelled: its parent {above} (parent) is {status.value}"
    assert edge(sql, below, above) == (True, None)


@every_end
def test_child_that_runs_all_the_same_starts_whatever_its_parent_became(end: str, client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above, on_parent_failure="run")
    ENDS[end](client, sql, above)
    assert is_free(client, below)
    assert client.events(below) == []
    [seen] = client.parents(below)
    assert (seen.id, seen.status) == (above, client.get(above).status)


def test_child_waits_for_the_last_of_its_parents(face: Client, sql: Sql) -> None:
    parents = [parent(face) for _ in range(3)]
    below = child(face, *parents)
    for left, one in zip((2, 1, 0), parents, strict=True):
        completed(face, sql, one)
        assert face.get(below).waiting_on == left
    assert is_free(face, below)
    assert [(one.id, one.status, one.result) for one in face.parents(below)] == [
        (one, Status.COMPLETED, {"n": 1}) for one in parents
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(["completed", "buried", "cancelled"])))
def test_mixed_endings_in_any_order(order: tuple[str, ...], client: Client, sql: Sql) -> None:
    parents = [parent(client) for _ in order]
    strict, recovery = child(client, *parents), child(client, *parents, on_parent_failure="run")
    for n, (one, end) in enumerate(zip(parents, order, strict=True), 1):
        ENDS[end](client, sql, one)
        assert client.get(recovery).waiting_on == 3 - n
    assert client.get(strict).status is Status.CANCELLED
    assert is_free(client, recovery)
    # The others' edges were lifted, too, though it had been cancelled.
    assert client.get(strict).waiting_on == 0
    first = next(one for one, end in zip(parents, order, strict=True) if end != "completed")
    assert str(first) in why(client, strict)


@bad_ends
def test_cascade_goes_all_the_way_down_and_names_the_parent_each_time(end: str, client: Client, sql: Sql) -> None:
    above = parent(client)
    chain = [above]
    for _ in range(5):
        chain.append(child(client, chain[-1]))
    ENDS[end](client, sql, above)
    for one, its_child in itertools.pairwise(chain):
        assert f"its parent {one} " in why(client, its_child)


def test_cascade_stops_at_who_runs_all_the_same(client: Client, sql: Sql) -> None:
    above = parent(client)
    doomed = child(client, above)
    recovery = child(client, doomed, on_parent_failure="run")
    report = child(client, recovery)
    buried(client, sql, above)
    assert client.get(doomed).status is Status.CANCELLED
    assert is_free(client, recovery)
    assert waits(client, report)
    client.complete(client.claim_batch("default")[0])
    assert is_free(client, report)


def test_cascade_goes_down_a_diamond_once(client: Client, sql: Sql) -> None:
    above = parent(client)
    sides = [child(client, above) for _ in range(2)]
    bottom = child(client, *sides)
    buried(client, sql, above)
    assert {str(one) in why(client, bottom) for one in sides} == {True, False}
    assert client.get(bottom).waiting_on == 0


def test_dismissed_parent_was_dead_already(client: Client, sql: Sql) -> None:
    above = parent(client)
    recovery = child(client, above, on_parent_failure="run")
    buried(client, sql, above)
    client.dismiss(above)
    assert is_free(client, recovery)
    late = child(client, above)
    assert client.get(late).status is Status.CANCELLED
    assert why(client, late) == f"cancelled: its parent {above} is cancelled"


def test_retry_that_goes_back_to_pending_frees_nobody(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    client.fail(take(client, above), "not yet")
    assert waits(client, below)
    client.release(take_again(client, sql, above))
    client.snooze(take_again(client, sql, above), 0)
    assert waits(client, below)
    completed(client, sql, above)
    assert is_free(client, below)


def take_again(client: Client, sql: Sql, task_id: UUID) -> Any:
    sql("update pgqueue.tasks set not_before = now() where id = %s", task_id)
    return take(client, task_id)


def test_cancelled_childs_edges_are_lifted_as_its_parents_end(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    client.cancel(below)
    assert edge(sql, below, above) == (False, None)
    completed(client, sql, above)
    assert edge(sql, below, above) == (True, None)
    task = client.get(below)
    assert (task.status, task.waiting_on, task.last_error) == (Status.CANCELLED, 0, None)


def test_cancelling_a_child_that_waits_cancels_its_children(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    last = child(client, below)
    client.cancel(below)
    assert str(below) in why(client, last)
    buried(client, sql, above)


def test_freed_child_stands_where_it_could_first_have_been_claimed(client: Client, sql: Sql) -> None:
    """The claims' floors are past the moment at which it was enqueued."""
    above = parent(client)
    below = child(client, above)
    later = child(client, above, delay=3600)
    due = client.get(later).not_before
    sql("update pgqueue.tasks set not_before = now() - interval '1 hour' where id = %s", below)
    [(before,)] = sql("select clock_timestamp()")
    completed(client, sql, above)
    assert client.get(below).not_before >= before
    assert client.get(later).not_before == due


def test_child_that_still_waits_for_another_keeps_its_time(client: Client, sql: Sql) -> None:
    one, other = parent(client), parent(client)
    below = child(client, one, other)
    due = client.get(below).not_before
    completed(client, sql, one)
    assert client.get(below).not_before == due
    client.cancel(below)


# -- several parents at once


@pytest.mark.parametrize("events", [(Event.COMPLETE, Event.COMPLETE), (Event.COMPLETE, Event.BURY), (Event.BURY,) * 2])
def test_two_parents_of_one_child_in_one_batch(
    events: tuple[Event, Event], client: Client, database: Database, sql: Sql
) -> None:
    parents = [parent(client) for _ in range(2)]
    strict, recovery = child(client, *parents), child(client, *parents, on_parent_failure="run")
    batch = [
        Settlement(event, take(client, one).lease, "null" if event is Event.COMPLETE else "no use")
        for one, event in zip(parents, events, strict=True)
    ]
    with database.begin() as connection:
        Store("pgqueue").settle_many(connection, batch)
    assert is_free(client, recovery)
    if Event.BURY in events:
        assert client.get(strict).status is Status.CANCELLED
    else:
        assert is_free(client, strict)


def test_two_parents_that_end_in_two_transactions_at_once(client: Client, database: Database, sql: Sql) -> None:
    one, other = parent(client), parent(client)
    below = child(client, one, other)
    held = take(client, one), take(client, other)
    with database.begin() as first:
        client.on(first).complete(held[0])
        # The first has the child locked: the second leaves word.
        client.complete(held[1])
    assert waits(client, below)
    assert edge(sql, below, other) == (False, True)
    assert [(s.child, s.parent, s.fate) for s in client.sweep()] == [(below, other, Fate.LIFT)]
    assert is_free(client, below)


# -- a child that comes after its parent's end, or during it


@every_end
@pytest.mark.parametrize("run", [False, True])
def test_child_enqueued_after_its_parents_end(end: str, run: bool, face: Client, sql: Sql) -> None:
    above = parent(face)
    ENDS[end](face, sql, above)
    below = child(face, above, on_parent_failure="run" if run else "cancel")
    if end == "completed" or run:
        assert is_free(face, below)
        assert edge(sql, below, above) == (True, None)
    else:
        assert why(face, below) == f"cancelled: its parent {above} is {face.get(above).status.value}"


def test_child_of_some_that_have_ended_and_some_that_have_not(client: Client, sql: Sql) -> None:
    done, alive = parent(client), parent(client)
    completed(client, sql, done)
    below = child(client, done, alive)
    assert client.get(below).waiting_on == 1
    completed(client, sql, alive)
    assert is_free(client, below)


@every_end
@pytest.mark.parametrize("run", [False, True])
def test_child_whose_transaction_is_open_while_its_parent_ends(
    end: str, run: bool, client: Client, database: Database, sql: Sql
) -> None:
    above = parent(client)
    with database.begin() as mine:
        below = child(client.on(mine), above, on_parent_failure="run" if run else "cancel")
        ENDS[end](client, sql, above)
    assert edge(sql, below, above) == (False, True)
    assert waits(client, below)
    [swept] = client.sweep()
    assert (swept.child, swept.parent) == (below, above)
    assert swept.fate is (Fate.LIFT if end == "completed" else Fate.FAIL)
    if end == "completed" or run:
        assert is_free(client, below)
    else:
        assert str(above) in why(client, below)
    assert client.sweep() == []


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_child_that_comes_while_its_parents_end_is_not_committed_yet(
    end: str, client: Client, database: Database, sql: Sql
) -> None:
    above = parent(client)
    held = take(client, above)
    with database.begin() as ending:
        if end == "complete":
            client.on(ending).complete(held)
        else:
            client.on(ending).bury(held, "no use")
        below = child(client, above)
        assert edge(sql, below, above) == (False, True)
        assert [s.fate for s in client.sweep()] == [Fate.LATER]
    assert waits(client, below)
    sweep(client)
    assert (is_free(client, below), client.get(below).status is Status.CANCELLED) == (end == "complete", end == "bury")


def test_child_that_comes_during_an_end_that_is_rolled_back_waits_on(
    client: Client, database: Database, sql: Sql
) -> None:
    above = parent(client)
    held = take(client, above)
    with database.engine.connect() as ending:
        client.on(ending).complete(held)
        below = child(client, above)
        ending.rollback()
    assert [s.fate for s in client.sweep()] == [Fate.WAIT]
    assert edge(sql, below, above) == (False, None)
    client.complete(held)
    assert is_free(client, below)


def test_sweep_that_clears_an_edge_holds_off_the_parents_end(client: Client, database: Database, sql: Sql) -> None:
    """Until it has committed: else the end would not see an edge that nobody looks at any more."""
    above = parent(client)
    held = take(client, above)
    below = child(client, above)
    sql("update pgqueue.task_dependencies set look_at = now()")
    store = Store("pgqueue")
    with database.begin() as sweeping:
        assert [s.fate for s in store.sweep(sweeping)] == [Fate.WAIT]
        with database.begin() as settling:
            again = store.settle_many(settling, [Settlement(Event.COMPLETE, held.lease)])
        assert again == {above: None}
        client.renew(held)
    client.complete(held)
    assert is_free(client, below)


def test_child_and_parent_in_one_transaction_child_first(client: Client, database: Database, sql: Sql) -> None:
    above = new_id()
    with database.begin() as mine:
        below = child(client.on(mine), above)
        client.on(mine).enqueue("parent", None, id=above, agent="a")
    assert edge(sql, below, above) == (False, None)
    completed(client, sql, above)
    assert is_free(client, below)


def test_child_and_parent_in_one_transaction_parent_first(client: Client, database: Database, sql: Sql) -> None:
    with database.begin() as mine:
        above = parent(client.on(mine))
        below = child(client.on(mine), above)
    assert edge(sql, below, above) == (False, None)
    buried(client, sql, above)
    assert client.get(below).status is Status.CANCELLED


@pytest.mark.parametrize("first", ["child", "end"])
@pytest.mark.parametrize("end", ["complete", "bury"])
def test_handler_that_enqueues_a_child_and_ends_its_own_task(
    first: str, end: str, client: Client, database: Database, sql: Sql
) -> None:
    above = parent(client)
    held = take(client, above)
    with database.begin() as mine:
        joined = client.on(mine)
        below = child(joined, above) if first == "child" else None
        if end == "complete":
            joined.complete(held)
        else:
            joined.bury(held, "no use")
        below = below or child(joined, above)
    sweep(client)
    if end == "complete":
        assert is_free(client, below)
    else:
        assert client.get(below).status is Status.CANCELLED


def test_rolled_back_child_leaves_nothing(client: Client, database: Database, sql: Sql) -> None:
    above = parent(client)
    with database.engine.connect() as mine:
        child(client.on(mine), above)
        mine.rollback()
    assert sql("select count(*) from pgqueue.task_dependencies") == [(0,)]
    completed(client, sql, above)


@pytest.mark.parametrize("kind", KINDS)
def test_callers_connections_of_every_kind(kind: str, client: Client, database: Database, sql: Sql) -> None:
    good, bad = parent(client), parent(client)
    below, gated = child(client, good), client.enqueue("child").id
    held = take(client, good), take(client, bad)
    with KINDS[kind](database) as caller:
        caller.client.complete(held[0])
        late = caller.client.enqueue("child", None, depends_on=[good, bad]).id
        [last] = caller.client.enqueue_many([NewTask("child", None, {"depends_on": [late]})])
        assert caller.client.set_gate(gated, depends_on=[bad])
        caller.client.bury(held[1], "no use")
        assert [one.status for one in caller.client.parents(late)] == [Status.COMPLETED, Status.DEAD]
        assert is_free(client, gated)
        caller.commit()
    sweep(client)
    assert is_free(client, below)
    assert [client.get(one).status for one in (late, last.id, gated)] == [Status.CANCELLED] * 3


# -- at other isolation levels


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("end", ["completed", "buried", None])
def test_child_enqueued_by_a_caller_with_an_old_snapshot(
    level: str, end: str | None, client: Client, database: Database, sql: Sql
) -> None:
    above = parent(client)
    with database.engine.connect().execution_options(isolation_level=level) as mine:
        mine.exec_driver_sql("select count(*) from pgqueue.tasks").scalar_one()
        if end is not None:
            ENDS[end](client, sql, above)
        below = child(client.on(mine), above)
        mine.commit()
    assert edge(sql, below, above) == (False, True)
    sweep(client)
    match end:
        case "completed":
            assert is_free(client, below)
        case "buried":
            assert client.get(below).status is Status.CANCELLED
        case _:
            assert edge(sql, below, above) == (False, None)
            completed(client, sql, above)
            assert is_free(client, below)


def test_child_of_a_renewed_parent_at_repeatable_read_commits(client: Client, database: Database, sql: Sql) -> None:
    above = parent(client)
    held = take(client, above)
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine:
        below = child(client.on(mine), above)
        client.renew(held)
        mine.commit()
    sweep(client)
    client.complete(held)
    assert is_free(client, below)


def test_what_looks_again_is_refused_at_repeatable_read(client: Client, database: Database) -> None:
    above = parent(client)
    below = child(client, above)
    with database.engine.connect().execution_options(isolation_level="REPEATABLE READ") as mine:
        for verb in (
            lambda: client.on(mine).cancel(above),
            lambda: client.on(mine).set_gate(below),
            lambda: client.on(mine).sweep(),
        ):
            with pytest.raises(WrongIsolation):
                verb()
    assert waits(client, below)


# -- parents that are not there


def grace_is_over(sql: Sql) -> None:
    sql("update pgqueue.task_dependencies set look_at = now() where look_at > now()")


def test_absent_parent_is_waited_for_as_long_as_meta_says(client: Client, sql: Sql) -> None:
    below = child(client, new_id())
    [(grace,)] = sql(
        "select extract(epoch from look_at - t.created_at)::float from pgqueue.task_dependencies"
        " join pgqueue.tasks t on t.id = child_id"
    )
    assert 299 < grace < 330
    assert client.sweep() == []
    assert waits(client, below)


def test_absent_parent_is_let_go_after_the_grace(face: Client, sql: Sql) -> None:
    missing = new_id()
    below = child(face, missing)
    grace_is_over(sql)
    [(before,)] = sql("select clock_timestamp()")
    assert [(s.child, s.parent, s.fate) for s in face.sweep()] == [(below, missing, Fate.LET_GO)]
    assert is_free(face, below)
    assert face.get(below).not_before >= before
    [event] = face.events(below)
    assert (event.event, event.from_status, event.to_status) == ("let_go", Status.PENDING, Status.PENDING)
    assert event.detail == f"its parent {missing} never appeared"
    [seen] = face.parents(below)
    assert (seen.id, seen.action, seen.status, seen.result, seen.last_error) == (missing, None, None, None, None)


def test_grace_of_nothing_lets_go_right_away(client: Client, sql: Sql) -> None:
    sql("update pgqueue.meta set orphan_grace = '0'")
    below = child(client, new_id())
    sweep(client)
    assert is_free(client, below)


def test_absent_one_of_two_leaves_the_other(client: Client, sql: Sql) -> None:
    above, missing = parent(client), new_id()
    below = child(client, above, missing)
    grace_is_over(sql)
    sweep(client)
    assert client.get(below).waiting_on == 1
    completed(client, sql, above)
    assert is_free(client, below)


def test_parent_that_appears_before_the_grace_is_over_is_waited_for(client: Client, sql: Sql) -> None:
    above = new_id()
    below = child(client, above)
    client.enqueue("parent", None, id=above, agent="a")
    grace_is_over(sql)
    assert [s.fate for s in client.sweep()] == [Fate.WAIT]
    assert edge(sql, below, above) == (False, None)
    completed(client, sql, above)
    assert is_free(client, below)


@every_end
def test_parent_that_appears_and_ends_before_the_grace_is_over(end: str, client: Client, sql: Sql) -> None:
    above = new_id()
    below = child(client, above)
    client.enqueue("parent", None, id=above, agent="a")
    ENDS[end](client, sql, above)
    if end == "completed":
        assert is_free(client, below)
    else:
        assert client.get(below).status is Status.CANCELLED
    grace_is_over(sql)
    assert client.sweep() == []


def test_parent_that_appears_after_the_grace_is_not_waited_for(client: Client, sql: Sql) -> None:
    above = new_id()
    below = child(client, above)
    grace_is_over(sql)
    sweep(client)
    client.enqueue("parent", None, id=above, agent="a")
    buried(client, sql, above)
    assert is_free(client, below)


def test_pruned_parent_is_shown_without_a_status(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    completed(client, sql, above)
    sql("delete from pgqueue.tasks where id = %s", above)
    assert [(one.id, one.status) for one in client.parents(below)] == [(above, None)]
    assert is_free(client, below)


def test_child_enqueued_when_its_parent_was_pruned_waits_for_the_grace(client: Client, sql: Sql) -> None:
    above = parent(client)
    completed(client, sql, above)
    sql("delete from pgqueue.tasks where id = %s", above)
    below = child(client, above)
    assert edge(sql, below, above) == (False, False)
    grace_is_over(sql)
    sweep(client)
    assert is_free(client, below)


def test_edges_of_a_child_that_is_gone_are_swept_away(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    sql("delete from pgqueue.tasks where id = %s", below)
    completed(client, sql, above)
    assert [(s.child, s.parent, s.fate) for s in client.sweep()] == [(below, None, Fate.LET_GO)]
    assert sql("select count(*) from pgqueue.task_dependencies") == [(0,)]


# -- what may be given


def test_parents_given_twice_count_once(face: Client, sql: Sql) -> None:
    made = face.enqueue("parent", None, agent="a")
    below = child(face, made.id, made.id)
    other = face.enqueue("child", None, depends_on=[made, made.id]).id
    assert [face.get(one).waiting_on for one in (below, other)] == [1, 1]
    completed(face, sql, made.id)
    assert is_free(face, below)
    assert is_free(face, other)


def test_parents_and_conditions_may_come_from_a_generator(face: Client, sql: Sql) -> None:
    above = parent(face)

    def options() -> Any:
        return {"depends_on": (one for one in [above]), "requires": (name for name in ["gpu"])}

    alone = face.enqueue("child", None, **options()).id
    named = face.enqueue("child", None, id=new_id(), **options()).id
    [many] = face.enqueue_many([NewTask("child", None, options())])
    gated = face.enqueue("child").id
    face.set_gate(gated, **options())
    for task_id in (alone, named, many.id, gated):
        task = face.get(task_id)
        assert (task.waiting_on, task.requires) == (1, ("gpu",))
        assert [one.id for one in face.parents(task_id)] == [above]
    completed(face, sql, above)
    assert is_free(face, alone)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("parent", "must be a sequence"),
        (["018f"], "uuid.UUIDs"),
        ([None], "uuid.UUIDs"),
        (new_id(), "must be a sequence"),
        (Enqueued(new_id(), created=True), "must be a sequence"),
    ],
)
def test_what_is_no_list_of_ids_is_refused(given: Any, message: str, untouched: Client) -> None:
    with pytest.raises(InputError, match=message) as caught:
        untouched.enqueue("child", None, depends_on=given)
    assert caught.value.field == "depends_on"


def test_task_that_names_itself_is_refused(untouched: Client) -> None:
    task_id = new_id()
    with pytest.raises(InputError, match="cannot depend on itself"):
        untouched.enqueue("child", None, id=task_id, depends_on=[task_id])


def test_more_parents_than_the_limit_are_refused(untouched: Client) -> None:
    with pytest.raises(InputError, match=r"10,001 tasks; the limit is 10,000"):
        untouched.enqueue("child", None, depends_on=[new_id() for _ in range(10_001)])


def test_unknown_answer_to_a_parents_failure_is_refused(untouched: Client) -> None:
    with pytest.raises(InputError, match="on_parent_failure"):
        untouched.enqueue("child", None, depends_on=[new_id()], on_parent_failure="explode")  # type: ignore[arg-type]


def test_ten_thousand_parents(client: Client, database: Database, sql: Sql) -> None:
    parents = [made.id for made in client.enqueue_many(NewTask("parent", None, {}) for _ in range(10_000))]
    below = child(client, *parents)
    assert client.get(below).waiting_on == 10_000
    store = Store("pgqueue")
    while held := client.claim_batch("default", limit=1000):
        assert waits(client, below)
        with database.begin() as connection:
            store.settle_many(connection, [Settlement(Event.COMPLETE, one.lease) for one in held])
        if len(held) < 1000:
            break
        if client.get(below).waiting_on == 0:
            break
    assert is_free(client, below)
    assert len(client.parents(below)) == 10_000


# -- many at once


@pytest.mark.parametrize("child_first", [False, True])
def test_enqueue_many_with_parents_in_the_batch(child_first: bool, face: Client, sql: Sql) -> None:
    above, middle, below = new_id(), new_id(), new_id()
    tasks = [
        NewTask("parent", None, {"id": above, "agent": "a"}),
        NewTask("child", None, {"id": middle, "depends_on": [above]}),
        NewTask("child", None, {"id": below, "depends_on": [above, middle]}),
    ]
    made = face.enqueue_many(reversed(tasks) if child_first else tasks)
    assert all(one.created for one in made)
    assert [face.get(one).waiting_on for one in (above, middle, below)] == [0, 1, 2]
    completed(face, sql, above)
    assert is_free(face, middle)
    face.complete(face.claim_batch("default")[0])
    assert is_free(face, below)


def test_enqueue_many_of_children_of_an_ended_parent(client: Client, sql: Sql) -> None:
    done, dead = parent(client), parent(client)
    completed(client, sql, done)
    buried(client, sql, dead)
    made = client.enqueue_many(NewTask("child", None, {"depends_on": [above]}) for above in [done, dead] * 5)
    statuses = [client.get(one.id).status for one in made]
    assert statuses == [Status.PENDING, Status.CANCELLED] * 5


def test_enqueue_many_in_one_transaction_of_more_than_a_chunk(client: Client, database: Database, sql: Sql) -> None:
    above = parent(client)
    with database.begin() as mine:
        made = client.on(mine).enqueue_many(NewTask("child", None, {"depends_on": [above]}) for _ in range(1500))
    assert len(made) == 1500
    completed(client, sql, above)
    assert sql("select count(*) from pgqueue.tasks where action = 'child' and not blocked") == [(1500,)]


def test_same_id_twice_in_a_batch_is_one_task(client: Client, sql: Sql) -> None:
    above, twice = parent(client), new_id()
    made = client.enqueue_many([NewTask("child", None, {"id": twice, "depends_on": [above]})] * 2)
    assert [one.created for one in made] == [True, False]
    assert client.get(twice).waiting_on == 1


@pytest.mark.parametrize("other", [(), (new_id(),)])
def test_same_id_twice_in_a_batch_with_different_parents_is_refused(other: tuple[UUID, ...], untouched: Client) -> None:
    task_id = new_id()
    tasks = [NewTask("child", None, {"id": task_id, "depends_on": above}) for above in ([new_id(), new_id()], other)]
    for given in (tasks, tasks[::-1]):
        with pytest.raises(InputError, match="comes twice"):
            untouched.enqueue_many(given)


def test_enqueue_sent_twice_makes_one_child_with_one_set_of_edges(face: Client, sql: Sql) -> None:
    above, task_id = parent(face), new_id()
    for created in (True, False):
        made = face.enqueue("child", None, id=task_id, depends_on=[above])
        assert made == Enqueued(task_id, created=created)
    assert face.get(task_id).waiting_on == 1
    completed(face, sql, above)
    assert face.enqueue("child", None, id=task_id, depends_on=[above]).created is False
    assert is_free(face, task_id)


def test_adoption_ignores_the_newcomers_parents(face: Client, sql: Sql) -> None:
    above = parent(face)
    holder = face.enqueue("child", None, dedupe_key="k").id
    assert face.enqueue("child", None, dedupe_key="k", depends_on=[above]) == Enqueued(holder, created=False)
    [one] = face.enqueue_many([NewTask("child", None, {"dedupe_key": "k", "depends_on": [above]})])
    assert one == Enqueued(holder, created=False)
    assert is_free(face, holder)
    assert sql("select count(*) from pgqueue.task_dependencies") == [(0,)]


def test_adopted_child_keeps_its_own_parents(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above, dedupe_key="k")
    assert client.enqueue("child", None, dedupe_key="k") == Enqueued(below, created=False)
    assert waits(client, below)


# -- circles


def test_circle_that_can_be_seen_is_refused_with_its_path(face: Client, sql: Sql) -> None:
    first, last = new_id(), new_id()
    middle = child(face, last)
    child(face, middle, id=first)
    with pytest.raises(CircularDependency) as caught:
        face.enqueue("child", None, id=last, depends_on=[first])
    assert caught.value.path == (last, first, middle, last)
    assert f"{last} → {first} → {middle} → {last}" in str(caught.value)
    assert sql("select count(*) from pgqueue.tasks where id = %s", last) == [(0,)]
    assert sql("select count(*) from pgqueue.task_dependencies") == [(2,)]


def test_circle_within_a_batch_is_refused_whole(untouched: Client) -> None:
    ids = [new_id() for _ in range(3)]
    tasks = [
        NewTask("child", None, {"id": one, "depends_on": [above]})
        for one, above in zip(ids, ids[1:] + ids[:1], strict=True)
    ]
    with pytest.raises(CircularDependency) as caught:
        untouched.enqueue_many([NewTask("other", None, {}), *tasks])
    assert set(caught.value.path) == set(ids)


def test_gate_first_then_enqueue_cannot_close_a_circle(client: Client, sql: Sql) -> None:
    above = new_id()
    below = client.enqueue("child").id
    assert client.set_gate(below, depends_on=[above])
    with pytest.raises(CircularDependency) as caught:
        client.enqueue("parent", None, id=above, depends_on=[below])
    assert caught.value.path == (above, below, above)
    assert waits(client, below)


def test_circle_in_one_callers_transaction_is_refused_and_the_rest_counts(
    client: Client, database: Database, sql: Sql
) -> None:
    one, other = new_id(), new_id()
    with database.begin() as mine:
        joined = client.on(mine)
        joined.enqueue("child", None, id=one, depends_on=[other])
        with pytest.raises(CircularDependency):
            joined.enqueue("child", None, id=other, depends_on=[one])
        joined.enqueue("child", None, id=other, agent="a")
    completed(client, sql, other)
    assert is_free(client, one)


@pytest.mark.parametrize("run", [False, True])
def test_two_gates_that_close_a_circle_at_once_cost_the_youngest(
    run: bool, client: Client, database: Database, sql: Sql
) -> None:
    elder, younger = (client.enqueue("child").id for _ in range(2))
    failure: Any = "run" if run else "cancel"
    with database.begin() as one, database.begin() as other:
        assert client.on(one).set_gate(elder, depends_on=[younger], on_parent_failure=failure)
        assert client.on(other).set_gate(younger, depends_on=[elder], on_parent_failure=failure)
    sweep(client)
    task = client.get(younger)
    assert task.status is Status.CANCELLED
    assert task.last_error is not None
    assert re.fullmatch(r"cancelled: it waits for itself: (\S+ → ){2}\S+", task.last_error)
    assert str(elder) in task.last_error
    assert client.get(elder).status is (Status.PENDING if run else Status.CANCELLED)
    assert is_free(client, elder) is run


def test_two_enqueues_that_close_a_circle_at_once_are_found_after_the_grace(
    client: Client, database: Database, sql: Sql
) -> None:
    one, other = new_id(), new_id()
    with database.begin() as first, database.begin() as second:
        child(client.on(first), other, id=one)
        child(client.on(second), one, id=other)
    grace_is_over(sql)
    sweep(client)
    assert client.get(max(one, other)).status is Status.CANCELLED


def test_circle_that_was_opened_before_its_member_was_locked_costs_nobody(
    client: Client, database: Database, sql: Sql
) -> None:
    elder, younger = (client.enqueue("child").id for _ in range(2))
    with database.begin() as one, database.begin() as other:
        client.on(one).set_gate(elder, depends_on=[younger])
        client.on(other).set_gate(younger, depends_on=[elder])
    opened: list[bool] = []

    def open_it(_connection: Any, _cursor: Any, text: str, *_: Any) -> None:
        # Between its look at the circle and its hold of the youngest.
        if "RECURSIVE" in text and not opened:
            opened.append(True)
            Client(database).set_gate(younger)

    with database.engine.connect() as connection:
        listening.listen(connection, "after_cursor_execute", open_it)
        swept = Store("pgqueue").sweep(connection, children=[elder])
        connection.commit()
    assert opened
    assert [s.fate for s in swept] == [Fate.LATER]
    sweep(client)
    assert is_free(client, younger)
    assert waits(client, elder)


# -- rows that somebody has, or that object


def locked(connection: psycopg.Connection[Any], task_id: UUID) -> None:
    connection.execute("begin")
    connection.execute("select from pgqueue.tasks where id = %s for update", [task_id])


@pytest.mark.parametrize("end", ["completed", "buried"])
def test_child_that_somebody_has_locked_is_left_to_the_sweep(
    end: str, client: Client, sql: Sql, database_url: str
) -> None:
    above = parent(client)
    held, free = child(client, above), child(client, above)
    with connect(database_url) as other:
        locked(other, held)
        ENDS[end](client, sql, above)
        assert edge(sql, held, above) == (False, True)
        assert edge(sql, free, above) == (True, None)
        assert client.sweep() == []
        assert [s.fate for s in client.sweep(children=[held])] == [Fate.LATER]
        other.execute("rollback")
    sweep(client)
    assert (is_free(client, held), client.get(held).status) == (
        end == "completed",
        Status.PENDING if end == "completed" else Status.CANCELLED,
    )


def test_cascade_below_a_child_that_somebody_has_locked_is_the_sweeps(
    client: Client, sql: Sql, database_url: str
) -> None:
    above = parent(client)
    held = child(client, above)
    last = child(client, held)
    with connect(database_url) as other:
        locked(other, held)
        buried(client, sql, above)
        other.execute("rollback")
    assert waits(client, last)
    sweep(client)
    assert str(held) in why(client, last)


@pytest.mark.parametrize("commit", [False, True])
def test_gate_in_an_open_transaction_holds_up_nobody_who_ends_the_old_parent(
    commit: bool, client: Client, database: Database, sql: Sql
) -> None:
    """It has the edge itself locked, and may yet roll back."""
    old, new = parent(client), parent(client)
    below = child(client, old)
    held = take(client, old)
    with database.engine.connect() as gating:
        assert client.on(gating).set_gate(below, depends_on=[new])
        with database.begin() as settling:
            settling.exec_driver_sql("set local lock_timeout = '1s'")
            assert client.on(settling).complete(held).status is Status.COMPLETED
        assert client.sweep() == []
        gating.commit() if commit else gating.rollback()
    assert [one.id for one in client.parents(below)] == [new if commit else old]
    sweep(client)
    assert is_free(client, below) is not commit
    completed(client, sql, new)
    assert is_free(client, below)
    assert sql("select count(*) from pgqueue.task_dependencies where look_at is not null") == [(0,)]


def test_reminder_makes_no_absent_parent_due(client: Client, database: Database, sql: Sql) -> None:
    old, alive, missing = parent(client), parent(client), new_id()
    below = child(client, old, alive, missing)
    held = take(client, old)
    with database.engine.connect() as gating:
        assert client.on(gating).set_gate(below)
        client.complete(held)
        gating.rollback()
    assert [(s.parent, s.fate) for s in client.sweep()] == [(old, Fate.LIFT)]
    assert client.get(below).waiting_on == 2
    assert edge(sql, below, missing) == (False, False)
    assert edge(sql, below, alive) == (False, None)


def test_hundreds_of_children_that_somebody_has_locked_hide_no_other(
    client: Client, sql: Sql, database_url: str
) -> None:
    above = parent(client)
    made = client.enqueue_many(NewTask("child", None, {"depends_on": [above]}) for _ in range(250))
    ids = [one.id for one in made]
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = any(%s) for update", [ids])
        completed(client, sql, above)
        sql("update pgqueue.task_dependencies set look_at = look_at + interval '1 ms' where child_id = %s", ids[-1])
        other.execute("rollback")
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = any(%s) for update", [ids[:-1]])
        assert [s.child for s in client.sweep()] == [ids[-1]]
        other.execute("rollback")
    sweep(client)
    assert sql("select count(*) from pgqueue.tasks where status = 'pending' and not blocked") == [(250,)]


def test_parents_that_are_being_ended_for_long_hide_no_other(client: Client, database: Database, sql: Sql) -> None:
    slow, quick = parent(client), parent(client)
    held = take(client, slow)
    with database.begin() as ending:
        client.on(ending).complete(held)
        client.enqueue_many(NewTask("child", None, {"depends_on": [slow]}) for _ in range(150))
        with database.begin() as mine:
            below = child(client.on(mine), quick)
            completed(client, sql, quick)
        for _ in range(3):
            client.sweep(limit=100)
        assert is_free(client, below)
    sweep(client)


OBJECTS = """
create function public.objects() returns trigger language plpgsql as $$
begin
  raise exception 'not this one';
end $$;
create trigger objects before update on pgqueue.tasks for each row when (old.account = 'bad')
  execute function public.objects()
"""


def test_child_that_cannot_be_written_stops_nobody_else(client: Client, database: Database, sql: Sql) -> None:
    above = parent(client)
    with database.begin() as mine:
        bad = [child(client.on(mine), above, account="bad") for _ in range(3)]
        good = [child(client.on(mine), above) for _ in range(3)]
        completed(client, sql, above)
    sql(OBJECTS)
    assert {s.child for s in client.sweep()} == set(good)
    assert all(is_free(client, one) for one in good)
    # Not first in line for ever.
    assert client.sweep() == []
    assert [edge(sql, one, above) for one in bad] == [(False, False)] * 3
    sql("drop trigger objects on pgqueue.tasks; drop function public.objects()")
    grace_is_over(sql)
    sweep(client)
    assert all(is_free(client, one) for one in bad)


@pytest.mark.parametrize("end", ["completed", "buried", "cancelled"])
def test_child_that_cannot_be_written_does_not_keep_its_parent_from_ending(end: str, client: Client, sql: Sql) -> None:
    above = parent(client)
    bad, good = child(client, above, account="bad"), child(client, above)
    sql(OBJECTS)
    ENDS[end](client, sql, above)
    assert client.get(above).finished_at is not None
    # Together they could not be lifted; one by one, the other can.
    assert {s.child for s in client.sweep()} == {good}
    assert waits(client, bad)
    sql("drop trigger objects on pgqueue.tasks; drop function public.objects()")
    grace_is_over(sql)
    sweep(client)
    assert is_free(client, bad) is is_free(client, good) is (end == "completed")


# -- who hears of it


def test_freed_childs_queue_is_notified(client: Client, sql: Sql, database_url: str) -> None:
    above = parent(client)
    child(client, above, queue="reports")
    with connect(database_url) as listener:
        listener.execute("listen pgqueue_tasks")
        completed(client, sql, above)
        assert [told.payload for told in listener.notifies(timeout=30, stop_after=1)] == ["reports"]


def test_edge_that_is_left_over_is_notified_without_a_queue(client: Client, database: Database, sql: Sql) -> None:
    above = parent(client)
    with connect(database.url) as listener:
        with database.begin() as mine:
            below = child(client.on(mine), above, queue="reports")
            completed(client, sql, above)
            listener.execute("listen pgqueue_tasks")
        assert "" in {told.payload for told in listener.notifies(timeout=30, stop_after=2)}
        sweep(client)
        assert [told.payload for told in listener.notifies(timeout=30, stop_after=1)] == ["reports"]
    assert is_free(client, below)


def test_ending_that_missed_a_child_notifies_without_a_queue(client: Client, sql: Sql, database_url: str) -> None:
    above = parent(client)
    below = child(client, above)
    with connect(database_url) as other, connect(database_url) as listener:
        locked(other, below)
        listener.execute("listen pgqueue_tasks")
        completed(client, sql, above)
        assert [told.payload for told in listener.notifies(timeout=30, stop_after=1)] == [""]
        other.execute("rollback")
    sweep(client)


# -- hand-written rows


def test_counter_that_was_written_by_hand_stops_no_ending(client: Client, sql: Sql) -> None:
    above = parent(client)
    below = child(client, above)
    sql("update pgqueue.tasks set waiting_on = 0 where id = %s", below)
    completed(client, sql, above)
    assert is_free(client, below)


def test_next_look_is_the_earliest(client: Client, database: Database, sql: Sql) -> None:
    store = Store("pgqueue")
    with database.begin() as connection:
        assert store.next_look(connection) == (None, None)
    child(client, new_id())
    with database.begin() as connection:
        wait, at = store.next_look(connection)
    assert wait is not None
    assert at is not None
    assert 200 < wait <= 300
    assert at > datetime.now(UTC)
