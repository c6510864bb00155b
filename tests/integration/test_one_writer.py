"""Only `Statements.move` writes `tasks.status`: in the source, in every statement, and in every one that runs."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import sqlalchemy as sa
from sqlalchemy import event as listening
from sqlalchemy.sql import visitors

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.lifecycle import MOVES, Event, Status, source_of
from pgqueue.options import NewTask
from pgqueue.schema import Schema, schema_for
from pgqueue.statements import CLAIM_SIZES, Statements
from pgqueue.statements.prune import Kind
from pgqueue.store import Store
from tests.support import Sql, eventually

ROOT = Path(__file__).resolve().parents[2]
RAW = re.compile(
    r"\bupdate\s+(?:only\s+)?\S*tasks\b.*?\bset\b.*?\bstatus\s*=|\binsert\s+into\s+\S*tasks\b", re.I | re.S
)


class Marked(Statements):
    """Statements whose `move` leaves its mark on what it builds."""

    def move(self, event: Event) -> sa.Update:
        return super().move(event).execution_options(moved_by=event)


def writers_of_status(statement: sa.Executable) -> Iterator[sa.Update]:
    """The updates within a statement, CTEs included, that write the status."""
    for part in visitors.iterate(cast("Any", statement)):
        if isinstance(part, sa.Update) and getattr(part.table, "name", None) == "tasks":
            columns = {getattr(c, "name", c) for c in (part._values or {})}
            if "status" in columns:
                yield part


def inserts_with_status(statement: sa.Executable) -> bool:
    for part in visitors.iterate(cast("Any", statement)):
        if isinstance(part, sa.Insert) and getattr(part.table, "name", None) == "tasks":
            named = {getattr(c, "name", c) for c in (part._values or {})} | set(part._select_names or ())
            if "status" in named:
                return True
    return False


def every_statement(sql: Statements) -> dict[str, sa.Executable]:
    """All that the class can build, by name; a method that this does not know fails the test below."""
    built: dict[str, Any] = {}
    for event in Event:
        built[f"move {event}"] = sql.move(event)
        built[f"apply {event}"] = sql.apply(event)
        for skip in (True, False):
            try:
                built[f"settle {event} {skip}"] = sql.settle(event, skip_locked=skip)
            except AssertionError:
                assert source_of(event) is not Status.RUNNING or event in NOT_A_HOLDERS
    for skip in (True, False):
        built[f"renew {skip}"] = sql.renew(skip_locked=skip)
        built[f"report {skip}"] = sql.report(skip_locked=skip)
        built[f"lock {skip}"] = sql.lock(ending=skip)
        built[f"key_holder {skip}"] = sql.key_holder(has_agent=skip)
        built[f"find_by_dedupe_key {skip}"] = sql.find_by_dedupe_key(has_agent=skip)
        built[f"key_user {skip}"] = sql.key_user(has_agent=skip)
        built[f"link {skip}"] = sql.link(gate=skip)
        built[f"lift {skip}"] = sql.lift(failed=skip)
        built[f"rows {skip}"] = sql.rows(lock=skip)
        built[f"parents {skip}"] = sql.parents(results=skip)
    for size in CLAIM_SIZES:
        built[f"claim_due {size}"] = sql.claim_due(size)
        built[f"to_look_at {size}"] = sql.to_look_at(size)
        built[f"claim_conditional {size}"] = sql.claim_conditional(size)
        built[f"free_agents {size}"] = sql.free_agents(size)
    for kind in get_args(Kind):
        built[f"prunable {kind}"] = sql.prunable(kind)
        built[f"count_prunable {kind}"] = sql.count_prunable((kind,))
    for on in (True, False):
        built |= {f"switch_triggers {on} {n}": one for n, one in enumerate(sql.switch_triggers(on=on))}
    built["by_id_text"] = sql.by_id_text(low=None, high=None, tail="abcdef", statuses=frozenset({Status.DEAD}))
    for name, member in inspect.getmembers(Statements):
        if not name.startswith("_") and not callable(member):
            value = getattr(sql, name)
            if isinstance(value, sa.sql.expression.Executable):
                built[name] = value
    return built


NOT_A_HOLDERS = {Event.EVICT, Event.EXPIRE, Event.REQUEST_CANCEL}


def test_update_of_a_status_comes_from_move_in_every_statement_there_is() -> None:
    statements = every_statement(Marked(schema_for("pgqueue")))
    found = {name: list(writers_of_status(statement)) for name, statement in statements.items()}
    unmarked = [n for n, ups in found.items() for up in ups if "moved_by" not in up.get_execution_options()]
    assert unmarked == []
    assert not [name for name, statement in statements.items() if inserts_with_status(statement)]
    # Else the search above found nothing because it cannot see: every event is among what was found.
    marks = {up.get_execution_options()["moved_by"] for ups in found.values() for up in ups}
    assert marks == set(Event)
    assert {n for n, ups in found.items() if ups} >= {
        "claim_due 100",
        "claim_conditional 100",
        "claim_agents",
        "settle complete True",
    }


def test_statements_that_the_search_does_not_know_are_none() -> None:
    known = {name.split()[0] for name in every_statement(Statements(schema_for("pgqueue")))}
    helpers = {"target", "conditions", "task_columns", "schema", "tasks", "events", "dependencies"}
    builders = {name for name, _ in inspect.getmembers(Statements) if not name.startswith("_")}
    assert builders - known - helpers == set(), "a new statement: let every_statement() build it"


def test_source_writes_a_status_nowhere_but_in_move() -> None:
    sources = sorted(path for room in ("pgqueue", "cli", "alembic") for path in (ROOT / room).rglob("*.py"))
    assert ROOT / "pgqueue" / "statements" / "moves.py" in sources
    assert [offence for path in sources for offence in offences_of(path)] == []


def offences_of(path: Path) -> list[str]:
    text = path.read_text()
    tree = ast.parse(text, str(path))
    allowed = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef) and function.name == "move" and path.name == "moves.py"
        for node in ast.walk(function)
    }
    return [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for node in ast.walk(tree)
        # A file without SQLAlchemy that sets a key of that name reads a row.
        if id(node) not in allowed and isinstance(node, ast.expr) and "sqlalchemy" in text and _writes_status(node)
    ]


def _writes_status(node: ast.expr) -> bool:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return RAW.search(node.value) is not None
    if isinstance(node, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values]
        return RAW.search("".join(parts)) is not None
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "values":
        keys: list[object] = [k.arg for k in node.keywords]
        for argument in node.args:
            if isinstance(argument, ast.Dict):
                keys += [k.value for k in argument.keys if isinstance(k, ast.Constant)]
        return "status" in keys
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return isinstance(node.slice, ast.Constant) and node.slice.value == "status"
    return False


@pytest.mark.parametrize(
    "code",
    [
        "sa.update(t).values(status='dead')",
        "sa.update(t).values({'status': 'dead'})",
        "values['status'] = 'dead'",
        "'update pgqueue.tasks set updated_at = now(), status = %s'",
        "f'update {schema}.tasks set status = 1'",
        "'insert into pgqueue.tasks (id, status) values (1, 2)'",
    ],
)
def test_source_search_sees_a_planted_write(code: str) -> None:
    assert any(_writes_status(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.expr))


def test_update_of_a_status_comes_from_move_in_all_that_runs(database: Database, sql: Sql) -> None:
    client = Client(database)
    client.store = marked_store("pgqueue")
    ran: set[Event] = set()
    offences: list[str] = []

    def look(_connection: Any, statement: Any, *_: Any) -> None:
        if isinstance(statement, sa.TextClause):
            offences.extend([statement.text] if RAW.search(statement.text) else [])
            return
        if inserts_with_status(statement):
            offences.append(str(statement))
        for update in writers_of_status(statement):
            event = update.get_execution_options().get("moved_by")
            if event is None:
                offences.append(str(update))
            else:
                ran.add(event)

    listening.listen(database.engine, "before_execute", look)
    every_event_happens(client, sql)
    assert offences == []
    assert ran == set(Event)


def marked_store(schema: str) -> Store:
    store = Store(schema)
    described: Schema = schema_for(schema)
    store.sql = Marked(described)
    return store


def every_event_happens(client: Client, sql: Sql) -> None:
    """Each verb once, so that each event happens."""

    def held(agent: str, **options: Any) -> Any:
        client.enqueue_many([NewTask("noop", None, cast("Any", {"agent": agent, **options}))])
        claimed = client.claim(agent)
        assert claimed is not None
        return claimed

    client.enqueue("noop")
    (one,) = client.claim_batch("default", limit=1)
    client.renew(one)
    client.report_progress(one, 10, "on the way")
    client.complete(one, {"n": 1})
    client.fail(held("failing"), "boom")
    buried = held("buried")
    client.bury(buried, "no")
    client.retry(buried.id)
    dismissed = held("dismissed")
    client.bury(dismissed, "no")
    client.dismiss(dismissed.id)
    client.release(held("released"))
    client.snooze(held("snoozed"), 60)
    client.evict(held("evicted").id)
    stopping = held("stopping")
    client.cancel(stopping.id)
    client.acknowledge_cancel(stopping)
    cancelled = client.enqueue("noop").id
    client.enqueue("noop", depends_on=[cancelled])
    client.cancel(cancelled)
    client.enqueue("noop", agent="slow")
    assert client.claim("slow", lease=0.05)
    assert eventually(client.reap)
    assert {m.event for m in MOVES} == set(Event)
    assert sql("select count(*) from pgqueue.tasks where agent = 'slow' and status = 'pending'") == [(1,)]
