"""The roles of docs/operations.md can do their jobs, and no more. And its other SQL runs."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from pgqueue import migrate
from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import DatabaseError
from pgqueue.ids import new_id
from pgqueue.options import NewTask

from .pages import ROOT, blocks

PAGE = ROOT / "docs" / "operations.md"
SQL = [block.text for block in blocks(PAGE, "sql")]
[CREATE] = [text for text in SQL if "create role" in text]
[GRANT] = [text for text in SQL if "grant usage" in text]
ROLES = ("queue_migrator", "queue_worker", "queue_producer")

As = Callable[[str], Database]


@pytest.fixture
def as_role(empty_database_url: str) -> Iterator[As]:
    """A database set up as the page says. `as_role(name)` is it as that role sees it."""
    # Roles are the whole server's, and tests run beside each other.
    prefix = f"docs_{uuid.uuid4().hex[:8]}_"
    opened: list[Database] = []

    def renamed(text: str) -> str:
        for role in ROLES:
            text = text.replace(role, prefix + role)
        return text

    def as_role(role: str) -> Database:
        url = make_conninfo(empty_database_url, options=f"-c role={prefix}{role}")
        opened.append(Database(url, schema="pgqueue", pool_size=2))
        return opened[-1]

    with psycopg.connect(empty_database_url, autocommit=True) as admin:
        try:
            admin.execute(renamed(CREATE).encode())
            migrate.upgrade(as_role("queue_migrator"))
            with as_role("queue_migrator").raw() as connection:
                connection.execute(renamed(GRANT).encode())
            yield as_role
        finally:
            for database in opened:
                database.dispose()
            for role in ROLES:
                name = sql.Identifier(prefix + role)
                admin.execute(sql.SQL("drop owned by {} cascade").format(name))
                admin.execute(sql.SQL("drop role {}").format(name))


def refused(database: Database, statement: str) -> bool:
    with database.raw() as connection:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return True
    return False


def test_migrator_owns_what_it_made(as_role: As) -> None:
    migrator = as_role("queue_migrator")

    migrate.check(migrator)
    assert migrate.downgrade(migrator, "base")[1] is None
    assert refused(migrator, "create schema another")


def test_producer_enqueues_and_looks_and_no_more(as_role: As) -> None:
    producer = as_role("queue_producer")
    client = Client(producer)

    made = client.enqueue("ping", {"n": 1}, dedupe_key="once", agent="host-7")
    again = client.enqueue("ping", {"n": 2}, dedupe_key="once", agent="host-7")
    assert (again.id, again.created) == (made.id, False)
    assert client.get(made.id).payload == {"n": 1}
    with psycopg.connect(producer.url) as connection:
        client.on(connection).enqueue("ping")
    client.enqueue("ping", depends_on=[made.id])

    for verb in (
        lambda: client.cancel(made.id),
        lambda: client.set_gate(made.id),
        client.sweep,
        lambda: client.claim("host-7"),
        lambda: client.claim_batch("default"),
        client.reap,
        lambda: client.prune(retention=0),
    ):
        with pytest.raises(DatabaseError, match="may not"):
            verb()
    for statement in (
        "delete from pgqueue.tasks",
        "update pgqueue.tasks set priority = 9",
        "truncate pgqueue.tasks",
        "insert into pgqueue.task_events (task_id, event, to_status) values (gen_random_uuid(), 'fail', 'dead')",
        "update pgqueue.meta set oldest_program = '9'",
        "create table pgqueue.mine (id int)",
    ):
        assert refused(producer, statement), statement


def test_producer_enqueues_children_and_workers_see_to_the_rest(as_role: As) -> None:
    producer, worker = Client(as_role("queue_producer")), Client(as_role("queue_worker"))
    done, dead, alive = (producer.enqueue("parent", agent=name).id for name in ("done", "dead", "alive"))
    for name in ("done", "dead"):
        held = worker.claim(name)
        assert held is not None
        worker.complete(held) if name == "done" else worker.bury(held, "no use")

    free = producer.enqueue("child", depends_on=[done]).id
    doomed = producer.enqueue("child", depends_on=[done, dead]).id
    waits = producer.enqueue("child", depends_on=[done, alive]).id
    absent = producer.enqueue("child", depends_on=[new_id()]).id
    many = producer.enqueue_many([NewTask("child", None, {"depends_on": [above]}) for above in (done, alive)])
    with psycopg.connect(producer.database.url) as connection:
        late = producer.on(connection).enqueue("child", depends_on=[alive]).id
        held = worker.claim("alive")
        assert held is not None
        worker.complete(held)
    worker.sweep()

    assert worker.set_gate(absent)
    assert worker.get(doomed).status == "cancelled"
    for child in (free, waits, absent, late, *(made.id for made in many)):
        assert (worker.get(child).status, worker.get(child).waiting_on) == ("pending", 0)
    assert [parent.status for parent in producer.parents(doomed)] == ["completed", "dead"]
    for statement in ("delete from pgqueue.task_dependencies", "update pgqueue.task_dependencies set look_at = now()"):
        assert refused(producer.database, statement), statement


def test_worker_does_all_that_workers_and_people_do_and_no_more(as_role: As) -> None:
    worker = as_role("queue_worker")
    client = Client(worker)

    done = client.enqueue("ping").id
    client.complete(client.claim_batch("default")[0], {"ok": True})
    client.enqueue("ping", agent="host-7", max_attempts=1)
    task = client.claim("host-7", lease=60)
    assert task is not None
    client.renew(task)
    client.report_progress(task, 50, "half")
    client.fail(task, "no answer")
    client.retry(task.id, by="ada")
    held = client.claim("host-7", lease=60)
    assert held is not None
    client.evict(held.id, by="ada")
    client.cancel(held.id, by="ada")
    client.reschedule(client.enqueue("ping").id, delay=60)
    client.reap()
    child = client.enqueue("ping", depends_on=[done]).id
    client.set_gate(child, depends_on=[task.id])
    client.sweep()
    assert [event.event for event in client.events(task.id)] == ["fail", "revive", "evict", "cancel"]
    assert client.get(done).status == "completed"
    with worker.raw() as connection:
        connection.execute("listen pgqueue_tasks")
    assert client.prune(retention=0, dead=0).tasks > 0

    for statement in (
        "truncate pgqueue.tasks",
        "update pgqueue.task_events set detail = null",
        "update pgqueue.meta set oldest_program = '9'",
        "alter table pgqueue.tasks disable trigger user",
        "drop trigger final_is_final on pgqueue.tasks",
        "create table pgqueue.mine (id int)",
    ):
        assert refused(worker, statement), statement


@pytest.mark.parametrize("text", [text for text in SQL if text not in (CREATE, GRANT)], ids=lambda t: t.split()[0])
def test_other_sql_of_the_page_runs(text: str, database_url: str) -> None:
    client = Client(database_url)
    client.enqueue("ping")
    client.close()

    with psycopg.connect(database_url, autocommit=True) as connection:
        connection.execute(text.encode())
