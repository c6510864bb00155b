"""The schema's way up and down, and that it ends where the program's own description of the tables does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
import sqlalchemy as sa
from psycopg import sql as literal

from pgqueue import migrate
from pgqueue.client import Client
from pgqueue.config import DEFAULTS, VERSION
from pgqueue.database import Database
from pgqueue.errors import DatabaseError, InputError, SchemaMismatch
from pgqueue.schema import REVISION, schema_for
from tests.support import Sql, connect, eventually, servers, somebody_waits

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def blank(empty_database_url: str) -> Iterator[Database]:
    database = Database(empty_database_url, schema="pgqueue")
    yield database
    database.dispose()


@contextmanager
def look_at(url: str) -> Iterator[Sql]:
    with connect(url) as connection:
        yield lambda text, *params: connection.execute(text, params or None).fetchall()


def objects(url: str, schema: str = "pgqueue") -> dict[str, list[tuple[Any, ...]]]:
    """What is in a schema, as the catalogue tells it: columns, constraints, indexes, and all the rest by name."""
    queries = {
        "columns": """
            select c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity,
                   a.attgenerated, pg_get_expr(d.adbin, d.adrelid)
            from pg_attribute a join pg_class c on c.oid = a.attrelid
            left join pg_attrdef d on d.adrelid = a.attrelid and d.adnum = a.attnum
            where c.relnamespace = %(schema)s::regnamespace and c.relkind = 'r' and a.attnum > 0 and not a.attisdropped
            order by 1, a.attnum""",
        "constraints": """
            select c.relname, n.conname, n.contype::text, pg_get_constraintdef(n.oid)
            from pg_constraint n join pg_class c on c.oid = n.conrelid
            where n.connamespace = %(schema)s::regnamespace order by 1, 2""",
        "indexes": """
            select tablename, indexname, indexdef from pg_indexes where schemaname = %(schema)s order by 1, 2""",
        "others": """
            select relkind::text, relname from pg_class
            where relnamespace = %(schema)s::regnamespace and relkind not in ('r', 'i') order by 1, 2""",
        "functions": """
            select proname, prosecdef, array_to_string(proconfig, ',') from pg_proc
            where pronamespace = %(schema)s::regnamespace order by 1""",
        "triggers": """
            select t.tgname, pg_get_triggerdef(t.oid) from pg_trigger t join pg_class c on c.oid = t.tgrelid
            where c.relnamespace = %(schema)s::regnamespace and not t.tgisinternal order by 1""",
    }
    with connect(url) as connection:
        if connection.execute("select to_regnamespace(%s)", [schema]).fetchone() == (None,):
            return {}
        return {name: connection.execute(query, {"schema": schema}).fetchall() for name, query in queries.items()}


def test_upgrade_makes_what_the_program_describes(blank: Database) -> None:
    assert migrate.upgrade(blank) == (None, REVISION)
    assert migrate.current(blank) == migrate.head() == REVISION
    migrate.check(blank)
    assert Client(blank).enqueue("x").created


def test_upgrade_of_what_is_up_to_date_changes_nothing(blank: Database) -> None:
    migrate.upgrade(blank)
    before = objects(blank.url)
    assert migrate.upgrade(blank) == (REVISION, REVISION)
    assert objects(blank.url) == before


def test_downgrade_and_upgrade_again_end_where_they_began(blank: Database) -> None:
    migrate.upgrade(blank)
    before = objects(blank.url)
    assert migrate.downgrade(blank, "base") == (REVISION, None)
    left = objects(blank.url)
    assert {name for name, *_ in left["columns"]} <= {"schema_version"}
    assert not [left[kind] for kind in ("functions", "triggers", "others") if left[kind]]
    assert migrate.current(blank) is None
    assert migrate.upgrade(blank) == (None, REVISION)
    assert objects(blank.url) == before


def test_create_all_equals_the_migrations(blank: Database, database_url: str) -> None:
    with blank.begin() as connection:
        connection.execute(sa.schema.CreateSchema("pgqueue"))
        schema_for("pgqueue").metadata.create_all(connection)
    described, migrated = objects(blank.url), objects(database_url)

    def ours(kind: str) -> list[tuple[Any, ...]]:
        # A constraint trigger is listed among the constraints, and no trigger is described.
        return [row for row in migrated[kind] if row[0] != "schema_version" and row[2] != "t"]

    assert described["columns"] == ours("columns")
    assert described["constraints"] == ours("constraints")
    assert described["indexes"] == ours("indexes")
    assert len(described["indexes"]) > 15


def test_upgrade_leaves_one_row_about_the_schema(sql: Sql) -> None:
    found = sql("select single_row, oldest_program, journal, orphan_grace from pgqueue.meta")
    assert found == [(True, VERSION, "failures", DEFAULTS.orphan_grace)]
    assert sql("select version_num from pgqueue.schema_version") == [(REVISION,)]


def test_upgrade_keeps_alembics_bookkeeping_out_of_the_applications_way(sql: Sql) -> None:
    assert sql("select schemaname from pg_tables where tablename in ('alembic_version', 'schema_version')") == [
        ("pgqueue",)
    ]


def test_upgrade_stores_the_table_as_the_design_says(sql: Sql) -> None:
    ((options,),) = sql("select reloptions from pg_class where oid = 'pgqueue.tasks'::regclass")
    assert {"fillfactor=70", "vacuum_truncate=off", "autovacuum_vacuum_scale_factor=0"} <= set(options)


def test_upgrade_makes_trigger_functions_that_need_no_rights_of_the_writer(database_url: str) -> None:
    functions = objects(database_url)["functions"]
    assert functions
    assert all(definer and config.startswith("search_path=pgqueue, pg_temp") for _, definer, config in functions)


def test_upgrade_by_two_at_once_migrates_once(blank: Database) -> None:
    results: list[tuple[str | None, str | None]] = []
    start = threading.Barrier(3)

    def upgrade() -> None:
        database = Database(blank.url, schema="pgqueue")
        start.wait(30)
        results.append(migrate.upgrade(database))
        database.dispose()

    threads = [threading.Thread(target=upgrade) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(results, key=str) == sorted([(None, REVISION), (REVISION, REVISION), (REVISION, REVISION)], key=str)
    migrate.check(blank)


def test_upgrade_waits_for_a_migrator_that_is_under_way(blank: Database) -> None:
    results: list[tuple[str | None, str | None]] = []
    with connect(blank.url) as other, look_at(blank.url) as look:
        with other.transaction():
            other.execute("select pg_advisory_xact_lock(hashtextextended('pgqueue:migrate:pgqueue', 0))")
            thread = threading.Thread(target=lambda: results.append(migrate.upgrade(blank)))
            thread.start()
            eventually(lambda: somebody_waits(look))
            assert objects(blank.url) == {}
        thread.join(60)
    assert results == [(None, REVISION)]


def alembic(url: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    env = {**os.environ, "PGQUEUE_DATABASE_URL": url, **environment}
    return subprocess.Popen(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=ROOT,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def test_upgrade_by_alembic_at_the_root_does_the_same(empty_database_url: str, database_url: str) -> None:
    finished(alembic(empty_database_url, "upgrade", "head"))
    assert objects(empty_database_url) == objects(database_url)
    finished(alembic(empty_database_url, "downgrade", "base"))
    assert {name for name, *_ in objects(empty_database_url)["columns"]} <= {"schema_version"}


def test_upgrade_by_a_killed_migrator_leaves_nothing_and_can_be_run_again(blank: Database, database_url: str) -> None:
    with connect(blank.url) as other, look_at(blank.url) as look:
        # It stands still in the middle of its transaction: somebody is making a table of the name that it makes last.
        other.execute("create schema pgqueue")
        with other.transaction(force_rollback=True):
            other.execute("create table pgqueue.meta (x int)")
            process = alembic(blank.url, "upgrade", "head")
            eventually(lambda: somebody_waits(look))
            process.send_signal(signal.SIGKILL)
            process.communicate(timeout=30)
        clients = (
            "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend'"
        )
        eventually(lambda: len(look(clients)) == 2)
    assert objects(blank.url)["columns"] == []
    assert migrate.upgrade(blank) == (None, REVISION)
    assert objects(blank.url) == objects(database_url)


def test_check_of_a_migrated_schema_is_clean(database: Database) -> None:
    migrate.check(database)


@pytest.mark.parametrize(
    ("drift", "word"),
    [
        ("alter table pgqueue.tasks add column colour text", "colour"),
        ("alter table pgqueue.tasks drop column message", "message"),
        ("drop index pgqueue.dead", "dead"),
        ("create index mine on pgqueue.tasks (action)", "mine"),
        ("alter table pgqueue.tasks alter column queue drop not null", "queue"),
        ("create table pgqueue.more (id int)", "more"),
        ("drop table pgqueue.pauses", "pauses"),
        ("alter table pgqueue.tasks alter column last_error type varchar(10)", "last_error"),
    ],
)
def test_check_finds_what_was_changed_by_hand(database: Database, sql: Sql, drift: str, word: str) -> None:
    sql(drift)
    with pytest.raises(SchemaMismatch, match=f"changed by hand.*{word}") as caught:
        migrate.check(database)
    assert "\n" not in str(caught.value)
    assert "pgqueue db sql" in str(caught.value)


def test_check_leaves_other_schemas_alone(database: Database, sql: Sql) -> None:
    sql("create table public.orders (id int)")
    sql("create schema shop create table tasks (id int)")
    migrate.check(database)


def test_check_names_an_index_whose_building_was_broken_off(database: Database, sql: Sql) -> None:
    sql("update pg_index set indisvalid = false where indexrelid = 'pgqueue.dead'::regclass")
    with pytest.raises(SchemaMismatch, match="broken off: dead"):
        migrate.check(database)


def test_check_of_an_empty_database_says_how_to_migrate_it(blank: Database) -> None:
    with pytest.raises(SchemaMismatch, match=r"at revision none.*pgqueue db upgrade"):
        migrate.check(blank)
    assert migrate.current(blank) is None


def test_upgrade_of_a_schema_that_is_newer_is_refused(database: Database, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '9999'")
    for act, revision in ((migrate.upgrade, "head"), (migrate.downgrade, "base")):
        with pytest.raises(SchemaMismatch, match="revision 9999, which this program does not know"):
            act(database, revision)


@pytest.mark.parametrize("revision", ["nonsense", "9999", "", "+x", "base:head"])
def test_upgrade_to_an_unknown_revision_is_refused_and_names_those_known(blank: Database, revision: str) -> None:
    with pytest.raises(InputError, match=f"{REVISION}, head") as caught:
        migrate.upgrade(blank, revision)
    assert caught.value.field == "revision"
    assert objects(blank.url) == {}


def test_downgrade_while_somebody_holds_a_lock_says_so_and_changes_nothing(
    database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(migrate, "WAIT_FOR_LOCKS", "100ms")
    before = objects(database_url)
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks limit 1")
        with pytest.raises(DatabaseError, match=r"lock.*nothing was changed.*idle in transaction") as caught:
            migrate.downgrade(database, "base")
    assert "\n" not in str(caught.value)
    assert objects(database_url) == before


def test_sql_without_a_database_does_the_same(empty_database_url: str, database_url: str) -> None:
    text = migrate.sql()
    with connect(empty_database_url) as connection:
        connection.execute(text)
    assert objects(empty_database_url) == objects(database_url)
    assert "pgqueue" in text


# -- who migrates, and where


@pytest.fixture
def owned(server: servers.Provided) -> Iterator[Callable[[str], str]]:
    """`owned(password)`: the URL of a database whose owner is a role without any other right, logged in by name."""
    made: list[str] = []

    def make(password: str) -> str:
        made.append(name := f"pgqueue_owner_{uuid4().hex[:12]}")
        with connect(server.url) as admin:
            secret = literal.Literal(password)
            admin.execute(literal.SQL("create role {} login password {}").format(literal.Identifier(name), secret))
            admin.execute(literal.SQL("create database {} owner {}").format(*[literal.Identifier(name)] * 2))
        base = server.url_for(name)
        scheme, rest = base.split("://", 1)
        host = rest.split("@", 1)[-1]
        return f"{scheme}://{name}:{quote(password, safe='')}@{host}"

    yield make
    with connect(server.url) as admin:
        for name in made:
            admin.execute(literal.SQL("drop database {} with (force)").format(literal.Identifier(name)))
            admin.execute(literal.SQL("drop role {}").format(literal.Identifier(name)))


def test_upgrade_by_an_owner_without_other_rights_and_with_an_odd_password_works(owned: Callable[[str], str]) -> None:
    url = owned("50%-off@home:/?#é")
    database = Database(url, schema="pgqueue")
    assert migrate.upgrade(database) == (None, REVISION)
    migrate.check(database)
    with Client(database) as client:
        assert client.enqueue("x", dedupe_key="k").created
    finished(alembic(url, "downgrade", "base"))
    finished(alembic(url, "upgrade", "head"))
    assert migrate.current(database) == REVISION
    database.dispose()


def test_upgrade_of_a_schema_that_an_administrator_made_needs_no_right_on_the_database(
    blank: Database, server: servers.Provided
) -> None:
    name = f"pgqueue_owner_{uuid4().hex[:12]}"
    with connect(blank.url) as admin:
        admin.execute(f"create role {name} login")
        admin.execute(f"create schema pgqueue authorization {name}")
    separator = "&" if "?" in blank.url else "?"
    limited = Database(f"{blank.url}{separator}options=-c%20role%3D{name}", schema="pgqueue")
    try:
        assert migrate.upgrade(limited) == (None, REVISION)
        assert Client(limited).enqueue("x").created
    finally:
        limited.dispose()
        with connect(blank.url) as admin:
            admin.execute(f"drop owned by {name}; drop role {name}")


def test_upgrade_under_another_schema_name_works_beside_the_first(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGQUEUE_SCHEMA", "jobs_2")
    other = Database(database.url)
    assert other.schema == "jobs_2"
    assert migrate.upgrade(other) == (None, REVISION)
    migrate.check(other)
    migrate.check(database)
    one, two = Client(database), Client(other)
    one.enqueue("x", agent="a", dedupe_key="k")
    assert two.enqueue("x", agent="a", dedupe_key="k").created
    held = two.claim("a")
    assert held is not None
    assert two.complete(held).attempts == 1
    assert (one.stats()["pending"], two.stats()["completed"]) == (1, 1)
    assert {name for name, *_ in objects(other.url, "jobs_2")["functions"]} == {
        name for name, *_ in objects(database.url)["functions"]
    }
    assert migrate.downgrade(other, "base") == (REVISION, None)
    assert one.stats()["pending"] == 1
    other.dispose()


def test_upgrade_by_alembic_under_another_schema_name_works(empty_database_url: str) -> None:
    finished(alembic(empty_database_url, "upgrade", "head", PGQUEUE_SCHEMA="jobs_3"))
    assert objects(empty_database_url) == {}
    assert objects(empty_database_url, "jobs_3")["columns"]


@pytest.mark.parametrize("name", ["Jobs", "1jobs", "a-b", "a.b", "", "pg_mine", "information_schema", "x" * 64, 'a"b'])
def test_database_with_a_schema_name_that_needs_quotes_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if not name:
        monkeypatch.setenv("PGQUEUE_SCHEMA", " ")
    with pytest.raises(InputError, match="schema"):
        Database("postgresql://", schema=name or None)
