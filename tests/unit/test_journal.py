"""Replay and comparison, without a database."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pgqueue.journal import FIELDS, RULES, UNKNOWN, Audit, Drift, Entry, Expected, Gap, Line, drift, replay
from pgqueue.lifecycle import MOVES, Event, Status
from tests.support.rows import LONG_AGO

TASK = UUID(int=7)
MADE = {"priority": 0, "max_attempts": 3, "dedupe_key": None}


def line(event: str, was: str | None, to: str, attempt: int, fence: int, **changes: Any) -> Line:
    return Line(0, event, was, to, attempt, fence, changes or None)


ENQUEUE = line("enqueue", None, "pending", 0, 0, **MADE)
CLAIM = line("claim", "pending", "running", 1, 1)
COMPLETE = line("complete", "running", "completed", 1, 1)
REQUEST = line("request_cancel", "running", "running", 1, 1)


def values(*lines: Line, whole: bool = True) -> dict[str, Any]:
    expected = replay(lines, whole=whole)
    assert expected.gaps == []
    return dict(expected.values)


def gaps(*lines: Line, whole: bool = True) -> list[str]:
    return [why for _, why in replay(lines, whole=whole).gaps]


def test_every_event_and_entry_has_a_rule() -> None:
    assert {*RULES, Entry.ENQUEUE} == {*Event, *Entry}


def test_enqueue_tells_every_field() -> None:
    assert values(line("enqueue", None, "pending", 0, 0, priority=5, max_attempts=1, dedupe_key="k")) == {
        "status": "pending",
        "attempts": 0,
        "fence": 0,
        "priority": 5,
        "max_attempts": 1,
        "dedupe_key": "k",
        "cancel_requested": False,
    }


# What each event leaves of (attempts, fence, cancel_requested), from attempts 2, fence 5.
LEAVES: dict[str, tuple[int, int]] = dict.fromkeys([*Event, *Entry], (2, 5)) | {
    Event.CLAIM: (3, 6),
    Event.RELEASE: (1, 5),
    Event.SNOOZE: (1, 5),
    Event.EVICT: (1, 5),
    Event.REVIVE: (0, 5),
}


@pytest.mark.parametrize("move", MOVES, ids=str)
def test_move_leads_where_it_says_and_leaves_what_the_lifecycle_does(move: Any) -> None:
    attempt, fence = (3, 6) if move.event is Event.CLAIM else (2, 5)
    expected = replay([line(move.event, move.source, move.target, attempt, fence)], whole=False)

    assert expected.gaps == []
    assert expected.values["status"] == move.target
    assert (expected.values["attempts"], expected.values["fence"]) == LEAVES[move.event]
    if move.target is Status.PENDING:
        assert expected.values["cancel_requested"] is False
    if (move.source, move.target) == (Status.RUNNING, Status.CANCELLED) or move.event is Event.REQUEST_CANCEL:
        assert expected.values["cancel_requested"] is True


def test_life_with_everything_in_it() -> None:
    lines = [
        ENQUEUE,
        line("gate", "pending", "pending", 0, 0),
        line("reschedule", "pending", "pending", 0, 0, priority=4),
        CLAIM,
        line("snooze", "running", "pending", 1, 1),
        line("claim", "pending", "running", 1, 2),
        line("fail", "running", "pending", 1, 2),
        line("claim", "pending", "running", 2, 3),
        line("bury", "running", "dead", 2, 3),
        line("revive", "dead", "pending", 2, 3),
        line("claim", "pending", "running", 1, 4),
        line("request_cancel", "running", "running", 1, 4),
        line("evict", "running", "cancelled", 1, 4),
    ]
    assert values(*lines) == MADE | {
        "status": "cancelled",
        "attempts": 0,
        "fence": 4,
        "priority": 4,
        "cancel_requested": True,
    }


def test_what_no_event_told_is_unknown_and_no_drift() -> None:
    expected = replay([CLAIM, COMPLETE], whole=False)
    row = {"status": "completed", "attempts": 1, "fence": 1, "cancel_requested": False}

    assert [field for field in FIELDS if expected.values[field] is UNKNOWN] == [
        "priority",
        "max_attempts",
        "dedupe_key",
    ]
    assert expected.known == ["status", "attempts", "fence", "cancel_requested"]
    assert drift(TASK, expected, row | {"priority": 9, "max_attempts": 1, "dedupe_key": "k"}) == []


def test_nothing_is_known_of_an_older_task_without_events() -> None:
    expected = replay([], whole=False)
    assert (expected.known, expected.gaps) == ([], [])


def test_drift_names_field_journal_and_row() -> None:
    row = MADE | {"status": "dead", "attempts": 1, "fence": 2, "cancel_requested": False}

    assert drift(TASK, replay([ENQUEUE, CLAIM, COMPLETE], whole=True), row) == [
        Drift(TASK, "status", "completed", "dead"),
        Drift(TASK, "fence", 1, 2),
    ]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ([], "it has no events"),
        ([CLAIM, COMPLETE], "the events do not begin with its enqueue"),
        ([ENQUEUE, COMPLETE], "complete: status was pending before, not running; attempts was 0 before, not 1"),
        ([ENQUEUE, ENQUEUE], "enqueue: a task is enqueued once"),
        ([ENQUEUE, line("claim", "pending", "running", 1, 3)], "claim: fence was 0 before, not 2"),
        ([ENQUEUE, line("claim", "pending", "running", 2, 1)], "claim: attempts was 0 before, not 1"),
        ([ENQUEUE, CLAIM, line("complete", "running", "dead", 1, 1)], "complete: leads to completed, not dead"),
        ([ENQUEUE, CLAIM, line("fail", "running", "dead", 1, 1)], "fail: leads to pending, not dead"),
        ([ENQUEUE, CLAIM, line("release", "running", "cancelled", 1, 1)], "release: leads to pending, not cancelled"),
        ([ENQUEUE, CLAIM, REQUEST, line("fail", "running", "pending", 1, 1)], "fail: leads to cancelled, not pending"),
        ([ENQUEUE, CLAIM, line("acknowledge", "running", "cancelled", 1, 1)], "acknowledge: leads to nothing"),
        ([ENQUEUE, line("cancel", "running", "cancelled", 0, 0)], "cancel: status was pending before, not running"),
        ([ENQUEUE, line("gate", "pending", "running", 0, 0)], "gate: leads to pending, not running"),
        ([ENQUEUE, line("sung", "pending", "running", 0, 0)], "sung: this program knows no such event"),
    ],
)
def test_events_that_contradict_each_other_are_a_gap(lines: list[Line], says: str) -> None:
    found = gaps(*lines)
    assert len(found) == 1
    assert found[0].startswith(says)


def test_replay_goes_on_behind_a_gap() -> None:
    lines = [ENQUEUE, COMPLETE._replace(id=2)]
    expected = replay(lines, whole=True)

    assert [event_id for event_id, _ in expected.gaps] == [2]
    assert expected.values["status"] == "completed"


def test_event_of_a_newer_program_leaves_unknown_what_it_may_have_changed() -> None:
    expected = replay([ENQUEUE, line("sung", "pending", "running", 0, 0)], whole=True)
    assert expected.values["status"] == "running"
    assert expected.values["attempts"] is expected.values["cancel_requested"] is UNKNOWN


def test_changes_that_are_no_object_are_passed_over() -> None:
    assert replay([ENQUEUE._replace(changes=[1])], whole=True).values["priority"] is UNKNOWN  # type: ignore[arg-type]


def test_audits_add_up() -> None:
    drifted, gap = Drift(TASK, "fence", 1, 2), Gap(TASK, 3, "why")
    one = Audit([drifted], [], 2, 5, {"fence": 2}, LONG_AGO, TASK)
    both = one + Audit([], [gap], 1, 1, {"fence": 0}, LONG_AGO, None)

    assert both == Audit([drifted], [gap], 3, 6, {"fence": 2}, LONG_AGO, None)
    assert not both.clean
    assert Audit([], [], 0, 0, {}, LONG_AGO, None).clean


def test_expected_is_a_value() -> None:
    assert Expected({"status": UNKNOWN}).known == []
