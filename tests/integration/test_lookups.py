"""find_by_dedupe_key, find_pending, has_active, replace_pending_payload: a task by what it is for."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from pgqueue import boot_update_dedupe_key, new_id, workflow_dedupe_key
from pgqueue.client import Client
from pgqueue.config import Limits
from pgqueue.database import Database
from pgqueue.errors import InputError, PayloadError, RetryTransaction
from pgqueue.lifecycle import Status
from pgqueue.store import Store
from tests.support import Sql, connect, eventually, rows, somebody_waits
from tests.support.reads import rows_read

ID = UUID("01890000-0000-7000-8000-000000000001")


def insert(database: Database, status: Status, **changes: Any) -> UUID:
    """A row of that status as raw SQL writes it; its id."""
    with database.begin() as connection:
        return rows.insert(connection, rows.row(status, **changes))


# -- keys


def test_keys_of_workflows_and_boot_updates_are_the_seeds() -> None:
    assert workflow_dedupe_key("64a7", 3) == "workflow:64a7:3"
    assert workflow_dedupe_key(ID, 0) == "workflow:01890000-0000-7000-8000-000000000001:0"
    assert boot_update_dedupe_key("s-1") == "boot-update:s-1"
    assert boot_update_dedupe_key(ID) == f"boot-update:{ID}"


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: workflow_dedupe_key("", 1), "workflow"),
        (lambda: workflow_dedupe_key("a\n", 1), "workflow"),
        (lambda: workflow_dedupe_key("a", -1), "index"),
        (lambda: workflow_dedupe_key("a", True), "index"),
        (lambda: workflow_dedupe_key("a", "1"), "index"),  # type: ignore[arg-type]
        (lambda: workflow_dedupe_key("x" * 505, 1), "dedupe_key"),
        (lambda: boot_update_dedupe_key(""), "session"),
        (lambda: boot_update_dedupe_key(7), "session"),  # type: ignore[arg-type]
        (lambda: boot_update_dedupe_key("x" * 505), "dedupe_key"),
    ],
)
def test_key_that_could_not_be_stored_is_refused(make: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.field == field


def test_workflow_step_is_enqueued_once_while_it_is_active(face: Client) -> None:
    key = workflow_dedupe_key("w1", 0)
    first = face.enqueue("install", agent="host-7", dedupe_key=key)
    assert face.enqueue("install", agent="host-7", dedupe_key=key).id == first.id
    found = face.find_by_dedupe_key(key, agent="host-7")
    assert found is not None
    assert found.id == first.id


# -- by key


@pytest.mark.parametrize("status", Status)
def test_key_is_found_in_every_status(face: Client, database: Database, status: Status) -> None:
    made = insert(database, status, agent="a", dedupe_key="k")
    found = face.find_by_dedupe_key("k", agent="a")
    assert found is not None
    assert (found.id, found.status) == (made, status)


def test_of_several_with_a_key_the_newest_is_found(face: Client, database: Database) -> None:
    older = insert(database, Status.COMPLETED, dedupe_key="k")
    newer = insert(database, Status.DEAD, dedupe_key="k", created_at=datetime(2019, 1, 1, tzinfo=UTC))
    assert older < newer
    found = face.find_by_dedupe_key("k")
    assert found is not None
    assert found.id == newer


def test_key_belongs_to_its_agent(face: Client) -> None:
    of_nobody, of_a = face.enqueue("x", dedupe_key="k"), face.enqueue("x", agent="a", dedupe_key="k")
    assert getattr(face.find_by_dedupe_key("k"), "id", None) == of_nobody.id
    assert getattr(face.find_by_dedupe_key("k", agent="a"), "id", None) == of_a.id
    assert face.find_by_dedupe_key("k", agent="b") is None
    assert face.find_by_dedupe_key("other") is None


def test_empty_key_is_nobodys_and_asks_nobody(face: Client) -> None:
    face.enqueue("x", dedupe_key="")
    face.get(face.enqueue("x").id)  # the handshake is behind us
    sent: list[str] = []
    for engine in (face.database.engine, face.database.async_engine.sync_engine):
        sa.event.listen(engine, "before_cursor_execute", lambda *a: sent.append(a[2]))
    assert face.find_by_dedupe_key("") is None
    assert sent == []
    assert face.find_by_dedupe_key("k") is None
    assert len(sent) == 1


def test_key_of_a_pruned_task_is_not_found_and_of_a_forever_one_is(face: Client, database: Database) -> None:
    insert(database, Status.COMPLETED, dedupe_key="gone")
    kept = insert(database, Status.COMPLETED, dedupe_key="kept", dedupe_forever=True)
    face.prune(retention=0)
    assert face.find_by_dedupe_key("gone") is None
    assert getattr(face.find_by_dedupe_key("kept"), "id", None) == kept


# -- what is pending


def test_pending_task_that_is_first_in_the_line_is_found(face: Client, database: Database) -> None:
    soon, late = datetime(2021, 1, 1, tzinfo=UTC), datetime(2022, 1, 1, tzinfo=UTC)
    ids = [new_id() for _ in range(5)]
    lines: list[dict[str, Any]] = [
        {"not_before": soon},
        {"not_before": late, "priority": 3, "queue": "b"},
        {"not_before": soon, "priority": 3, "queue": "c"},
        {"not_before": soon, "priority": 3, "queue": "b"},
        {"not_before": late, "priority": 9, "waiting_on": 1, "queue": "a"},
    ]
    for task_id, changes in zip(ids, lines, strict=True):
        insert(database, Status.PENDING, id=task_id, agent="a", action="sync", **changes)
    insert(database, Status.PENDING, agent="a", action="other", priority=9, not_before=soon)
    insert(database, Status.PENDING, agent="b", action="sync", priority=9, not_before=soon)
    found: list[UUID] = []
    while (task := face.find_pending("sync", agent="a")) is not None:
        found.append(task.id)
        face.cancel(task.id)
    assert found == [ids[4], ids[2], ids[3], ids[1], ids[0]]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"waiting_on": 1}, id="waits for a parent"),
        pytest.param({"requires": ["stopped"]}, id="needs a condition"),
        pytest.param({"not_before": datetime(2500, 1, 1, tzinfo=UTC)}, id="not due"),
    ],
)
def test_pending_task_that_cannot_run_yet_counts(face: Client, database: Database, changes: dict[str, Any]) -> None:
    made = insert(database, Status.PENDING, agent="a", action="sync", **changes)
    task = face.find_pending("sync", agent="a")
    assert task is not None
    assert task.id == made
    assert face.has_active("sync", agent="a")


@pytest.mark.parametrize("status", Status)
def test_what_counts_as_pending_and_as_active(face: Client, database: Database, status: Status) -> None:
    insert(database, status, agent="a", action="sync")
    assert (face.find_pending("sync", agent="a") is not None) == (status is Status.PENDING)
    assert face.has_active("sync", agent="a") == (status in (Status.PENDING, Status.RUNNING))
    assert not face.has_active("sync", agent="b")
    assert not face.has_active("other", agent="a")
    assert face.find_pending("other", agent="a") is None


def test_task_of_no_agent_is_no_agents(face: Client) -> None:
    face.enqueue("sync")
    assert not face.has_active("sync", agent="a")
    with pytest.raises(InputError, match="agent"):
        face.has_active("sync", agent=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("verb", ["find_pending", "has_active"])
@pytest.mark.parametrize(("action", "agent"), [("", "a"), ("x", ""), ("x\0", "a"), (7, "a")])
def test_lookup_of_what_cannot_be_a_name_is_refused(untouched: Client, verb: str, action: Any, agent: Any) -> None:
    with pytest.raises(InputError):
        getattr(untouched, verb)(action, agent=agent)


@pytest.mark.parametrize("key", ["\n", "x" * 513, None, 7])
def test_lookup_of_what_cannot_be_a_key_is_refused(untouched: Client, key: Any) -> None:
    with pytest.raises(InputError) as caught:
        untouched.find_by_dedupe_key(key)
    assert caught.value.field == "key"


# -- another payload


def test_payload_of_a_pending_task_is_replaced(face: Client) -> None:
    made = face.enqueue("sync", {"mods": [1]}, agent="a")
    assert face.replace_pending_payload("sync", {"mods": [1, 2]}, agent="a", by="ada") == made.id
    task = face.get(made.id)
    assert (task.payload, task.status, task.attempts) == ({"mods": [1, 2]}, Status.PENDING, 0)
    assert task.updated_at > task.created_at
    claimed = face.claim("a")
    assert claimed is not None
    assert claimed.payload == {"mods": [1, 2]}


def test_replacement_is_journalled_without_the_payload(face: Client, sql: Sql) -> None:
    made = face.enqueue("sync", {"secret": "old"}, agent="a")
    face.replace_pending_payload("sync", {"secret": "new"}, agent="a", by="ada")
    (event,) = face.events(made.id)
    assert (event.event, event.by, event.from_status, event.to_status) == (
        "replace",
        "ada",
        Status.PENDING,
        Status.PENDING,
    )
    [(text,)] = sql("select e::text from pgqueue.task_events e")
    assert "secret" not in text


def test_no_payload_takes_the_payload_away(face: Client) -> None:
    made = face.enqueue("sync", 1, agent="a")
    face.replace_pending_payload("sync", None, agent="a")
    assert face.get(made.id).payload_text is None


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.PENDING])
def test_payload_of_what_is_not_pending_is_never_replaced(face: Client, database: Database, status: Status) -> None:
    made = insert(database, status, agent="a", action="sync", payload={"n": 1})
    assert face.replace_pending_payload("sync", {"n": 2}, agent="a") is None
    assert face.get(made).payload == {"n": 1}
    assert face.events(made) == []


def test_replacement_goes_to_the_first_in_the_line_alone(face: Client) -> None:
    late = face.enqueue("sync", 1, agent="a")
    first = face.enqueue("sync", 1, agent="a", priority=5)
    assert face.replace_pending_payload("sync", 2, agent="a") == first.id
    assert face.get(late.id).payload == 1


@pytest.mark.parametrize("payload", [float("nan"), {1: 2}, "\0", object(), "x" * Limits.PAYLOAD_BYTES])
def test_replacement_has_the_limits_of_an_enqueue(face: Client, payload: Any) -> None:
    made = face.enqueue("sync", 1, agent="a")
    with pytest.raises(PayloadError):
        face.replace_pending_payload("sync", payload, agent="a")
    assert face.get(made.id).payload == 1
    assert face.events(made.id) == []


class Replacing:
    """A replacement in a thread of its own."""

    def __init__(self, database: Database) -> None:
        self.answer: Any = ()
        self._thread = threading.Thread(target=self._run, args=[database], daemon=True)
        self._thread.start()

    def _run(self, database: Database) -> None:
        try:
            self.answer = Client(database).replace_pending_payload("sync", {"n": 2}, agent="a")
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.answer = error

    def join(self) -> Any:
        self._thread.join(30)
        assert not self._thread.is_alive()
        return self.answer


@pytest.mark.parametrize("another", [False, True])
def test_task_that_is_claimed_at_that_moment_keeps_its_payload(
    client: Client, database: Database, database_url: str, sql: Sql, another: bool
) -> None:
    """Another one is looked for before the answer is None."""
    first = client.enqueue("sync", {"n": 1}, agent="a")
    second = client.enqueue("sync", {"n": 1}, agent="a").id if another else None
    with connect(database_url) as claiming:
        claiming.execute("begin")
        claimed = client.on(claiming).claim("a")
        assert claimed is not None
        assert claimed.id == first.id
        replacing = Replacing(database)
        eventually(lambda: somebody_waits(sql))
        claiming.execute("commit")
    assert replacing.join() == second
    assert client.get(first.id).payload == {"n": 1}
    if second is not None:
        assert client.get(second).payload == {"n": 2}


def test_task_whose_claim_was_rolled_back_gets_its_payload(
    client: Client, database: Database, database_url: str, sql: Sql
) -> None:
    made = client.enqueue("sync", {"n": 1}, agent="a")
    with connect(database_url) as claiming:
        claiming.execute("begin")
        assert client.on(claiming).claim("a")
        replacing = Replacing(database)
        eventually(lambda: somebody_waits(sql))
        claiming.execute("rollback")
    assert replacing.join() == made.id
    assert client.get(made.id).payload == {"n": 2}


def test_replacement_that_is_never_quick_enough_says_so(
    client: Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.enqueue("sync", 1, agent="a")
    never = sa.select(sa.literal(1)).where(sa.false())
    monkeypatch.setitem(vars(client.store.sql), "replace_payload", never)
    with database.begin() as connection, pytest.raises(RetryTransaction, match="call it again"):
        Store("pgqueue").replace_pending_payload(connection, "sync", 2, agent="a")


def test_replacement_in_a_transaction_above_read_committed_that_cannot_see_the_claim_is_a_lost_race(
    client: Client, database: Database
) -> None:
    client.enqueue("sync", {"n": 1}, agent="a")
    engine = database.engine.execution_options(isolation_level="REPEATABLE READ")
    with Session(engine) as session:
        session.execute(sa.text("select 1"))
        assert client.claim("a")
        with pytest.raises(RetryTransaction):
            client.on(session).replace_pending_payload("sync", {"n": 2}, agent="a")


def test_replacement_in_a_callers_transaction_counts_when_it_commits(client: Client, database: Database) -> None:
    made = client.enqueue("sync", 1, agent="a")
    with Session(database.engine) as session:
        assert client.on(session).replace_pending_payload("sync", 2, agent="a") == made.id
        session.rollback()
    assert client.get(made.id).payload == 1


# -- depth

HISTORY = """
insert into pgqueue.tasks (id, queue, action, agent, status, dedupe_key, not_before, finished_at)
  select gen_random_uuid(), 'q' || n % 3, 'sync', 'a', 'completed', 'k', now(), now() from generate_series(1, 20000) n;
insert into pgqueue.tasks (id, queue, action, agent, waiting_on)
  select gen_random_uuid(), 'q' || n % 3, 'sync', 'b' || n, n % 2 from generate_series(1, 20000) n
"""


def test_look_ups_never_walk_over_an_agents_past_nor_over_other_agents(client: Client, database: Database) -> None:
    """On a connection whose plans were made when the table was empty, and never again."""
    store = Store("pgqueue")
    with database.engine.connect() as connection:
        connection.exec_driver_sql("alter table pgqueue.tasks set (autovacuum_enabled = off)")
        connection.exec_driver_sql("set plan_cache_mode = force_generic_plan")
        connection.commit()
        for _ in range(10):
            every_answer(store, connection)
        with database.begin() as loading:
            loading.exec_driver_sql(HISTORY.replace("%", "%%"))
        every_answer_reads_little(store, connection)
        connection.exec_driver_sql("analyze pgqueue.tasks")
        connection.exec_driver_sql("set plan_cache_mode = force_custom_plan")
        connection.commit()
        every_answer_reads_little(store, connection)


def every_answer_reads_little(store: Store, connection: sa.Connection) -> None:
    before = rows_read(connection)
    assert answers(store, connection) == (False, None, None, Status.COMPLETED)
    assert rows_read(connection) - before < 100
    connection.commit()


def every_answer(store: Store, connection: sa.Connection) -> None:
    answers(store, connection)
    connection.commit()


def answers(store: Store, connection: sa.Connection) -> tuple[Any, ...]:
    found = store.find_by_dedupe_key(connection, "k", agent="a")
    return (
        store.has_active(connection, "sync", agent="a"),
        store.find_pending(connection, "sync", agent="a"),
        store.replace_pending_payload(connection, "sync", 1, agent="a"),
        None if found is None else found.status,
    )
