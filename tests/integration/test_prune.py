"""prune: what ended long enough ago goes, with its events and edges; and what stays."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from pgqueue import Pruned
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError, WrongIsolation
from pgqueue.lifecycle import TERMINAL, Status
from pgqueue.store import Store
from tests.support import Sql, connect, rows
from tests.support.reads import rows_read

FINISHED = (Status.COMPLETED, Status.CANCELLED)
WEEK = timedelta(days=7)

Old = Callable[..., UUID]


@pytest.fixture
def old(database: Database, sql: Sql) -> Old:
    """`old(status, days, **changes)`: a task that has finished so many days ago by the server's clock; its id."""

    def old(status: Status = Status.COMPLETED, days: float = 8, **changes: Any) -> UUID:
        with database.begin() as connection:
            task_id = rows.insert(connection, rows.row(status, **changes))
        if status in TERMINAL:
            ago = timedelta(days=days)
            sql("update pgqueue.tasks set finished_at = clock_timestamp() - %s where id = %s", ago, task_id)
        return task_id

    return old


def edge(sql: Sql, child: UUID, parent: UUID, *, lifted: bool) -> None:
    sql(
        "insert into pgqueue.task_dependencies (child_id, parent_id, lifted_at)"
        " values (%s, %s, case when %s then now() end)",
        child,
        parent,
        lifted,
    )


def note(sql: Sql, task_id: UUID, count: int = 1) -> None:
    sql(
        "insert into pgqueue.task_events (task_id, event, to_status)"
        " select %s, 'fail', 'dead' from generate_series(1, %s)",
        task_id,
        count,
    )


def left(sql: Sql) -> set[UUID]:
    return {one for (one,) in sql("select id from pgqueue.tasks")}


def everything(sql: Sql) -> list[Any]:
    return [
        sql(f"select t::text, t.xmin::text from pgqueue.{table} t order by 1")
        for table in ("tasks", "task_events", "task_dependencies")
    ]


# -- what goes and what stays


def test_finished_tasks_go_after_the_retention_and_the_others_stay(face: Client, old: Old, sql: Sql) -> None:
    gone = {old(status) for status in FINISHED}
    kept = {old(status, 6) for status in TERMINAL} | {old(Status.DEAD), old(Status.PENDING), old(Status.RUNNING)}
    pruned = face.prune()
    assert (pruned.tasks, pruned.events, pruned.edges, pruned.more) == (2, 0, 0, False)
    assert left(sql) == kept
    assert not gone & kept


def test_what_went_is_said(face: Client, old: Old, sql: Sql) -> None:
    for days in (10, 30, 20):
        note(sql, old(days=days), 2)
    [(oldest, newest)] = sql("select min(finished_at), max(finished_at) from pgqueue.tasks")
    assert face.prune() == Pruned(3, 6, 0, oldest, newest, False)
    assert face.prune() == Pruned()


def test_events_and_edges_of_what_goes_go_and_no_others(face: Client, old: Old, sql: Sql) -> None:
    parent, gone, kept = old(days=1), old(), old(days=2)
    for task_id in (gone, kept):
        note(sql, task_id)
        edge(sql, task_id, parent, lifted=True)
    assert face.prune(retention=WEEK).edges == 1
    assert sql("select task_id from pgqueue.task_events") == [(kept,)]
    assert sql("select child_id from pgqueue.task_dependencies") == [(kept,)]


def test_dead_tasks_go_only_when_asked_and_by_their_own_age(face: Client, old: Old, sql: Sql) -> None:
    old_dead, young_dead, finished = old(Status.DEAD, 100), old(Status.DEAD, 50), old(days=100)
    assert face.prune(retention=timedelta(days=365), dead=timedelta(days=90)).tasks == 1
    assert left(sql) == {young_dead, finished}
    assert old_dead not in left(sql)
    assert face.prune(dead=0).tasks == 2


def test_rows_that_use_up_a_key_for_ever_go_only_when_asked(face: Client, old: Old, sql: Sql) -> None:
    for_ever = {status: old(status, dedupe_key=f"k-{status}", dedupe_forever=True) for status in TERMINAL}
    assert face.prune(retention=0, dead=0).tasks == 0
    assert left(sql) == set(for_ever.values())
    assert face.prune(retention=0, forever=True).tasks == 2
    assert left(sql) == {for_ever[Status.DEAD]}
    assert face.prune(retention=0, dead=0, forever=True).tasks == 1


def test_key_used_for_ever_outlives_pruning_until_it_is_told(face: Client, sql: Sql) -> None:
    used = face.enqueue("x", dedupe_key="once", dedupe="forever")
    face.cancel(used.id)
    assert face.prune(retention=0) == Pruned()
    assert face.enqueue("x", dedupe_key="once", dedupe="forever").id == used.id
    assert face.prune(retention=0, forever=True).tasks == 1
    assert face.enqueue("x", dedupe_key="once", dedupe="forever").created


def test_parent_stays_while_a_task_waits_for_it(face: Client, old: Old, sql: Sql) -> None:
    """An edge that is not lifted: the commit had to leave it to the sweep, or the child was cancelled first."""
    parent, lifted = old(), old()
    child = old(Status.PENDING, waiting_on=1)
    edge(sql, child, parent, lifted=False)
    edge(sql, child, lifted, lifted=True)
    assert face.prune().tasks == 1
    assert left(sql) == {parent, child}
    sql("update pgqueue.task_dependencies set lifted_at = now()")
    assert face.prune().tasks == 1
    assert left(sql) == {child}


def test_parent_that_only_a_pruned_child_held_goes_next(face: Client, old: Old, sql: Sql) -> None:
    parent, child = old(), old(Status.CANCELLED, waiting_on=1)
    edge(sql, child, parent, lifted=False)
    first = face.prune()
    assert (first.tasks, first.edges, first.more) == (1, 1, True)
    assert left(sql) == {parent}
    second = face.prune()
    assert (second.tasks, second.edges, second.more) == (1, 0, False)
    assert left(sql) == set()


@pytest.mark.parametrize("retention", [0, 0.0, timedelta(0)])
def test_no_retention_is_everything_that_has_finished(face: Client, sql: Sql, retention: Any) -> None:
    done = face.enqueue("x")
    face.complete(face.claim_batch("default")[0])
    waiting = face.enqueue("x", delay=60)
    assert face.prune(retention=retention).tasks == 1
    assert left(sql) == {waiting.id}
    assert done.id not in left(sql)


def test_no_retention_in_a_callers_transaction_takes_what_it_has_just_finished(
    client: Client, database: Database, sql: Sql
) -> None:
    made = client.enqueue("x")
    with database.begin() as connection:
        joined = client.on(connection)
        joined.cancel(made.id)
        pruned = joined.prune(retention=0)
        assert (pruned.tasks, pruned.events) == (1, 1)
    assert left(sql) == set()


def test_retention_of_a_year_is_fine(face: Client, old: Old, sql: Sql) -> None:
    kept, _ = old(days=364), old(days=366)
    assert face.prune(retention=timedelta(days=365)).tasks == 1
    assert left(sql) == {kept}


def test_only_the_servers_clock_counts(face: Client, old: Old, sql: Sql, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = old(days=6)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert face.prune().tasks == 0
    assert left(sql) == {kept}


@pytest.mark.parametrize(
    ("bad", "field"),
    [
        ({"retention": -1}, "retention"),
        ({"retention": timedelta(seconds=-1)}, "retention"),
        ({"retention": None}, "retention"),
        ({"retention": "7d"}, "retention"),
        ({"retention": float("inf")}, "retention"),
        ({"retention": timedelta(days=4000)}, "retention"),
        ({"dead": -1}, "dead"),
        ({"limit": 0}, "limit"),
        ({"limit": 1001}, "limit"),
    ],
)
def test_prune_with_a_bad_option_is_refused_and_deletes_nothing(
    client: Client, old: Old, sql: Sql, bad: dict[str, Any], field: str
) -> None:
    kept = old()
    with pytest.raises(InputError) as caught:
        client.prune(**bad)
    assert caught.value.field == field
    assert left(sql) == {kept}


# -- batches, and others beside it


def test_prune_takes_the_oldest_first_up_to_the_limit(face: Client, old: Old, sql: Sql) -> None:
    ids = {days: old(days=days) for days in (10, 30, 20)}
    assert (face.prune(limit=2).tasks, left(sql)) == (2, {ids[10]})
    last = face.prune(limit=2)
    assert (last.tasks, last.more) == (1, False)


def test_more_says_whether_to_call_again(face: Client, old: Old) -> None:
    for _ in range(5):
        old()
    answers = [face.prune(limit=2) for _ in range(3)]
    assert [(one.tasks, one.more) for one in answers] == [(2, True), (2, True), (1, False)]


def test_limit_is_for_all_kinds_together(face: Client, old: Old) -> None:
    old()
    old(dedupe_key="k", dedupe_forever=True)
    old(Status.DEAD)
    old(Status.DEAD, dedupe_key="dead", dedupe_forever=True)
    answers = [face.prune(dead=0, forever=True, limit=3) for _ in range(2)]
    assert [(one.tasks, one.more) for one in answers] == [(3, True), (1, False)]


def test_row_that_somebody_has_locked_is_left_for_the_next_time(
    client: Client, old: Old, database_url: str, sql: Sql
) -> None:
    locked, _ = old(), old()
    with connect(database_url) as other:
        other.execute("begin")
        other.execute("select from pgqueue.tasks where id = %s for key share", [locked])
        assert client.prune().tasks == 1
        assert left(sql) == {locked}
        other.execute("rollback")
    assert client.prune().tasks == 1


def test_many_prune_side_by_side_and_each_task_once(client: Client, database: Database, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, status, finished_at)"
        " select gen_random_uuid(), 'q', 'x', 'completed', now() - interval '8 days' from generate_series(1, 2000)"
    )
    sql("insert into pgqueue.task_events (task_id, event, to_status) select id, 'fail', 'dead' from pgqueue.tasks")
    counted: list[Pruned] = []

    def prune() -> None:
        while (done := Client(database).prune(limit=50)).tasks:
            counted.append(done)

    threads = [threading.Thread(target=prune, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sum(one.tasks for one in counted) == sum(one.events for one in counted) == 2000
    assert everything(sql) == [[], [], []]


def test_task_that_becomes_a_parent_before_its_row_is_locked_stays(
    client: Client, database: Database, old: Old, sql: Sql
) -> None:
    """The first look is older than the lock; the second sees the edge."""
    parent = old()
    child = old(Status.PENDING, waiting_on=1)

    def between(connection: Any, statement: Any, *_: Any) -> None:
        if isinstance(statement, sa.Delete):
            edge(sql, child, parent, lifted=False)

    sa.event.listen(database.engine, "before_execute", between)
    assert client.prune() == Pruned()
    assert left(sql) == {parent, child}


def test_prune_in_a_callers_transaction_counts_when_it_commits(
    client: Client, database: Database, old: Old, sql: Sql
) -> None:
    kept = old()
    with database.engine.connect() as connection:
        assert client.on(connection).prune().tasks == 1
        connection.rollback()
    assert left(sql) == {kept}
    above = database.engine.execution_options(isolation_level="SERIALIZABLE")
    with above.connect() as connection, pytest.raises(WrongIsolation):
        client.on(connection).prune()


def test_floor_is_how_far_back_it_looks(face: Client, old: Old, sql: Sql) -> None:
    kept, gone = old(days=30), old(days=10)
    [(floor,)] = sql("select finished_at from pgqueue.tasks where id = %s", gone)
    assert face.prune(floor=floor).tasks == 1
    assert left(sql) == {kept}


# -- a dry run


def world(old: Old, sql: Sql) -> None:
    """All that makes a difference: kinds, ages, chains of edges, events."""
    for status in TERMINAL:
        for days in (1, 8, 100):
            for for_ever in (False, True):
                key = f"{status}-{days}" if for_ever else None
                note(sql, old(status, days, dedupe_key=key, dedupe_forever=for_ever), days % 3)
    # grandchild -> child -> parent, all of them old: the parents go once their children have gone.
    chain = [old(Status.CANCELLED, 9, waiting_on=1) for _ in range(3)]
    for child, parent in itertools.pairwise(chain):
        edge(sql, child, parent, lifted=False)
    # And one whose first link stays.
    held = [old(Status.CANCELLED, 1, waiting_on=1), *(old(Status.CANCELLED, 9, waiting_on=1) for _ in range(2))]
    for child, parent in itertools.pairwise(held):
        edge(sql, child, parent, lifted=False)
    edge(sql, uuid4(), old(), lifted=False)
    edge(sql, old(), uuid4(), lifted=True)


OPTIONS: Sequence[dict[str, Any]] = [
    {},
    {"retention": 0},
    {"retention": timedelta(days=50), "dead": WEEK},
    {"forever": True},
    {"retention": 0, "dead": 0, "forever": True},
    {"dead": timedelta(days=90), "forever": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_dry_run_counts_exactly_what_would_go_and_writes_nothing(
    face: Client, old: Old, sql: Sql, options: dict[str, Any]
) -> None:
    world(old, sql)
    before = everything(sql)
    foretold = face.prune(**options, dry_run=True, limit=1)
    assert everything(sql) == before
    done = Pruned(more=True)
    while done.more:
        done += face.prune(**options, limit=3)
    assert done == foretold
    assert done.tasks > 0


def test_dry_run_over_nothing(face: Client) -> None:
    assert face.prune(dry_run=True) == Pruned()


# -- depth

KEPT = """
insert into pgqueue.tasks (id, queue, action, status, finished_at, dedupe_key, dedupe_forever)
  select gen_random_uuid(), 'default', 'x', case when n % 2 = 0 then 'dead' else 'completed' end,
         now() - interval '30 days', 'k' || n, n % 2 = 1
  from generate_series(1, 20000) n;
insert into pgqueue.tasks (id, queue, action, status, finished_at)
  select gen_random_uuid(), 'default', 'x', 'completed', now() - interval '1 day' from generate_series(1, 20000) n;
insert into pgqueue.tasks (id, queue, action) select gen_random_uuid(), 'default', 'x' from generate_series(1, 20000);
insert into pgqueue.task_dependencies (child_id, parent_id, lifted_at)
  select gen_random_uuid(), gen_random_uuid(), case when n % 2 = 0 then now() end from generate_series(1, 20000) n;
insert into pgqueue.task_events (task_id, event, to_status)
  select gen_random_uuid(), 'fail', 'dead' from generate_series(1, 20000);
insert into pgqueue.tasks (id, queue, action, status, finished_at)
  select gen_random_uuid(), 'default', 'x', 'completed', now() - interval '8 days' from generate_series(1, 10)
"""


def test_pass_never_walks_over_what_it_keeps(database: Database) -> None:
    """On a connection whose plans were made when the tables were empty."""
    store = Store("pgqueue")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("set plan_cache_mode = force_generic_plan")
        for table in ("tasks", "task_events", "task_dependencies"):
            connection.exec_driver_sql(f"alter table pgqueue.{table} set (autovacuum_enabled = off)")
        connection.commit()
        client = Client(database)
        for _ in range(10):
            client.cancel(client.enqueue("x").id)
            assert store.prune(connection, retention=0).tasks == 1
            connection.commit()
        with database.begin() as loading:
            loading.exec_driver_sql(KEPT.replace("%", "%%"))
        before = rows_read(connection)
        assert store.prune(connection).tasks == 10
        assert rows_read(connection) - before < 300
        connection.commit()
        connection.exec_driver_sql("analyze pgqueue.tasks, pgqueue.task_events, pgqueue.task_dependencies")
        connection.exec_driver_sql("set plan_cache_mode = force_custom_plan")
        connection.commit()
        with database.begin() as loading:
            loading.exec_driver_sql(KEPT.rpartition(";")[2])
        before = rows_read(connection)
        assert store.prune(connection).tasks == 10
        assert rows_read(connection) - before < 300
        connection.commit()


def test_batch_of_dead_tasks_never_walks_over_those_that_come_after_it(database: Database) -> None:
    store = Store("pgqueue")
    with database.begin() as loading:
        loading.exec_driver_sql(KEPT.replace("%", "%%"))
    with database.engine.connect() as connection:
        connection.exec_driver_sql("analyze pgqueue.tasks, pgqueue.task_events, pgqueue.task_dependencies")
        connection.commit()
        before = rows_read(connection)
        assert store.prune(connection, retention=timedelta(days=365), dead=timedelta(days=7), limit=200).tasks == 200
        assert rows_read(connection) - before < 5000
        connection.commit()
