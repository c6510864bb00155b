"""The statements over edges, prepared while the tables are empty, still go by index when they are full.

Looked at in two ways: no plan walks over a table or over a whole index once per edge, and no step of an execution over
ten thousand edges meets many more rows than that, as pairing them with each other would.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql as literal
from sqlalchemy import event as listening

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.ids import new_id
from pgqueue.store import LONG_AGO, Store
from tests.support import Sql, connect, databases

from .test_plans import Prepared

MANY = 10_000
PARENT = UUID("00000000-0000-7000-8000-000000000001")

# Other tasks are there, too, to be walked over.
LOAD = f"""
insert into pgqueue.tasks (id, queue, action) values ('{PARENT}', 'default', 'parent');
insert into pgqueue.tasks (id, queue, action, waiting_on)
  select ('00000000-0000-7000-9000-' || lpad(n::text, 12, '0'))::uuid, 'default', 'child', 1
  from generate_series(1, {MANY}) n;
insert into pgqueue.task_dependencies (child_id, parent_id)
  select id, '{PARENT}' from pgqueue.tasks where action = 'child';
insert into pgqueue.tasks (id, queue, action)
  select gen_random_uuid(), 'default', 'noop' from generate_series(1, {MANY})
"""
END = f"update pgqueue.tasks set status = '{{}}', finished_at = now() where id = '{PARENT}'"

INDEXES: dict[str, set[str]] = {
    "lift completed": {"task_dependencies_parent", "task_dependencies_pkey", "tasks_pkey"},
    "lift failed": {"task_dependencies_parent", "task_dependencies_pkey", "tasks_pkey"},
    "mark": {"task_dependencies_parent", "task_dependencies_pkey"},
    "resolve": {"task_dependencies_pkey", "tasks_pkey"},
    "named_as_parents": {"task_dependencies_parent"},
    "ancestors": {"task_dependencies_pkey"},
    "completed": {"tasks_pkey"},
    "link": {"task_dependencies_parent"},
    "unlink": {"task_dependencies_pkey"},
    "to_look_at": {"task_dependencies_look_at", "tasks_pkey"},
    "strays": {"task_dependencies_look_at", "tasks_pkey"},
    "next_look": {"task_dependencies_look_at"},
    "rows": {"tasks_pkey"},
    "edges_due": {"task_dependencies_pkey"},
    "late": {"task_dependencies_pkey", "tasks_pkey"},
    "forget": {"task_dependencies_pkey", "tasks_pkey"},
    "put_off": {"task_dependencies_pkey"},
    "looked_at": {"task_dependencies_pkey"},
    "parents_alive": {"tasks_pkey"},
    "cascade": {"tasks_pkey"},
    "parents": {"task_dependencies_pkey", "tasks_pkey"},
}


def work(store: Store, connection: Any) -> Iterator[str]:
    """Each of the statements once; yields the name of the one that was sent last."""
    sql, one = store.sql, [PARENT]
    pairs = {"children": [new_id()], "parents": one}
    statements: dict[str, tuple[Any, dict[str, Any]]] = {
        "lift completed": (sql.lift(failed=False), {"ids": one}),
        "lift failed": (sql.lift(failed=True), {"ids": one}),
        "mark": (sql.mark, {"ids": one}),
        "resolve": (sql.resolve, pairs | {"fails": [False], "whys": [""]}),
        "named_as_parents": (sql.named_as_parents, {"ids": one}),
        "ancestors": (sql.ancestors, {"ids": one}),
        "completed": (sql.completed, {"ids": one}),
        "link": (sql.link(gate=False), pairs | {"done": [True]}),
        "unlink": (sql.unlink, {"ids": one}),
        "to_look_at": (sql.to_look_at(100), {"floor": LONG_AGO}),
        "strays": (sql.strays, {"floor": LONG_AGO}),
        "next_look": (sql.next_look, {"floor": LONG_AGO}),
        "rows": (sql.rows(lock=True), {"ids": one}),
        "edges_due": (sql.edges_due, {"ids": one}),
        "late": (sql.late, {"ids": one}),
        "forget": (sql.forget, {"ids": one}),
        "put_off": (sql.put_off, {"ids": one, "delay": timedelta(0)}),
        "looked_at": (sql.looked_at, pairs),
        "parents_alive": (sql.parents_alive, {"ids": one}),
        "cascade": (sql.cascade, {"ids": one, "why": ""}),
        "parents": (sql.parents(results=True), {"id": PARENT}),
    }
    for name, (statement, values) in statements.items():
        connection.execute(statement, values)
        yield name


def sent(database: Database) -> dict[str, tuple[str, dict[str, Any]]]:
    """The text and the values of each statement, as they reach the driver."""
    last: list[tuple[str, dict[str, Any]]] = []
    found: dict[str, tuple[str, dict[str, Any]]] = {}
    with database.engine.connect() as connection:
        listening.listen(connection, "before_cursor_execute", lambda *a: last.append((a[2], dict(a[3]))))
        for name in work(Store("pgqueue"), connection):
            found[name] = last[-1]
        connection.rollback()
    assert set(found) == set(INDEXES)
    return found


class Full(Prepared):
    """Statements that were prepared on empty tables, which are full now and have never been analysed."""

    def analyze(self, name: str, ids: list[UUID]) -> str:
        """How the statement runs over these ids, in place of those it was prepared with; it is rolled back."""
        given = "{" + ",".join(one.hex for one in ids) + "}"
        values = [given if _is_array(value) else value for value in self._values[name]]
        query = literal.SQL("explain (analyze, timing off, costs off, summary off) execute {} ({})").format(
            literal.Identifier(name), literal.SQL(", ").join(map(literal.Literal, values))
        )
        with self._connection.transaction(force_rollback=True):
            return "\n".join(line for (line,) in self._connection.execute(query))


def _is_array(value: object) -> bool:
    return isinstance(value, str) and value.startswith("{") and len(value) == 34


@pytest.fixture(scope="module")
def full(server: Any, template: str) -> Iterator[Full]:
    name = databases.create(server, template)
    database = Database(server.url_for(name), schema="pgqueue")
    with connect(database.url) as admin:
        for table in ("tasks", "task_dependencies"):
            admin.execute(f"alter table pgqueue.{table} set (autovacuum_enabled = off)".encode())
    statements = sent(database)
    with contextlib.closing(database.raw()) as raw:
        prepared = Full(raw)
        raw.commit()
        for key, (text, values) in statements.items():
            prepared.prepare(key, text, values)
        raw.commit()
        with connect(database.url) as admin:
            for statement in LOAD.split(";"):
                admin.execute(statement.encode())
        yield prepared
    database.dispose()
    databases.drop(server, name)


@pytest.mark.parametrize("name", INDEXES)
def test_plan_prepared_on_empty_tables_goes_by_index_when_they_are_full(name: str, full: Full) -> None:
    plan = full.plan(name)
    assert not re.search(r"Seq Scan on (tasks|task_dependencies)", plan), plan
    used = set(re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)", plan))
    used |= set(re.findall(r"Bitmap Index Scan on (\w+)", plan))
    assert used <= INDEXES[name], plan
    # With a condition: without one it is all of the index.
    for scan in re.finditer(r"(?m)^.*Index (?:Only )?Scan.*\n(.*)", plan):
        assert "Index Cond:" in scan[1], plan


def rows_met(plan: str) -> int:
    """The most rows that any step of an execution met: passed on, or thrown away, over all of its loops."""
    most, loops = 0.0, 1
    for line in plan.splitlines():
        if found := re.search(r"actual rows=([\d.]+) loops=(\d+)", line):
            loops = int(found[2])
            most = max(most, float(found[1]) * loops)
        elif removed := re.search(r"Rows Removed by (?:Join )?Filter: (\d+)", line):
            most = max(most, float(removed[1]) * loops)
    return int(most)


@pytest.mark.parametrize(
    ("name", "end"), [("lift completed", "completed"), ("lift failed", "cancelled"), ("mark", "dead")]
)
def test_ending_of_a_parent_of_ten_thousand_meets_each_child_once(name: str, end: str, full: Full) -> None:
    with full._connection.transaction(force_rollback=True):
        full._connection.execute(END.format(end).encode())
        plan = full.analyze(name, [PARENT])
    assert MANY <= rows_met(plan) < 3 * MANY, plan


def test_question_whether_ten_thousand_wait_is_answered_by_the_first(full: Full) -> None:
    assert rows_met(full.analyze("named_as_parents", [PARENT])) == 1


def test_rows_met_sees_ten_thousand_paired_with_ten_thousand() -> None:
    assert rows_met("-> CTE Scan on held (actual rows=10000.00 loops=10000)") == 100_000_000
    assert rows_met("-> Nested Loop (actual rows=1 loops=10000)\n  Rows Removed by Join Filter: 9999") == 99_990_000


def test_ending_of_a_task_without_children_is_one_probe_of_one_index(full: Full) -> None:
    plan = full.analyze("named_as_parents", [new_id()])
    scans = re.findall(r"Index (?:Only )?Scan using (\w+) on (\w+).*\((actual|never)", plan)
    assert [scan for scan in scans if scan[2] == "actual"] == [
        ("task_dependencies_parent", "task_dependencies", "actual")
    ], plan
    assert rows_met(plan) <= 1


def statements(database: Database, verb: Any) -> list[str]:
    sent: list[str] = []
    listening.listen(database.engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    verb()
    return sent


def test_settling_a_task_without_children_costs_one_statement_more(
    client: Client, database: Database, sql: Sql
) -> None:
    client.enqueue("noop")
    [held] = client.claim_batch("default")
    assert len([text for text in statements(database, lambda: client.complete(held)) if "task_dep" in text]) == 1


def test_parents_cost_an_enqueue_a_fixed_number_of_statements(client: Client, database: Database, sql: Sql) -> None:
    parents = [client.enqueue("noop").id for _ in range(5)]
    few = statements(database, lambda: client.enqueue("child", None, depends_on=parents[:1]))
    before = len(few)
    many = statements(database, lambda: client.enqueue("child", None, depends_on=parents))
    assert len(many) == before


def test_chain_of_a_thousand_is_enqueued_in_a_fixed_number_of_statements(client: Client, database: Database) -> None:
    from pgqueue import NewTask

    ids = [new_id() for _ in range(1000)]
    tasks = [NewTask("link", None, {"id": one, "depends_on": ids[n - 1 : n]}) for n, one in enumerate(ids)]
    assert len(statements(database, lambda: client.enqueue_many(tasks))) < 20
