"""A plan prepared on an empty table must still be right when the table is full: start first, load after.

Every statement that workers send is prepared while the table is empty, as by a worker that starts first, planned
without its values (the generic plan, which a prepared statement ends up with), and looked at again after the load.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql as literal
from sqlalchemy import event as listening

from pgqueue.database import Database
from pgqueue.lifecycle import Event, Status
from pgqueue.options import NewTask
from pgqueue.statements.prune import Kind
from pgqueue.store import LONG_AGO, AgentCursor, Settlement, Store
from pgqueue.task import Lease
from tests.support import connect
from tests.support.reads import scans

MINUTE = timedelta(seconds=60)
LEASE = Lease(uuid4(), uuid4(), 1, "agent-1", "default", datetime.now(UTC))

# What each may look through. Several: the planner's choice among them is as good.
INDEXES: dict[str, set[str]] = {
    "claim_due": {"claim_due", "tasks_pkey", "pauses_pkey"},
    "met_levels": {"claim_conditional"},
    "claim_conditional": {"claim_due", "claim_conditional", "tasks_pkey", "pauses_pkey"},
    "free_agents": {"due_agent", "claim_agent", "uniq_running_per_agent", "pauses_pkey"},
    "claim_agents": {"claim_agent", "uniq_running_per_agent", "tasks_pkey", "pauses_pkey"},
    "expired": {"running"},
    "earliest_expiry": {"running"},
    "next_due": {"claim_due", "due_agent", "claim_conditional", "pauses_pkey"},
    "find_by_dedupe_key": {"dedupe_history"},
    "key in nobody's past": {"dedupe_history"},
    "find_pending": {"claim_agent", "due_agent", "blocked_agent", "tasks_pkey"},
    "next_pending": {"claim_agent", "due_agent", "blocked_agent"},
    "has_active": {"uniq_running_per_agent", "claim_agent", "due_agent", "blocked_agent"},
    "replace_payload": {"tasks_pkey"},
    "reschedule": {"tasks_pkey"},
    "prunable finished": {"prunable", "task_dependencies_parent"},
    "prunable forever": {"uniq_forever_dedupe", "task_dependencies_parent"},
    "prunable dead": {"dead", "task_dependencies_parent"},
    "prunable all dead": {"dead", "task_dependencies_parent"},
    "delete_tasks": {"tasks_pkey", "task_dependencies_parent"},
    "delete_edges": {"task_dependencies_pkey"},
    "delete_events": {"task_events_task"},
    "renew": {"tasks_pkey"},
    "report": {"tasks_pkey"},
    "holders": {"tasks_pkey"},
    "lock": {"tasks_pkey"},
    "apply expire": {"tasks_pkey"},
    "key of an agent": {"uniq_active_dedupe"},
    "key of nobody": {"uniq_active_dedupe"},
    **{f"settle {event}": {"tasks_pkey"} for event in ("complete", "fail", "bury", "release", "snooze", "acknowledge")},
}


def work(store: Store, connection: Any) -> Iterator[str]:
    """Each of the statements once; yields the name of the one that was sent last."""
    store.claim_due(connection, ["default", "other"], size=100, owner="me", lease=MINUTE)
    yield "claim_due"
    store.met_levels(connection, ["default", "other"], offers=["gpu", "net"])
    yield "met_levels"
    met = [("default", 0, "{gpu}"), ("other", 0, "{gpu,net}")]
    store.claim_conditional(connection, ["default", "other"], met=met, size=100, owner="me", lease=MINUTE)
    yield "claim_conditional"
    store.claim_agents(connection, "default", size=100, owner="me", lease=MINUTE, cursor=AgentCursor())
    yield "free_agents"
    store._claim_heads(connection, "default", ["agent-1", "agent-2"], owner="me", lease=MINUTE, offers=())
    yield "claim_agents"
    for event in (Event.COMPLETE, Event.FAIL, Event.BURY, Event.RELEASE, Event.SNOOZE, Event.ACKNOWLEDGE):
        settlement = Settlement(event, LEASE, None, MINUTE)
        bound = {"ids": [LEASE.task_id], "tokens": [LEASE.token], "details": [None], "delays": [settlement.delay]}
        connection.execute(store.sql.settle(event, skip_locked=True), bound)
        yield f"settle {event}"
    connection.execute(
        store.sql.renew(skip_locked=True), {"ids": [LEASE.task_id], "tokens": [LEASE.token], "lease": MINUTE}
    )
    yield "renew"
    store.report_many(connection, [(LEASE, 1, None)])
    yield "report"
    connection.execute(store.sql.holders, {"ids": [LEASE.task_id]})
    yield "holders"
    connection.execute(store.sql.lock(ending=True), {"ids": [LEASE.task_id]})
    yield "lock"
    connection.execute(store.sql.apply(Event.EXPIRE), {"ids": [LEASE.task_id]})
    yield "apply expire"
    store.reap(connection)
    yield "expired"
    store.earliest_expiry(connection)
    yield "earliest_expiry"
    store.next_due(connection, ["default", "other"], met=met)
    yield "next_due"
    store.find_by_dedupe_key(connection, "k", agent="agent-1")
    yield "find_by_dedupe_key"
    store.find_by_dedupe_key(connection, "k")
    yield "key in nobody's past"
    store.find_pending(connection, "noop", agent="agent-1")
    yield "find_pending"
    connection.execute(store.sql.next_pending, {"action": "noop", "agent": "agent-1"})
    yield "next_pending"
    store.has_active(connection, "noop", agent="agent-1")
    yield "has_active"
    connection.execute(store.sql.replace_payload, {"task_id": LEASE.task_id, "payload_text": "1"})
    yield "replace_payload"
    times = {"moved": True, "new_not_before": None, "new_delay": MINUTE, "new_priority": None}
    connection.execute(store.sql.reschedule, {"task_id": LEASE.task_id, **times})
    yield "reschedule"
    for kind in get_args(Kind):
        bound = {"retention": MINUTE, "dead": MINUTE, "floor": LONG_AGO, "limit": 1000}
        connection.execute(store.sql.prunable(kind), bound)
        yield f"prunable {kind}"
    connection.execute(store.sql.delete_tasks, {"ids": [LEASE.task_id]})
    yield "delete_tasks"
    connection.execute(store.sql.delete_edges, {"ids": [LEASE.task_id]})
    yield "delete_edges"
    connection.execute(store.sql.delete_events, {"ids": [LEASE.task_id]})
    yield "delete_events"
    connection.execute(store.sql.key_holder(has_agent=True), {"agent": "agent-1", "key": "k"})
    yield "key of an agent"
    connection.execute(store.sql.key_holder(has_agent=False), {"key": "k"})
    yield "key of nobody"


def sent(database: Database) -> dict[str, tuple[str, dict[str, Any]]]:
    """The text and the values of each statement, as they reach the driver."""
    last: list[tuple[str, dict[str, Any]]] = []

    def note(_connection: Any, _cursor: Any, text: str, values: Any, *_: Any) -> None:
        if "pgqueue." in text:
            last.append((text, dict(values)))

    found: dict[str, tuple[str, dict[str, Any]]] = {}
    with database.engine.connect() as connection:
        listening.listen(connection, "before_cursor_execute", note)
        for name in work(Store("pgqueue"), connection):
            found[name] = last[-1]
        connection.rollback()
    assert set(found) == set(INDEXES)
    return found


class Prepared:
    """Statements prepared on a connection that is set up as the library's own are."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._values: dict[str, list[Any]] = {}
        connection.execute("set plan_cache_mode = force_generic_plan")

    def prepare(self, name: str, text: str, values: dict[str, Any]) -> None:
        order: list[str] = []

        def number(match: re.Match[str]) -> str:
            if match[1] not in order:
                order.append(match[1])
            return f"${order.index(match[1]) + 1}"

        numbered = re.sub(r"%\((\w+)\)s", number, text).replace("%%", "%")
        self._values[name] = [values[key] for key in order]
        self._connection.execute(f'prepare "{name}" as {numbered}')
        self.plan(name)  # so that it is planned now

    def plan(self, name: str) -> str:
        arguments = literal.SQL(", ").join(map(literal.Literal, self._values[name]))
        call = literal.SQL("({})").format(arguments) if self._values[name] else literal.SQL("")
        query = literal.SQL("explain execute {} {}").format(literal.Identifier(name), call)
        return "\n".join(line for (line,) in self._connection.execute(query))


LOAD = """
insert into pgqueue.tasks (id, queue, action, agent, priority, not_before, dedupe_key)
  select gen_random_uuid(), 'default', 'noop', case when n % 5 = 0 then 'agent-' || n % 100 end, n % 3,
         clock_timestamp() + case when n % 2 = 0 then interval '1 day' else -interval '1 s' * (n % 1000) end,
         'key-' || n
  from generate_series(1, 6000) n;
insert into pgqueue.tasks (id, queue, action, priority, requires)
  select gen_random_uuid(), 'default', 'noop', n % 3, array['gpu', 'c-' || n % 500] from generate_series(1, 6000) n;
insert into pgqueue.tasks (id, queue, action, status, finished_at)
  select gen_random_uuid(), 'default', 'noop', 'completed', now() from generate_series(1, 6000) n;
insert into pgqueue.tasks (id, queue, action, status, lease_owner, lease_token, lease_expires_at, attempts, fence)
  select gen_random_uuid(), 'default', 'noop', 'running', 'me', gen_random_uuid(),
         now() + interval '1 s' * (n - 50), 1, 1
  from generate_series(1, 500) n
"""


@pytest.fixture(scope="module")
def loaded(server: Any, template: str) -> Iterator[tuple[Prepared, dict[str, tuple[str, dict[str, Any]]]]]:
    """Statements that were prepared on the empty table, which is full now and has never been analysed."""
    from tests.support import databases

    name = databases.create(server, template)
    database = Database(server.url_for(name), schema="pgqueue")
    with connect(database.url) as admin:
        admin.execute("alter table pgqueue.tasks set (autovacuum_enabled = off)")
    statements = sent(database)
    with contextlib.closing(database.raw()) as raw:
        prepared = Prepared(raw)
        for key, (text, values) in statements.items():
            prepared.prepare(key, text, values)
        with connect(database.url) as admin:
            admin.execute(LOAD)
        yield prepared, statements
    database.dispose()
    databases.drop(server, name)


Loaded = tuple[Prepared, dict[str, tuple[str, dict[str, Any]]]]


@pytest.mark.parametrize("name", INDEXES)
def test_plan_prepared_on_an_empty_table_stays_an_index_scan_when_it_is_full(name: str, loaded: Loaded) -> None:
    plan = loaded[0].plan(name)
    assert "Seq Scan on task" not in plan, plan
    used = set(re.findall(r"Index (?:Only )?Scan (?:Backward )?using (\w+)", plan)) | set(
        re.findall(r"Bitmap Index Scan on (\w+)", plan)
    )
    assert used, plan
    assert used <= INDEXES[name], plan


@pytest.mark.parametrize("name", INDEXES)
def test_statement_binds_neither_a_status_nor_a_claims_limit(name: str, loaded: Loaded) -> None:
    text, values = loaded[1][name]
    assert not set(map(str, Status)) & {str(value) for value in values.values()}
    if name in ("claim_due", "claim_conditional", "met_levels", "claim_agents", "free_agents"):
        assert not re.search(r"(?i)limit\s+%\(", text)
    if name.startswith("settle") or name in ("renew", "report"):
        # Named in the WHERE, it would make the planner hash the whole index of what runs.
        assert not re.search(r"(?i)where[^()]*\bstatus\s*=", text)


def test_plan_of_a_claim_with_a_bound_status_would_lose_the_partial_index(loaded: Loaded) -> None:
    # What the two tests above are there for, and that they would see it.
    prepared, statements = loaded
    text, values = statements["claim_due"]
    assert text.count("status = 'pending'") == 2
    first, last = (
        text.rsplit("status = 'pending'", 1)
        if text.rfind("status = 'pending'") < text.find("LIMIT")
        else (text.split("status = 'pending'", 1))
    )
    prepared.prepare("bound", f"{first}status = %(wanted)s::text{last}", {**values, "wanted": "pending"})
    assert "using claim_due" not in prepared.plan("bound")


def test_claim_after_the_load_looks_at_no_more_than_it_takes(database: Database) -> None:
    # On a connection that has claimed from the empty table often enough to have its plan prepared.
    store = Store("pgqueue")
    with database.engine.connect() as connection:
        for _ in range(12):
            store.claim_due(connection, ["default"], size=10, owner="me", lease=MINUTE)
            connection.commit()
        with database.begin() as loading:
            loading.exec_driver_sql(LOAD.replace("%", "%%"))
        before = scans(connection)
        claims = store.claim_due(connection, ["default"], size=10, owner="me", lease=MINUTE)
        assert len(claims.tasks) == 10
        assert scans(connection) == before


def test_enqueue_many_of_a_thousand_is_a_fixed_number_of_statements(database: Database) -> None:
    counted: list[str] = []
    with database.begin() as connection:
        listening.listen(connection, "before_cursor_execute", lambda *a: counted.append(a[2]))
        Store("pgqueue").enqueue_chunk(connection, [NewTask("x", n, {"dedupe_key": str(n)}) for n in range(1000)])
    assert len(counted) == 2
