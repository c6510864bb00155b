"""The sentence that says why a task is where it is: decided by the row, the server's clock and the agent's holder."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue.lifecycle import Status
from pgqueue.task import Parent, Task

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
    "ready, for whoever offers its conditions": (
        task(requires=("gpu", "two words")),
        None,
        (
            "ready for 12s: waits for a claim that offers gpu, two words:"
            " pgqueue worker --queues mail --offer gpu --offer 'two words'"
        ),
    ),
    "its agent's task requires something": (
        task(agent="host-7", requires=("server stopped",), not_before=NOW + timedelta(seconds=50)),
        None,
        "scheduled: due in 50s, at 14:00:50Z",
    ),
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
    "cancelled with its parent": (
        ended(
            Status.CANCELLED,
            attempts=0,
            started_at=None,
            last_error="cancelled: its parent 0195f2b4-7c31-7b4a-9f00-000000d8dd91 (resize) is dead",
        ),
        None,
        "cancelled 1m ago, before it ever ran: its parent 0195f2b4-7c31-7b4a-9f00-000000d8dd91 (resize) is dead",
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


# -- parents


def parent(number: int, status: Status | None = Status.PENDING, *, lifted: bool = False, **columns: Any) -> Parent:
    action = None if status is None else "resize"
    return Parent(UUID(int=number), action, status, None, None, NOW if lifted else None, columns.get("look_at"))


def row(number: int, **columns: Any) -> Task:
    return task(id=UUID(int=number), action="resize", **columns)


DONE = parent(9, Status.COMPLETED, lifted=True)
HELD = running(id=UUID(int=1), action="resize")

BLOCKED: dict[str, tuple[dict[str, Any], list[Parent], list[Task], str]] = {
    "one of several runs, another waits": (
        {},
        [parent(1, Status.RUNNING), parent(2), DONE, parent(8, Status.COMPLETED, lifted=True)],
        [HELD, row(2, not_before=NOW - timedelta(seconds=12))],
        (
            "2 of 4 parents not done: …000001 (resize) is running for 41s, held by web-2:4711 until 14:00:30Z;"
            " …000002 (resize) waits since 13:59:48Z"
        ),
    ),
    "the only one runs": (
        {},
        [parent(1, Status.RUNNING)],
        [HELD],
        "waits for …000001 (resize), which is running for 41s, held by web-2:4711 until 14:00:30Z",
    ),
    "a dead one that it runs without holds nothing back": (
        {"on_parent_failure": "run"},
        [parent(1), parent(2, Status.DEAD, lifted=True)],
        [],
        "1 of 2 parents not done: …000001 (resize) is pending",
    ),
    "one that was revived holds nothing back any more": (
        {"on_parent_failure": "run"},
        [parent(1), parent(2, Status.RUNNING, lifted=True)],
        [row(1, waiting_on=1)],
        "1 of 2 parents not done: …000001 (resize) waits for 1 parent itself",
    ),
    "the only one is scheduled": (
        {},
        [parent(1)],
        [row(1, not_before=NOW + timedelta(hours=2))],
        "waits for …000001 (resize), which is due in 2h, at 16:00:00Z",
    ),
    "the only one is not there": (
        {},
        [parent(1, None, look_at=NOW + timedelta(minutes=3, seconds=9))],
        [],
        "waits for …000001, which does not exist (yet): let go at 14:03:09Z",
    ),
    "the only one is not there, and its time is up": (
        {},
        [parent(1, None, look_at=NOW - timedelta(seconds=1))],
        [],
        "waits for …000001, which does not exist (yet): the sweep is letting it go",
    ),
    "the only one is not there, and nobody looks": (
        {},
        [parent(1, None)],
        [],
        "waits for …000001, which does not exist (yet)",
    ),
    "one is dead, and the sweep is about to say so": (
        {},
        [parent(1, Status.DEAD, look_at=NOW), parent(2, Status.COMPLETED, look_at=NOW)],
        [],
        (
            "2 of 2 parents not done: …000001 (resize) is dead: the sweep is cancelling this task;"
            " …000002 (resize) is completed: the sweep is letting it go"
        ),
    ),
    "one was cancelled, and it runs all the same": (
        {"on_parent_failure": "run"},
        [parent(1, Status.CANCELLED, look_at=NOW)],
        [],
        "waits for …000001 (resize), which is cancelled: the sweep is letting it go",
    ),
    "a parent that moved between two looks": (
        {},
        [parent(1, Status.PENDING)],
        [HELD],
        "waits for …000001 (resize), which is pending",
    ),
    "its own time has not come either": (
        {"not_before": NOW + timedelta(hours=2)},
        [parent(1)],
        [],
        "waits for …000001 (resize), which is pending; it is not due before 16:00:00Z either, in 2h",
    ),
    "after a failed attempt": (
        {"attempts": 1, "last_error": "ValueError: boom"},
        [parent(1)],
        [],
        "waits for …000001 (resize), which is pending; attempt 1 of 3 ended in: ValueError: boom",
    ),
    "its parents are not known": ({}, [], [], "waits for 1 parent"),
}


@pytest.mark.parametrize("case", BLOCKED)
def test_why_of_a_task_that_waits_for_others(case: str) -> None:
    columns, parents, rows, sentence = BLOCKED[case]
    waiting = sum(one.lifted_at is None for one in parents) or 1
    line = room("why").Line(parents, {one.id: one for one in rows})

    assert room("why").why(task(waiting_on=waiting, **columns), now=NOW, busy=None, line=line) == sentence


def test_why_names_a_few_of_many_parents() -> None:
    line = room("why").Line([parent(number) for number in range(1, 10_001)])

    sentence = room("why").why(task(waiting_on=10_000), now=NOW, busy=None, line=line)

    assert sentence.startswith("10,000 of 10,000 parents not done: …000001 (resize) is pending; ")
    assert sentence.endswith("; …000003 (resize) is pending; and 9,997 more")


def test_why_is_one_short_sentence_whatever_the_error() -> None:
    sentence = room("why").why(ended(Status.DEAD, last_error="x" * 60_000), now=NOW, busy=None)

    assert "\n" not in sentence
    assert len(sentence) < 300


def test_every_status_has_a_sentence() -> None:
    for status in Status:
        assert room("why").why(ended(status), now=NOW, busy=None)
