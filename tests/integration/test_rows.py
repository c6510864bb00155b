"""What the database itself refuses, whoever writes: impossible rows, second holders, second keys, left endings."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa
from psycopg.errors import CheckViolation, UniqueViolation
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from pgqueue.lifecycle import FINAL, Status
from pgqueue.schema import CHECKS, schema_for
from tests.support.rows import LONG_AGO, TASKS, insert, read, row

LEASE = {"lease_token": uuid4(), "lease_owner": "me", "lease_expires_at": LONG_AGO, "attempts": 1, "fence": 1}
TOO_LONG = "x" * 513
UNREADABLE = datetime(1969, 12, 31, tzinfo=UTC)


def pending(**changes: Any) -> dict[str, Any]:
    return row(Status.PENDING, **changes)


def running(**changes: Any) -> dict[str, Any]:
    return row(Status.RUNNING, **changes)


IMPOSSIBLE: list[tuple[str, str, dict[str, Any]]] = [
    # (the CHECK that must object, what the row says, the row)
    ("status_known", "a status nobody knows", pending(status="failed", finished_at=None)),
    ("status_known", "a status in capitals", pending(status="PENDING")),
    ("status_known", "an empty status", pending(status="")),
    ("leased_while_running", "running without a lease", running(lease_expires_at=None)),
    ("leased_while_running", "running without an owner", running(lease_owner=None)),
    ("leased_while_running", "running without a token", running(lease_token=None)),
    ("leased_while_running", "pending with a lease", pending(**LEASE)),
    ("leased_while_running", "pending with an owner", pending(lease_owner="me")),
    ("leased_while_running", "completed with a lease", row(Status.COMPLETED, lease_expires_at=LONG_AGO)),
    ("leased_while_running", "dead with an owner", row(Status.DEAD, lease_owner="me")),
    ("leased_while_running", "cancelled with a lease", row(Status.CANCELLED, lease_expires_at=LONG_AGO)),
    ("finished_when_terminal", "completed without an end", row(Status.COMPLETED, finished_at=None)),
    ("finished_when_terminal", "dead without an end", row(Status.DEAD, finished_at=None)),
    ("finished_when_terminal", "cancelled without an end", row(Status.CANCELLED, finished_at=None)),
    ("finished_when_terminal", "pending with an end", pending(finished_at=LONG_AGO)),
    ("finished_when_terminal", "running with an end", running(finished_at=LONG_AGO)),
    ("no_cancel_request_on_pending", "pending and asked to stop", pending(cancel_requested=True)),
    ("waiting_on_counts", "fewer than no parents", pending(waiting_on=-1)),
    ("waiting_on_counts", "running while it waits", running(waiting_on=1)),
    ("waiting_on_counts", "completed while it waits", row(Status.COMPLETED, waiting_on=1)),
    ("waiting_on_counts", "dead while it waits", row(Status.DEAD, waiting_on=1)),
    ("attempts_within_fence", "attempts below nothing", pending(attempts=-1)),
    ("attempts_within_fence", "more attempts than claims", pending(attempts=2, fence=1)),
    ("attempts_within_fence", "a fence below nothing", pending(attempts=0, fence=-1)),
    ("max_attempts_range", "no attempt at all", pending(max_attempts=0)),
    ("max_attempts_range", "too many attempts", pending(max_attempts=1001)),
    ("priority_range", "a priority too high", pending(priority=10)),
    ("priority_range", "a priority too low", pending(priority=-10)),
    ("progress_range", "more than done", pending(progress=101)),
    ("progress_range", "less than nothing done", pending(progress=-1)),
    ("on_parent_failure_known", "a policy nobody knows", pending(on_parent_failure="shrug")),
    ("forever_needs_a_key", "forever without a key", pending(dedupe_forever=True)),
    ("timeout_positive", "no time to run", pending(timeout=timedelta(0))),
    ("timeout_positive", "less than no time to run", pending(timeout=timedelta(seconds=-1))),
    ("timeout_positive", "longer to run than Python can say", pending(timeout="5000000 years")),
    ("timeout_positive", "more days to run than anybody may ask for", pending(timeout="4001 days")),
    ("names_printable", "a line break in a queue", pending(queue="a\nb")),
    ("names_printable", "a tab in an action", pending(action="a\tb")),
    ("names_printable", "an escape in an agent", pending(agent="a\x1bb")),
    ("names_printable", "a delete in an account", pending(account="a\x7fb")),
    ("names_printable", "a line break in a key", pending(dedupe_key="a\nb")),
    ("names_printable", "a line break in an owner", running(lease_owner="a\nb")),
    ("names_length", "an empty queue", pending(queue="")),
    ("names_length", "an empty action", pending(action="")),
    ("names_length", "an empty agent", pending(agent="")),
    ("names_length", "an empty account", pending(account="")),
    ("names_length", "an empty key", pending(dedupe_key="")),
    ("names_length", "an empty owner", running(lease_owner="")),
    ("names_length", "a queue too long", pending(queue=TOO_LONG)),
    ("names_length", "an action too long", pending(action=TOO_LONG)),
    ("names_length", "an agent too long", pending(agent=TOO_LONG)),
    ("names_length", "an account too long in bytes", pending(account="é" * 257)),
    ("names_length", "a key too long", pending(dedupe_key=TOO_LONG)),
    ("names_length", "an owner too long", running(lease_owner=TOO_LONG)),
    ("instants_readable", "due before there were computers", pending(not_before=UNREADABLE)),
    ("instants_readable", "made before there were computers", pending(created_at=UNREADABLE)),
    ("instants_readable", "written before there were computers", pending(updated_at=UNREADABLE)),
    ("instants_readable", "begun before there were computers", pending(started_at=UNREADABLE)),
    ("instants_readable", "ended before there were computers", row(Status.DEAD, finished_at=UNREADABLE)),
    ("instants_readable", "leased before there were computers", running(lease_expires_at=UNREADABLE)),
]


def refusal(connection: Connection, statement: sa.Executable) -> Any:
    """What the server says to the statement; the transaction survives."""
    with pytest.raises(DBAPIError) as caught, connection.begin_nested():
        connection.execute(statement)
    return caught.value.orig


@pytest.mark.parametrize(
    ("check", "values"), [pytest.param(c, v, id=what.replace(" ", "-")) for c, what, v in IMPOSSIBLE]
)
def test_insert_of_an_impossible_row_is_refused_by_its_check(
    rolled_back: Connection, check: str, values: dict[str, Any]
) -> None:
    error = refusal(rolled_back, sa.insert(TASKS).values(values))
    assert isinstance(error, CheckViolation)
    assert error.diag.constraint_name == f"tasks_{check}"


@pytest.mark.parametrize("status", Status)
def test_insert_of_a_lawful_row_is_accepted(rolled_back: Connection, status: Status) -> None:
    # Else the refusals above would prove nothing.
    assert read(rolled_back, insert(rolled_back, row(status))).status == status


def test_every_check_has_a_row_that_it_alone_refuses() -> None:
    assert {check for check, _, _ in IMPOSSIBLE} == set(CHECKS)


@pytest.mark.parametrize("instant", ["infinity", "-infinity", "9999-06-01", "290000-01-01"])
@pytest.mark.parametrize("column", ["not_before", "created_at", "updated_at", "started_at"])
def test_insert_of_an_instant_that_python_cannot_read_is_refused(
    rolled_back: Connection, column: str, instant: str
) -> None:
    values = {"id": uuid4(), "queue": "q", "action": "a", column: sa.literal_column(f"'{instant}'::timestamptz")}
    error = refusal(rolled_back, sa.insert(TASKS).values(values))
    assert error.diag.constraint_name == "tasks_instants_readable"


@pytest.mark.parametrize(
    ("table", "columns", "constraint"),
    [
        ("task_dependencies", "child_id, parent_id) values (%(id)s, %(id)s", "task_dependencies_no_self"),
        ("pauses", "kind, name) values ('action', 'x'", "pauses_kind_known"),
        ("meta", "single_row, oldest_program) values (false, '1'", "meta_one_row"),
        ("meta", "single_row, oldest_program, journal) values (true, '1', 'some'", "meta_journal_known"),
    ],
)
def test_insert_of_an_impossible_row_elsewhere_is_refused(
    rolled_back: Connection, table: str, columns: str, constraint: str
) -> None:
    statement = f"insert into pgqueue.{table} ({columns})"
    with pytest.raises(DBAPIError) as caught:
        rolled_back.exec_driver_sql(statement, {"id": uuid4()} if "%(id)s" in statement else None)
    assert getattr(caught.value.orig, "diag").constraint_name == constraint  # noqa: B009 - the type does not say


def test_insert_of_a_second_row_about_the_schema_is_refused(rolled_back: Connection) -> None:
    with pytest.raises(DBAPIError) as caught:
        rolled_back.exec_driver_sql("insert into pgqueue.meta (oldest_program) values ('9')")
    assert isinstance(caught.value.orig, UniqueViolation)


@pytest.mark.parametrize("target", Status)
@pytest.mark.parametrize("source", sorted(FINAL))
def test_update_of_a_final_status_by_hand_is_refused(rolled_back: Connection, source: Status, target: Status) -> None:
    task_id = insert(rolled_back, row(source))
    lawful = {k: v for k, v in row(target).items() if k not in ("id", "attempts", "fence")}
    everything = {"lease_owner": None, "lease_expires_at": None, "finished_at": None} | lawful
    statement = sa.update(TASKS).where(TASKS.c.id == task_id).values(everything)
    if source is target:
        rolled_back.execute(statement)
        return
    error = refusal(rolled_back, statement)
    assert isinstance(error, CheckViolation)
    assert f"is {source}, which is final: it cannot become {target}" in str(error)
    assert "Enqueue a new task" in (error.diag.message_hint or "")


@pytest.mark.parametrize("target", [Status.PENDING, Status.CANCELLED])
def test_update_of_a_dead_task_by_hand_is_let_through(rolled_back: Connection, target: Status) -> None:
    task_id = insert(rolled_back, row(Status.DEAD))
    lawful = {"status": target.value, "finished_at": None if target is Status.PENDING else LONG_AGO}
    rolled_back.execute(sa.update(TASKS).where(TASKS.c.id == task_id).values(lawful))
    assert read(rolled_back, task_id).status == target


@pytest.mark.parametrize(
    ("index", "first", "second"),
    [
        pytest.param("uniq_running_per_agent", running(agent="a"), running(agent="a"), id="two-running-of-one-agent"),
        pytest.param(
            "uniq_running_per_agent",
            running(agent="a", queue="one"),
            running(agent="a", queue="two"),
            id="two-running-of-one-agent-in-two-queues",
        ),
        pytest.param("uniq_active_dedupe", pending(dedupe_key="k"), pending(dedupe_key="k"), id="a-key-twice"),
        pytest.param("uniq_active_dedupe", pending(dedupe_key="k"), running(dedupe_key="k"), id="a-key-that-runs"),
        pytest.param(
            "uniq_active_dedupe",
            pending(dedupe_key="k", agent="a"),
            pending(dedupe_key="k", agent="a", queue="other"),
            id="a-key-of-an-agent-in-two-queues",
        ),
        pytest.param(
            "uniq_forever_dedupe",
            row(Status.COMPLETED, dedupe_key="k", dedupe_forever=True),
            pending(dedupe_key="k", dedupe_forever=True),
            id="a-key-used-once-for-ever",
        ),
    ],
)
def test_insert_of_a_second_holder_is_refused_by_its_index(
    rolled_back: Connection, index: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    insert(rolled_back, first)
    error = refusal(rolled_back, sa.insert(TASKS).values(second))
    assert isinstance(error, UniqueViolation)
    assert error.diag.constraint_name == index


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param(running(), running(), id="two-running-of-no-agent"),
        pytest.param(running(agent="a"), running(agent="b"), id="two-agents"),
        pytest.param(running(agent="a"), pending(agent="a"), id="one-running-one-waiting"),
        pytest.param(pending(dedupe_key="k"), pending(dedupe_key="k", agent="a"), id="a-key-of-two-agents"),
        pytest.param(row(Status.DEAD, dedupe_key="k"), pending(dedupe_key="k"), id="a-key-that-is-dead"),
        pytest.param(row(Status.COMPLETED, dedupe_key="k"), pending(dedupe_key="k"), id="a-key-that-is-done"),
        pytest.param(pending(), pending(), id="no-keys"),
    ],
)
def test_insert_beside_another_is_accepted_where_nothing_clashes(
    rolled_back: Connection, first: dict[str, Any], second: dict[str, Any]
) -> None:
    insert(rolled_back, first)
    assert read(rolled_back, insert(rolled_back, second)).id == second["id"]


@pytest.fixture
def stranger(database_url: str, sql: Any) -> Iterator[psycopg.Connection[Any]]:
    """A role that may write tasks and nothing else, with a search_path of its own."""
    name = f"stranger_{uuid4().hex[:12]}"
    sql(f"create role {name}")
    sql(f"grant usage on schema pgqueue to {name}")
    sql(f"grant select, insert, update on pgqueue.tasks to {name}")
    connection = psycopg.connect(database_url, autocommit=True)
    connection.execute(f"set role {name}")
    yield connection
    connection.close()
    sql(f"drop owned by {name}")
    sql(f"drop role {name}")


def test_guard_trigger_holds_for_a_role_without_other_rights(stranger: psycopg.Connection[Any]) -> None:
    stranger.execute(
        "insert into pgqueue.tasks (id, queue, action, status, finished_at)"
        " values (gen_random_uuid(), 'q', 'a', 'completed', now())"
    )
    with pytest.raises(CheckViolation, match="which is final"):
        stranger.execute("update pgqueue.tasks set status = 'pending', finished_at = null")


def test_schema_names_every_check_of_the_table() -> None:
    named = {c.name for c in schema_for("pgqueue").tasks.constraints if isinstance(c, sa.CheckConstraint)}
    assert named == {f"tasks_{check}" for check in CHECKS}
