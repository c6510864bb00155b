"""Every (status, event, guard) against the real table, through `Statements.move`."""

from __future__ import annotations

from datetime import timedelta
from itertools import product
from pathlib import Path
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy import Connection

from pgqueue.backoff import backoff_for
from pgqueue.lifecycle import (
    MOVES,
    TERMINAL,
    Event,
    Guard,
    Move,
    Status,
    can_transition,
    diagram,
)
from pgqueue.statements import backoff_sql, statements_for
from tests.support.rows import TASKS, exact, insert, read, row

ROOT = Path(__file__).resolve().parents[2]
SQL = statements_for("pgqueue")
TOKEN = UUID("11111111-1111-4111-8111-111111111111")

# What a row may be like when an event comes: which guards hold on it.
SITUATIONS: dict[str, frozenset[Guard]] = {
    "plain": frozenset({Guard.ALWAYS}),
    "cancel-requested": frozenset({Guard.ALWAYS, Guard.CANCEL_REQUESTED}),
    "exhausted": frozenset({Guard.ALWAYS, Guard.EXHAUSTED}),
    "both": frozenset({Guard.ALWAYS, Guard.CANCEL_REQUESTED, Guard.EXHAUSTED}),
}

CASES = [
    pytest.param(status, event, holds, id=f"{status}-{event}-{name}")
    for status, event, (name, holds) in product(Status, Event, SITUATIONS.items())
    # A pending row with a cancel request cannot exist: a CHECK sees to it.
    if not (status is Status.PENDING and Guard.CANCEL_REQUESTED in holds)
]


def a_row(connection: Connection, status: Status, holds: frozenset[Guard]) -> UUID:
    changes: dict[str, object] = {"cancel_requested": Guard.CANCEL_REQUESTED in holds}
    if status is not Status.PENDING:
        changes |= {"attempts": 2, "fence": 5}
    if Guard.EXHAUSTED in holds:
        changes |= {"attempts": 3, "fence": 5}
    return insert(connection, row(status, max_attempts=3, **changes))


def apply(connection: Connection, event: Event, task_id: UUID) -> int:
    values = {"token": TOKEN, "owner": "claimer", "lease": timedelta(seconds=60)} if event is Event.CLAIM else {}
    return connection.execute(SQL.move(event).where(TASKS.c.id == task_id), values).rowcount


def expected(status: Status, event: Event, holds: frozenset[Guard]) -> Status | None:
    """Where the table says that the row goes; None: nowhere."""
    rows = [m for m in MOVES if m.event is event and m.source is status and m.guard in holds]
    return rows[0].target if rows else None


@pytest.mark.parametrize(("status", "event", "holds"), CASES)
def test_move_by_each_event_lands_where_the_table_says_or_leaves_the_row_as_it_was(
    rolled_back: Connection, status: Status, event: Event, holds: frozenset[Guard]
) -> None:
    task_id = a_row(rolled_back, status, holds)
    before, was = exact(rolled_back, task_id), read(rolled_back, task_id)
    moved = apply(rolled_back, event, task_id)
    target = expected(status, event, holds)
    if target is None:
        assert moved == 0
        assert exact(rolled_back, task_id) == before
        return
    now = read(rolled_back, task_id)
    assert (moved, now.status) == (1, target.value)
    assert (now.finished_at is not None) == (target in TERMINAL)
    assert (now.lease_expires_at is not None) == (target is Status.RUNNING)
    assert now.attempts == {
        Event.CLAIM: was.attempts + 1,
        Event.RELEASE: was.attempts - 1,
        Event.SNOOZE: was.attempts - 1,
        Event.EVICT: was.attempts - 1,
        Event.REVIVE: 0,
    }.get(event, was.attempts)
    assert now.fence == was.fence + (event is Event.CLAIM)
    assert now.lease_token == {Event.CLAIM: TOKEN, Event.EXPIRE: None, Event.EVICT: None}.get(event, was.lease_token)
    assert now.updated_at > was.updated_at
    assert (now.id, now.queue, now.created_at, now.max_attempts) == (was.id, was.queue, was.created_at, 3)


def test_moves_are_those_of_the_design() -> None:
    # Written out once more, by hand, so that a slip in the table is not its own proof.
    pending, running, completed, dead, cancelled = Status
    requested, exhausted, always = Guard.CANCEL_REQUESTED, Guard.EXHAUSTED, Guard.ALWAYS
    given_up = [(requested, cancelled), (always, pending)]
    run_out = [(requested, cancelled), (exhausted, dead), (always, pending)]
    table: dict[Event, tuple[Status, list[tuple[Guard, Status]]]] = {
        Event.CLAIM: (pending, [(always, running)]),
        Event.COMPLETE: (running, [(always, completed)]),
        Event.FAIL: (running, run_out),
        Event.BURY: (running, [(requested, cancelled), (always, dead)]),
        Event.RELEASE: (running, given_up),
        Event.SNOOZE: (running, given_up),
        Event.EVICT: (running, given_up),
        Event.EXPIRE: (running, run_out),
        Event.CANCEL: (pending, [(always, cancelled)]),
        Event.REQUEST_CANCEL: (running, [(always, running)]),
        Event.ACKNOWLEDGE: (running, [(requested, cancelled)]),
        Event.CASCADE: (pending, [(always, cancelled)]),
        Event.REVIVE: (dead, [(always, pending)]),
        Event.DISMISS: (dead, [(always, cancelled)]),
    }
    assert list(table) == list(Event)
    assert tuple(Move(e, s, g, t) for e, (s, ways) in table.items() for g, t in ways) == MOVES


# Seed 002's matrix, row by row: from → what it may become.
LEADS = {
    "pending": {"running", "cancelled"},
    "running": {"pending", "completed", "dead", "cancelled"},
    "completed": set(),
    "dead": {"pending", "cancelled"},
    "cancelled": set(),
}


@pytest.mark.parametrize(("source", "target"), list(product(Status, Status)))
def test_can_transition_answers_the_seeds_matrix(source: Status, target: Status) -> None:
    assert can_transition(source, target) == (target.value in LEADS[source.value])


def test_claim_of_a_pending_row_writes_the_lease(rolled_back: Connection) -> None:
    task_id = insert(rolled_back, row(progress=40, message="left over"))
    apply(rolled_back, Event.CLAIM, task_id)
    now = read(rolled_back, task_id)
    assert (now.lease_owner, now.progress, now.message) == ("claimer", 0, None)
    assert now.started_at is not None
    assert timedelta(seconds=59) < now.lease_expires_at - now.started_at <= timedelta(seconds=60)


def test_complete_clears_the_error_and_says_100(rolled_back: Connection) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING, last_error="before", progress=3, message="on the way"))
    apply(rolled_back, Event.COMPLETE, task_id)
    now = read(rolled_back, task_id)
    assert (now.progress, now.last_error, now.message) == (100, None, None)


@pytest.mark.parametrize("event", [Event.RELEASE, Event.EVICT])
def test_giving_back_keeps_the_place_in_the_line(rolled_back: Connection, event: Event) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING))
    was = read(rolled_back, task_id)
    apply(rolled_back, event, task_id)
    assert read(rolled_back, task_id).not_before == was.not_before


def test_expire_for_the_first_time_keeps_the_place_in_the_line(rolled_back: Connection) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING, attempts=1, fence=1))
    was = read(rolled_back, task_id)
    apply(rolled_back, Event.EXPIRE, task_id)
    now = read(rolled_back, task_id)
    assert now.not_before == was.not_before
    assert "holder" in now.last_error
    assert "attempt 1 of 3" in now.last_error


@pytest.mark.parametrize("attempts", [2, 3, 4, 9])
def test_expire_for_the_nth_time_waits_the_backoff_of_the_one_before(rolled_back: Connection, attempts: int) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING, attempts=attempts, fence=attempts, max_attempts=20))
    apply(rolled_back, Event.EXPIRE, task_id)
    now = read(rolled_back, task_id)
    # Both were taken from the server's clock by the one statement.
    assert abs(now.not_before - now.updated_at - backoff_for(attempts - 1)) < timedelta(seconds=2)


def test_expire_of_a_cancelled_and_exhausted_task_cancels_it_and_moves_nothing_else(rolled_back: Connection) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING, attempts=3, fence=3, cancel_requested=True))
    was = read(rolled_back, task_id)
    apply(rolled_back, Event.EXPIRE, task_id)
    now = read(rolled_back, task_id)
    assert (now.status, now.not_before) == ("cancelled", was.not_before)


def test_revive_gives_a_fresh_budget_due_now(rolled_back: Connection) -> None:
    error = {"last_error": "boom", "progress": 70, "message": "nearly", "cancel_requested": True}
    task_id = insert(rolled_back, row(Status.DEAD, attempts=3, fence=7, **error))
    apply(rolled_back, Event.REVIVE, task_id)
    now = read(rolled_back, task_id)
    assert (now.attempts, now.fence, now.cancel_requested) == (0, 7, False)
    assert (now.last_error, now.progress, now.message, now.finished_at) == (None, 0, None, None)
    assert now.not_before == pytest.approx(now.updated_at, abs=timedelta(seconds=2))


def test_request_cancel_leaves_the_lease_alone(rolled_back: Connection) -> None:
    task_id = insert(rolled_back, row(Status.RUNNING))
    was = read(rolled_back, task_id)
    apply(rolled_back, Event.REQUEST_CANCEL, task_id)
    now = read(rolled_back, task_id)
    assert now.cancel_requested
    assert (now.lease_token, now.lease_owner, now.lease_expires_at) == (
        was.lease_token,
        was.lease_owner,
        was.lease_expires_at,
    )


@pytest.mark.parametrize("n", range(1, 21))
def test_backoff_in_sql_equals_the_one_in_python(rolled_back: Connection, n: int) -> None:
    assert rolled_back.execute(sa.select(backoff_sql(sa.literal(n)))).scalar_one() == backoff_for(n)


@pytest.mark.parametrize("n", [-1, 0, 1000, 2_000_000_000])
def test_backoff_in_sql_of_an_odd_count_does_not_overflow(rolled_back: Connection, n: int) -> None:
    assert rolled_back.execute(sa.select(backoff_sql(sa.literal(n)))).scalar_one() == backoff_for(n)


def test_docs_hold_the_diagram_of_the_table() -> None:
    page = ROOT / "docs" / "lifecycle.md"
    assert diagram() in page.read_text(), "docs/lifecycle.md is behind: paste lifecycle.diagram() into it"
