"""What a handler did, and why it may have been asked to stop, to the settlement that says so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pgqueue import App, Claimed, Event, InputError, Interrupted, Lease, PayloadError, Permanent, RetryAfter, Snooze
from pgqueue.config import Limits
from pgqueue.context import Context, Stop
from pgqueue.ids import new_id
from pgqueue.worker.execute import Outcome, unknown_action
from pgqueue.worker.running import CANCELLED, LOST, SHUTDOWN, TIMEOUT, Held, Running

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REASONS = (None, CANCELLED, SHUTDOWN, TIMEOUT, LOST)


def claimed(*, attempt: int = 1, fence: int = 1, id: UUID | None = None, timeout: timedelta | None = None) -> Claimed:
    lease = Lease(id or new_id(), uuid4(), fence, None, "default", NOW)
    return Claimed(lease, "work", None, 0, attempt, 3, NOW, timeout, NOW, "{}", None)


def running(reason: str | None = None, *, backoff: Callable[[int], Any] | None = None, **task: Any) -> Running:
    app = App("postgresql://nowhere/")

    @app.task(name="work", backoff=backoff)
    def work() -> None: ...

    run = Running(claimed(**task), app.action("work"))
    if reason is not None:
        run.stopper().set(reason)
    return run


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text for you")


FAILS = dict.fromkeys(REASONS, Event.FAIL)
ASKED = {None: Event.FAIL, CANCELLED: Event.ACKNOWLEDGE, SHUTDOWN: Event.RELEASE, TIMEOUT: Event.FAIL}
RAISED: dict[str, tuple[Callable[[], BaseException], dict[str | None, Event]]] = {
    "an ordinary exception": (lambda: ValueError("boom"), FAILS),
    "Permanent": (lambda: Permanent("no"), dict.fromkeys(REASONS, Event.BURY) | {TIMEOUT: Event.FAIL}),
    "RetryAfter": (lambda: RetryAfter(7, "429"), FAILS),
    "Interrupted": (lambda: Interrupted("stop"), ASKED),
    "CancelledError": (asyncio.CancelledError, ASKED),
    "SystemExit": (lambda: SystemExit(3), FAILS),
    "KeyboardInterrupt": (KeyboardInterrupt, FAILS),
    "an exception whose str() raises": (Hostile, FAILS),
}


@pytest.mark.parametrize("reason", REASONS, ids=str)
@pytest.mark.parametrize("what", RAISED)
def test_raise_of_each_kind_for_each_reason_to_stop(what: str, reason: str | None) -> None:
    make, table = RAISED[what]
    settlement = Outcome.of_raise(running(reason), make())
    if reason == LOST:
        assert settlement is None
        return
    assert settlement is not None
    assert settlement.event is table[reason]
    if settlement.event in (Event.FAIL, Event.BURY):
        assert settlement.detail
        assert settlement.delay is not None or settlement.event is Event.BURY


@pytest.mark.parametrize("reason", REASONS, ids=str)
@pytest.mark.parametrize(
    ("value", "event", "detail"),
    [
        (None, Event.COMPLETE, None),
        ({"n": [1, 2]}, Event.COMPLETE, {"n": [1, 2]}),
        (0, Event.COMPLETE, 0),
        (Snooze(30), Event.SNOOZE, None),
    ],
    ids=["None", "JSON", "zero", "Snooze"],
)
def test_return_is_recorded_whatever_was_asked(value: object, event: Event, detail: object, reason: str | None) -> None:
    settlement = Outcome.of_return(running(reason), value)
    assert settlement.event is event
    assert (None if settlement.detail is None else json.loads(settlement.detail)) == detail
    assert settlement.delay == (timedelta(seconds=30) if event is Event.SNOOZE else None)


@pytest.mark.parametrize(
    "value",
    [object(), float("nan"), "x" * (Limits.RESULT_BYTES + 1), {1: 2}, "nul\x00"],
    ids=["object", "NaN", "too large", "a key that is no text", "NUL"],
)
def test_result_that_cannot_be_kept_buries_and_says_that_the_work_is_done(value: object) -> None:
    settlement = Outcome.of_return(running(), value)
    assert settlement.event is Event.BURY
    assert settlement.detail is not None
    assert "the work is done, but its result cannot be kept" in settlement.detail


def test_failure_text_has_type_message_and_traceback() -> None:
    try:
        raise LookupError("no such order")
    except LookupError as error:
        settlement = Outcome.of_raise(running(), error)
    assert settlement is not None
    assert settlement.detail is not None
    assert settlement.detail.startswith("LookupError: no such order\n")
    assert "Traceback" in settlement.detail
    assert "test_outcomes.py" in settlement.detail


def test_failure_text_that_postgres_could_not_store_is_cleaned() -> None:
    settlement = Outcome.of_raise(running(), ValueError("a\x00b\ud800c"))
    assert settlement is not None
    assert settlement.detail is not None
    settlement.detail.encode()
    assert "\x00" not in settlement.detail


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 5), (2, 10), (3, 20), (99, 300)])
def test_backoff_is_the_default_made_longer_by_up_to_a_quarter(attempt: int, seconds: int) -> None:
    settlement = Outcome.of_raise(running(attempt=attempt), ValueError())
    assert settlement is not None
    assert settlement.delay is not None
    assert seconds <= settlement.delay.total_seconds() <= seconds * 1.25


def test_backoff_may_be_the_actions_own() -> None:
    settlement = Outcome.of_raise(running(attempt=2, backoff=lambda n: 100 * n), ValueError())
    assert settlement is not None
    assert settlement.delay is not None
    assert 200 <= settlement.delay.total_seconds() <= 250


def _broken(n: int) -> float:
    raise ZeroDivisionError(n)


@pytest.mark.parametrize("policy", [_broken, lambda n: -1, lambda n: None, lambda n: float("nan")])
def test_backoff_policy_that_fails_does_not_lose_the_failure(
    policy: Callable[[int], Any], caplog: pytest.LogCaptureFixture
) -> None:
    settlement = Outcome.of_raise(running(backoff=policy), ValueError())
    assert settlement is not None
    assert settlement.event is Event.FAIL
    assert settlement.delay is not None
    assert 5 <= settlement.delay.total_seconds() <= 6.25
    assert "backoff of work failed" in caplog.text


def test_retry_after_waits_exactly_as_long_as_it_says() -> None:
    settlement = Outcome.of_raise(running(), RetryAfter(timedelta(minutes=2), "429 from the shop"))
    assert settlement is not None
    assert (settlement.detail, settlement.delay) == ("429 from the shop", timedelta(minutes=2))
    bare = Outcome.of_raise(running(), RetryAfter(1))
    assert bare is not None
    assert bare.detail


@pytest.mark.parametrize("make", [Snooze, RetryAfter])
@pytest.mark.parametrize("delay", [-1, float("inf"), "soon", True])
def test_delay_out_of_range_is_refused_where_it_is_written(make: Callable[[Any], object], delay: object) -> None:
    with pytest.raises(InputError) as refused:
        make(delay)
    assert refused.value.field == "delay"


def test_timeout_says_how_long_it_was() -> None:
    settlement = Outcome.of_raise(running(TIMEOUT, timeout=timedelta(seconds=90)), asyncio.CancelledError())
    assert settlement is not None
    assert settlement.detail == "timed out after 1m30s"


def test_payload_that_does_not_fit_is_dead_at_once() -> None:
    settlement = Outcome.of_payload(running(), PayloadError("n: expected int", field="n"))
    assert settlement.event is Event.BURY
    assert settlement.detail == "the payload does not fit the handler: n: expected int"


def test_stuck_handler_fails_when_it_timed_out_and_is_given_back_otherwise() -> None:
    late = Outcome.of_stuck(running(TIMEOUT, timeout=timedelta(seconds=1)))
    assert late.event is Event.FAIL
    assert late.detail is not None
    assert "did not stop" in late.detail
    assert Outcome.of_stuck(running(SHUTDOWN)).event is Event.RELEASE
    assert Outcome.of_stuck(running(CANCELLED)).event is Event.RELEASE


def test_unknown_action_is_given_back_for_longer_each_time() -> None:
    waits = []
    for fence in (1, 2, 3):
        settlement = unknown_action(Running(claimed(fence=fence), None))
        assert settlement.event is Event.SNOOZE
        assert settlement.delay is not None
        waits.append(settlement.delay.total_seconds())
    assert 5 <= waits[0] <= 6.25
    assert 10 <= waits[1] <= 12.5
    assert 20 <= waits[2] <= 25


# -- what the worker's threads share


def test_stop_keeps_its_first_reason() -> None:
    stop = Stop()
    assert not stop.wait(0)
    stop.set(CANCELLED)
    stop.set(TIMEOUT)
    assert stop.reason == CANCELLED
    assert stop.wait(0)


def test_held_counts_slots_and_forgets_only_what_the_lease_names() -> None:
    held = Held(3)
    run = running()
    assert held.add([run]) == []
    assert (held.room, len(held), held.all()) == (2, 1, [run])
    stranger = running()
    assert held.remove([stranger.lease]) == []
    assert held.remove([run.lease]) == [run]
    assert held.room == 3


def test_held_keeps_a_replaced_run_apart_from_the_one_that_holds_the_lease_now() -> None:
    held = Held(5)
    task = new_id()
    earlier, later = running(id=task, fence=1), running(id=task, fence=2)
    held.add([earlier])
    assert held.add([later]) == [earlier]
    assert (len(held), held.all(), held.replaced()) == (2, [later], [earlier])
    assert held.get(earlier.lease) is None
    assert held.get(later.lease) is later
    assert held.remove([earlier.lease]) == [earlier]
    assert held.all() == [later], "the outcome of the lost run forgets the one that holds the lease"
    assert held.remove([later.lease]) == [later]
    assert len(held) == 0


def test_context_made_by_hand_has_what_a_handler_reads() -> None:
    context = Context(None, action="work")
    assert (context.action, context.attempt, context.fence, context.cancelled) == ("work", 1, 0, False)
    context.check()
    context.sleep(0)
    context.progress(50, "half")
    with pytest.raises(InputError) as refused:
        context.progress(101)
    assert refused.value.field == "percent"
    with pytest.raises(InputError, match="called directly"):
        context.complete(connection=object())  # type: ignore[arg-type]


def test_context_that_was_asked_to_stop_says_so_everywhere() -> None:
    stop = Stop()
    context = Context(claimed(), stop=stop)
    stop.set(CANCELLED)
    assert context.cancelled
    with pytest.raises(Interrupted):
        context.check()
    with pytest.raises(Interrupted):
        context.sleep(60)
