"""What a client says when the database is not what it needs: missing, older, newer, unreachable, read-only, foreign."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from pgqueue.client import Client
from pgqueue.config import VERSION
from pgqueue.database import Database, with_database
from pgqueue.errors import (
    ConfigError,
    DatabaseError,
    NoDatabase,
    OutcomeUnknown,
    PgqueueError,
    RetryTransaction,
    SchemaMismatch,
)
from pgqueue.ids import new_id
from pgqueue.options import Enqueued, NewTask, Options
from pgqueue.schema import REVISION
from tests.support import Sql, connect, eventually, servers, somebody_waits

SECRET = "s3cr3t-%-word"


@contextmanager
def client_of(url: str, **options: Any) -> Iterator[Client]:
    client = Client(Database(url, schema="pgqueue", **options))
    yield client
    client.close()


def refused(kind: type[PgqueueError], act: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        act()
    assert type(caught.value) is kind
    text = str(caught.value)
    assert "\n" not in text
    assert SECRET not in text
    return text


def test_verb_on_a_database_without_the_schema_says_how_to_make_it(empty_database_url: str) -> None:
    with client_of(empty_database_url) as client:
        assert refused(SchemaMismatch, client.stats) == (
            "schema 'pgqueue' has no pgqueue tables yet: run `pgqueue db upgrade`"
        )


def test_verb_on_a_schema_of_somebody_elses_says_how_to_make_ours(empty_database_url: str) -> None:
    with connect(empty_database_url) as connection:
        connection.execute("create schema pgqueue create table tasks (id int)")
    with client_of(empty_database_url) as client:
        assert "pgqueue db upgrade" in refused(SchemaMismatch, lambda: client.enqueue("x"))


@pytest.mark.parametrize(
    "change", ["update pgqueue.schema_version set version_num = '0000'", "delete from pgqueue.schema_version"]
)
def test_verb_on_an_older_schema_is_refused(face: Client, sql: Sql, change: str) -> None:
    sql(change)
    text = refused(SchemaMismatch, lambda: face.enqueue("x"))
    assert f"this program needs {REVISION}: run `pgqueue db upgrade`" in text
    assert sql("select count(*) from pgqueue.tasks") == [(0,)]


def test_verb_on_a_newer_schema_that_serves_this_program_works(face: Client, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '9999'")
    sql("update pgqueue.meta set oldest_program = %s", VERSION)
    assert face.enqueue("x").created


def test_verb_on_a_newer_schema_that_does_not_serve_this_program_is_refused(face: Client, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '9999'")
    sql("update pgqueue.meta set oldest_program = '9.10.0'")
    text = refused(SchemaMismatch, lambda: face.enqueue("x"))
    assert "serves pgqueue 9.10.0 or newer" in text
    assert f"this is {VERSION}" in text


@pytest.mark.parametrize("oldest", ["0.0.9", "0.1", "0.1.0rc1"])
def test_verb_on_a_newer_schema_compares_versions_by_number(face: Client, sql: Sql, oldest: str) -> None:
    sql("update pgqueue.schema_version set version_num = '9999'")
    sql("update pgqueue.meta set oldest_program = %s", oldest)
    assert face.enqueue("x").created


def test_handshake_is_made_once_and_again_after_a_refusal(face: Client, sql: Sql) -> None:
    sql("update pgqueue.schema_version set version_num = '0000'")
    refused(SchemaMismatch, lambda: face.stats())
    sql("update pgqueue.schema_version set version_num = %s", REVISION)
    assert face.stats()["total"] == 0
    sql("update pgqueue.schema_version set version_num = '0000'")
    assert face.stats()["total"] == 0
    sql("update pgqueue.schema_version set version_num = %s", REVISION)


def test_verb_without_a_database_says_both_ways_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE", "PGPORT", "PGUSER"):
        monkeypatch.delenv(name, raising=False)
    text = refused(NoDatabase, Client().stats)
    assert "PGQUEUE_DATABASE_URL" in text
    assert "embedded" in text


@pytest.mark.parametrize("url", ["mysql://root@localhost/x", "no url at all", "http://localhost"])
def test_verb_with_a_url_that_is_none_is_refused(url: str) -> None:
    refused(ConfigError, Client(url).stats)


def test_verb_on_a_server_that_is_not_there_says_where_it_looked(tmp_path: Any) -> None:
    with client_of(f"postgresql://ann:{SECRET.replace('%', '%25')}@/queue?host={tmp_path}") as client:
        text = refused(DatabaseError, client.stats)
    assert "cannot be reached" in text
    assert "ann:***@" in text


@pytest.fixture
def port() -> Iterator[int]:
    """Somebody listens there who is no PostgreSQL."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.1)
    done = threading.Event()

    def answer() -> None:
        while not done.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    thread = threading.Thread(target=answer)
    thread.start()
    yield int(listener.getsockname()[1])
    done.set()
    thread.join(30)
    listener.close()


def test_verb_on_what_is_no_postgresql_says_so(port: int) -> None:
    with client_of(f"postgresql://ann:{SECRET.replace('%', '%25')}@127.0.0.1:{port}/queue") as client:
        assert "not PostgreSQL" in refused(DatabaseError, client.stats)


def test_verb_on_a_database_that_does_not_exist_says_so(server: servers.Provided) -> None:
    with client_of(server.url_for("no_such_database")) as client:
        assert "no such database" in refused(DatabaseError, client.stats)


@pytest.fixture
def limited(database_url: str, sql: Sql) -> Iterator[Callable[..., str]]:
    """`limited(*grants)`: the URL of a fresh role with these grants."""
    names: list[str] = []

    def make(*grants: str) -> str:
        names.append(name := f"limited_{uuid4().hex[:12]}")
        sql(f"create role {name} login")
        for grant in grants:
            sql(f"grant {grant} to {name}")
        separator = "&" if "?" in database_url else "?"
        return f"{database_url}{separator}options=-c%20role%3D{name}"

    yield make
    for name in names:
        sql(f"drop owned by {name}")
        sql(f"drop role {name}")


PRODUCER = (
    "usage on schema pgqueue",
    "insert, select on pgqueue.tasks",
    "select on pgqueue.meta, pgqueue.schema_version",
)


def test_enqueue_by_a_role_that_may_only_insert_and_select_works(limited: Callable[..., str], sql: Sql) -> None:
    with client_of(limited(*PRODUCER)) as client:
        first = client.enqueue("x", dedupe_key="k")
        assert client.enqueue("x", dedupe_key="k") == Enqueued(first.id, created=False)
        assert len(client.enqueue_many([NewTask("x", n, {}) for n in range(3)])) == 3
        assert client.get(first.id).id == first.id
        assert client.stats()["total"] == 4
        text = refused(DatabaseError, lambda: client.cancel(first.id))
        assert "role may not do that" in text
    assert sql("select count(*) from pgqueue.tasks") == [(4,)]


def test_enqueue_by_a_role_without_rights_names_the_page_with_the_grants(limited: Callable[..., str]) -> None:
    with client_of(limited("usage on schema pgqueue")) as client:
        assert "docs/operations.md" in refused(DatabaseError, lambda: client.enqueue("x"))


def test_enqueue_on_a_read_only_server_says_so(database_url: str) -> None:
    separator = "&" if "?" in database_url else "?"
    with client_of(f"{database_url}{separator}options=-c%20default_transaction_read_only%3Don") as client:
        assert "read-only" in refused(DatabaseError, lambda: client.enqueue("x"))


def test_verb_on_a_server_whose_default_is_serializable_runs_read_committed(database_url: str) -> None:
    separator = "&" if "?" in database_url else "?"
    url = f"{database_url}{separator}options=-c%20default_transaction_isolation%3Dserializable"
    with client_of(url) as client, client.database.begin() as connection:
        assert connection.exec_driver_sql("show transaction_isolation").scalar() == "read committed"
        assert client.on(connection).reap() == []


def test_verb_through_a_pooler_prepares_nothing_and_changes_no_session(database_url: str, sql: Sql) -> None:
    with client_of(database_url, pooler=True) as client:
        for n in range(12):
            client.enqueue("x", n, agent="a")
        while held := client.claim("a"):
            client.complete(held)
        assert client.stats()["completed"] == 12
        with client.database.engine.connect() as connection:
            prepared = connection.exec_driver_sql("select count(*) from pg_prepared_statements")
            assert prepared.scalar_one() == 0
            assert connection.exec_driver_sql("show enable_seqscan").scalar_one() == "on"


# -- connections that break


def kill_others(sql: Sql) -> None:
    sql(
        "select pg_terminate_backend(pid) from pg_stat_activity"
        " where datname = current_database() and pid <> pg_backend_pid()"
    )


def test_verb_after_the_connection_was_cut_reads_again_by_itself(face: Client, sql: Sql) -> None:
    made = face.enqueue("x")
    kill_others(sql)
    assert face.get(made.id).id == made.id


def test_enqueue_after_the_connection_was_cut_makes_one_task(face: Client, sql: Sql) -> None:
    face.enqueue("x")
    kill_others(sql)
    assert face.enqueue("x").created
    assert sql("select count(*) from pgqueue.tasks") == [(2,)]


def test_complete_after_the_connection_was_cut_is_sent_again(face: Client, sql: Sql) -> None:
    face.enqueue("x", agent="a")
    held = face.claim("a")
    assert held is not None
    kill_others(sql)
    assert face.complete(held).attempts == 1


def test_enqueue_many_after_the_connection_was_cut_is_sent_again(face: Client, sql: Sql) -> None:
    face.stats()
    kill_others(sql)
    given: list[Options] = [{"dedupe_key": "k"}, {"id": new_id()}, {"dedupe_key": "k"}]
    made = face.enqueue_many(NewTask("x", None, options) for options in given)
    assert [m.created for m in made] == [True, True, False]
    assert (made[1].id, made[2].id) == (given[1]["id"], made[0].id)


@pytest.mark.parametrize("write", ["release", "snooze", "report_progress"])
def test_holders_write_after_the_connection_was_cut_is_sent_again(face: Client, sql: Sql, write: str) -> None:
    face.enqueue("x", agent="a")
    held = face.claim("a")
    assert held is not None
    kill_others(sql)
    getattr(face, write)(*(held,) if write == "release" else (held, 1))


def cut_off_inserts(sql: Sql) -> None:
    """In the middle of the statement, at the first try and at the second."""
    sql(
        "create function public.cut() returns trigger language plpgsql as"
        " $$ begin perform pg_terminate_backend(pg_backend_pid()); return new; end $$"
    )
    sql("create trigger cut before insert on pgqueue.tasks for each row execute function public.cut()")


def test_enqueue_many_cut_off_twice_says_that_it_does_not_know(face: Client, sql: Sql) -> None:
    cut_off_inserts(sql)
    ids = [new_id(), new_id()]
    with pytest.raises(OutcomeUnknown) as caught:
        face.enqueue_many([NewTask("x", None, {"id": one}) for one in ids])
    assert list(caught.value.task_ids) == ids
    assert f"{ids[0]} and 1 more" in str(caught.value)
    sql("drop trigger cut on pgqueue.tasks")
    made = face.enqueue_many([NewTask("x", None, {"id": one}) for one in ids])
    assert [m.id for m in made] == ids


def test_enqueue_cut_off_twice_says_that_it_does_not_know(client: Client, sql: Sql) -> None:
    cut_off_inserts(sql)
    wanted = new_id()
    with pytest.raises(OutcomeUnknown, match=str(wanted)) as caught:
        client.enqueue("x", id=wanted)
    assert caught.value.task_ids == (wanted,)
    sql("drop trigger cut on pgqueue.tasks")
    assert client.enqueue("x", id=wanted) == Enqueued(wanted, created=True)


def test_verb_in_a_deadlock_asks_to_run_it_again(client: Client, database: Database, sql: Sql) -> None:
    one, two = client.enqueue("x").id, client.enqueue("x").id
    lock = "select 1 from pgqueue.tasks where id = '{}' for update"
    caught: list[BaseException] = []

    def other() -> None:
        try:
            with database.begin() as connection:
                connection.exec_driver_sql(lock.format(two))
                connection.exec_driver_sql(lock.format(one))
        except RetryTransaction as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    try:
        with database.begin() as connection:
            connection.exec_driver_sql(lock.format(one))
            thread.start()
            eventually(lambda: somebody_waits(sql))
            connection.exec_driver_sql(lock.format(two))
    except RetryTransaction as error:
        caught.append(error)
    thread.join(30)
    assert len(caught) == 1
    assert "deadlock: roll back and run it again" in str(caught[0])


@pytest.mark.parametrize(
    "statement",
    [
        "select 1 from pgqueue.nothing_like_it",
        "select nothing_like_it from pgqueue.tasks",
        "select 1 from nowhere.tasks",
        "set local statement_timeout = '1ms'; select pg_sleep(5)",
        "set transaction read only; delete from pgqueue.tasks",
    ],
)
def test_error_of_the_server_becomes_one_line_that_ends_in_advice(database: Database, statement: str) -> None:
    with pytest.raises(PgqueueError, match=r"[:;] \w.+ \(postgresql://") as caught, database.begin() as connection:
        connection.exec_driver_sql(statement)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None


def test_url_of_another_database_keeps_the_rest() -> None:
    assert with_database("postgresql://u:p%25@h:1/a?sslmode=require", "b c") == (
        "postgresql://u:p%25@h:1/b%20c?sslmode=require"
    )
    assert "dbname=b" in with_database("host=h dbname=a", "b")
