"""The sentence that says why a task is where it is: decided by the row, the server's clock and the agent's holder."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue.lifecycle import Status
from pgqueue.task import Task

from .running import room

NOW = datetime(2026, 3, 1, 14, 0, 0, tzinfo=UTC)
PLAIN: dict[str, Any] = {field.name: None for field in dataclasses.fields(Task)} | {
    "id": UUID("0195f2b4-7c31-7b4a-9f00-0123456789ab"),
    "queue": "mail",
    "action": "send",
    "status": Status.PENDING,
    "priority": 0,
    "attempts": 0,
    "max_attempts": 3,
    "fence": 0,
    "progress": 0,
    "not_before": NOW - timedelta(seconds=12),
    "created_at": NOW - timedelta(minutes=1),
    "updated_at": NOW - timedelta(minutes=1),
    "cancel_requested": False,
    "waiting_on": 0,
    "requires": (),
    "on_parent_failure": "cancel",
    "dedupe_forever": False,
}


def task(**columns: Any) -> Task:
    return Task(**(PLAIN | columns))


def running(**columns: Any) -> Task:
    return task(
        **{
            "status": Status.RUNNING,
            "attempts": 1,
            "started_at": NOW - timedelta(seconds=41),
            "lease_owner": "web-2:4711",
            "lease_expires_at": NOW + timedelta(seconds=30),
        }
        | columns
    )


def ended(status: Status, **columns: Any) -> Task:
    started, finished = NOW - timedelta(seconds=70), NOW - timedelta(seconds=60)
    return task(**{"status": status, "attempts": 1, "started_at": started, "finished_at": finished} | columns)


RUNS = "attempt 1 of 3 for 41s, held by web-2:4711 until 14:00:30Z"

CASES = {
    "ready": (task(), None, "ready for 12s: waits for a worker that serves queue mail"),
    "ready after an expired lease": (
        task(attempts=1, last_error="lease of web-1:7 expired\nmore"),
        None,
        "ready for 12s: waits for a worker that serves queue mail; attempt 1 of 3 ended in: lease of web-1:7 expired",
    ),
    "scheduled": (
        task(not_before=NOW + timedelta(hours=2)),
        None,
        "scheduled: due in 2h, at 16:00:00Z",
    ),
    "backing off": (
        task(not_before=NOW + timedelta(seconds=5), attempts=2, last_error="ValueError: boom\nTraceback"),
        None,
        "backs off: due in 5s, at 14:00:05Z; attempt 2 of 3 ended in: ValueError: boom",
    ),
    "snoozed, or of an unknown action": (
        task(not_before=NOW + timedelta(seconds=5), fence=2),
        None,
        "put off by a worker: due in 5s, at 14:00:05Z; its handler asked for that, or it knows no action send",
    ),
    "its agent is busy": (
        task(agent="host-7"),
        running(id=UUID("0195f2b4-7c31-7b4a-9f00-000000d8dd91")),
        "waits for agent host-7, busy with …d8dd91 for 41s, held by web-2:4711 until 14:00:30Z",
    ),
    "not due, and its agent is busy": (
        task(agent="host-7", not_before=NOW + timedelta(seconds=50)),
        running(),
        "scheduled: due in 50s, at 14:00:50Z",
    ),
    "running": (running(), None, RUNS),
    "running, with progress": (
        running(progress=40, message="half way"),
        None,
        RUNS + "; 40 % done: half way",
    ),
    "running, to be cancelled": (
        running(cancel_requested=True),
        None,
        RUNS + "; its cancellation was requested, the holder learns of it at its next renewal",
    ),
    "running, and nobody renews it": (
        running(lease_expires_at=NOW - timedelta(seconds=3)),
        None,
        "attempt 1 of 3 for 41s, held by web-2:4711, whose lease ran out 3s ago: the reaper will return it",
    ),
    "completed": (ended(Status.COMPLETED), None, "took 10s in attempt 1, finished 1m ago"),
    "dead": (
        ended(Status.DEAD, attempts=3, last_error="ValueError: boom\nTraceback"),
        None,
        "out of attempts, after 3 of 3, 1m ago: ValueError: boom",
    ),
    "buried": (
        ended(Status.DEAD, last_error="Permanent: no such address"),
        None,
        "given up in attempt 1 of 3, 1m ago: Permanent: no such address",
    ),
    "dead, nobody said why": (
        ended(Status.DEAD, attempts=3),
        None,
        "out of attempts, after 3 of 3, 1m ago: no error was recorded",
    ),
    "cancelled before": (
        ended(Status.CANCELLED, attempts=0, started_at=None),
        None,
        "cancelled 1m ago, before it ever ran",
    ),
    "cancelled after": (
        ended(Status.CANCELLED, last_error="ValueError: boom"),
        None,
        "cancelled 1m ago, after attempt 1 of 3: ValueError: boom",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_why(case: str) -> None:
    asked, busy, sentence = CASES[case]

    assert room("why").why(asked, now=NOW, busy=busy) == sentence


def test_why_is_one_short_sentence_whatever_the_error() -> None:
    sentence = room("why").why(ended(Status.DEAD, last_error="x" * 60_000), now=NOW, busy=None)

    assert "\n" not in sentence
    assert len(sentence) < 300


def test_every_status_has_a_sentence() -> None:
    for status in Status:
        assert room("why").why(ended(status), now=NOW, busy=None)
