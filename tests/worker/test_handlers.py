"""What a handler is given, and what becomes of its task by what it does."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue import App, Context, Permanent, RetryAfter, Snooze, Status, Task
from pgqueue.config import Limits

from ..support import Sql, eventually
from .conftest import Burst, Start, became


@dataclasses.dataclass
class Address:
    street: str
    number: int


def result_of(task: Task) -> Any:
    return None if task.result_text is None else json.loads(task.result_text)


def test_def_and_async_def_run_and_what_they_return_is_kept(app: App, burst: Burst) -> None:
    @app.task
    def double(n: int) -> int:
        return 2 * n

    @app.task
    async def triple(n: int) -> dict[str, int]:
        await asyncio.sleep(0)
        return {"n": 3 * n}

    @app.task
    async def nothing() -> None: ...

    made = [double.enqueue(n=21), triple.enqueue(n=2), nothing.enqueue()]
    assert burst() == 0
    tasks = [app.client.get(one.id) for one in made]
    assert [task.status for task in tasks] == [Status.COMPLETED] * 3
    assert [result_of(task) for task in tasks] == [42, {"n": 6}, None]
    assert [(task.progress, task.attempts, task.last_error) for task in tasks] == [(100, 1, None)] * 3


def test_arguments_arrive_as_the_annotations_say(app: App, burst: Burst) -> None:
    got: list[object] = []

    @app.task
    def take(when: datetime, who: UUID, address: Address, wait: timedelta, note: str = "none") -> None:
        got.extend([when, who, address, wait, note])

    when, who, address = datetime(2026, 1, 2, 3, tzinfo=UTC), UUID(int=7), Address("High St", 4)
    take.enqueue(when=when, who=who, address=address, wait=timedelta(seconds=90))
    burst()
    assert got == [when, who, address, timedelta(seconds=90), "none"]


@pytest.mark.parametrize("kind", ["def", "async def", "keyword-only"])
def test_context_is_injected_and_says_what_is_run(app: App, burst: Burst, kind: str) -> None:
    seen: list[Context] = []

    if kind == "def":

        @app.task(name="look", queue="mail", max_attempts=7, timeout=60)
        def look(ctx: Context, n: int) -> None:
            seen.append(ctx)
    elif kind == "async def":

        @app.task(name="look", queue="mail", max_attempts=7, timeout=60)
        async def alook(ctx: Context, n: int) -> None:
            seen.append(ctx)
    else:

        @app.task(name="look", queue="mail", max_attempts=7, timeout=60)
        def klook(n: int, *, ctx: Context) -> None:
            seen.append(ctx)

    made = app.action("look").using(agent="host-7", account="acme").enqueue(n=1)
    burst()
    (ctx,) = seen
    assert (ctx.id, ctx.action, ctx.queue, ctx.agent, ctx.account) == (made.id, "look", "mail", "host-7", "acme")
    assert (ctx.attempt, ctx.max_attempts, ctx.fence, ctx.cancelled) == (1, 7, 1, False)
    assert ctx.deadline is not None
    assert ctx.deadline.tzinfo is not None


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_progress_reaches_the_row_while_the_handler_runs(
    app: App, start: Start, gate: threading.Event, kind: str
) -> None:
    if kind == "def":

        @app.task(name="work")
        def work(ctx: Context) -> None:
            ctx.progress(10, "early")
            ctx.progress(40, "nearly half\x00")
            gate.wait(30)
    else:

        @app.task(name="work")
        async def awork(ctx: Context) -> None:
            ctx.progress(40, "nearly half\x00")
            await asyncio.to_thread(gate.wait, 30)

    made = app.action("work").enqueue()
    start()
    eventually(lambda: app.client.get(made.id).progress > 10)
    task = app.client.get(made.id)
    assert (task.status, task.progress) == (Status.RUNNING, 40)
    assert task.message is not None
    assert task.message.startswith("nearly half")
    gate.set()
    task = became(app, made.id, Status.COMPLETED)
    assert (task.progress, task.message) == (100, None)


def test_snooze_gives_the_attempt_back_and_runs_again(app: App, burst: Burst, start: Start) -> None:
    runs: list[tuple[int, int]] = []

    @app.task
    def poll(ctx: Context) -> Snooze | str:
        runs.append((ctx.attempt, ctx.fence))
        return "there" if len(runs) == 3 else Snooze(0.05)

    made = poll.enqueue()
    start()
    task = became(app, made.id, Status.COMPLETED)
    assert runs == [(1, 1), (1, 2), (1, 3)]
    assert (result_of(task), task.attempts, task.fence) == ("there", 1, 3)


def test_permanent_is_dead_at_once(app: App, burst: Burst) -> None:
    @app.task(max_attempts=9)
    def refuse() -> None:
        raise Permanent("no such customer")

    made = refuse.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.attempts) == (Status.DEAD, 1)
    assert "no such customer" in str(task.last_error)


def test_retry_after_sets_when_it_is_tried_again_and_costs_an_attempt(app: App, burst: Burst) -> None:
    @app.task(max_attempts=2)
    async def call() -> None:
        raise RetryAfter(3600, "429 too many requests")

    made = call.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.attempts, task.last_error) == (Status.PENDING, 1, "429 too many requests")
    assert timedelta(minutes=59) < task.not_before - task.updated_at < timedelta(minutes=61)


def test_exception_is_a_failed_attempt_with_a_backoff_and_a_trace(app: App, burst: Burst) -> None:
    @app.task
    def fall() -> None:
        raise LookupError("no such order: 42")

    made = fall.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.attempts, task.fence) == (Status.PENDING, 1, 1)
    assert timedelta(seconds=4.9) <= task.not_before - task.updated_at <= timedelta(seconds=6.5)
    error = str(task.last_error)
    assert error.startswith("LookupError: no such order: 42")
    assert "Traceback" in error
    assert "pgqueue/worker" not in error, "the user's frames, not ours"
    assert 'raise LookupError("no such order: 42")' in error
    (event,) = app.client.events(made.id)
    assert (event.event, event.attempt, event.to_status) == ("fail", 1, Status.PENDING)


def test_attempts_used_up_are_dead_and_each_failure_is_in_the_journal(app: App, start: Start) -> None:
    @app.task(max_attempts=3, backoff=lambda n: 0.01)
    async def fall(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    made = fall.enqueue()
    start()
    task = became(app, made.id, Status.DEAD)
    assert (task.attempts, task.fence) == (3, 3)
    assert str(task.last_error).startswith("ValueError: attempt 3")
    events = app.client.events(made.id)
    assert [(event.attempt, event.to_status) for event in events] == [
        (1, Status.PENDING),
        (2, Status.PENDING),
        (3, Status.DEAD),
    ]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"n": "three"}', "n"),
        ("{}", "n"),
        ('{"n": 1, "m": 2}', "m"),
        ("[1]", "object"),
        (None, "n"),
    ],
    ids=["another type", "missing", "unknown", "no object", "NULL"],
)
def test_payload_that_no_longer_fits_is_dead_without_a_retry(
    app: App, burst: Burst, sql: Sql, payload: str | None, says: str
) -> None:
    ran: list[int] = []

    @app.task
    def take(n: int) -> None:
        ran.append(n)

    @app.task
    async def atake(n: int) -> None:
        ran.append(n)

    for action in ("take", "atake"):
        app.client.enqueue(action, None if payload is None else json.loads(payload))
    good = take.enqueue(n=5)
    burst()
    assert ran == [5]
    assert app.client.get(good.id).status is Status.COMPLETED
    rows = sql("select status, attempts, last_error from pgqueue.tasks where id <> %s", good.id)
    assert [(status, attempts) for status, attempts, _ in rows] == [("dead", 1)] * 2
    for _, _, error in rows:
        assert "the payload does not fit the handler" in error
        assert says in error


def test_unknown_action_is_given_back_and_those_behind_it_run(
    app: App, burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def known(n: int) -> None: ...

    strangers = [app.client.enqueue("stranger", {}, priority=5) for _ in range(3)]
    mine = [known.enqueue(n=n) for n in range(3)]
    burst(concurrency=1, batch=1)
    assert {app.client.get(one.id).status for one in mine} == {Status.COMPLETED}
    for one in strangers:
        task = app.client.get(one.id)
        assert (task.status, task.attempts, task.last_error) == (Status.PENDING, 0, None)
        assert task.fence >= 1
        assert task.not_before > task.created_at + timedelta(seconds=4)
    assert caplog.text.count("no handler for action 'stranger'") == 1


@pytest.mark.parametrize(
    "value",
    [threading.Lock, lambda: "x" * (Limits.RESULT_BYTES + 1), lambda: float("inf")],
    ids=["no JSON", "too large", "infinite"],
)
def test_result_that_cannot_be_kept_is_dead_with_the_reason(
    app: App, burst: Burst, value: Callable[[], object]
) -> None:
    @app.task
    def make() -> object:
        return value()

    made = make.enqueue()
    burst()
    task = app.client.get(made.id)
    assert (task.status, task.attempts, task.result_text) == (Status.DEAD, 1, None)
    assert "its result cannot be kept" in str(task.last_error)


class Hostile(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


def _exit() -> None:
    raise SystemExit(3)


def _interrupt() -> None:
    raise KeyboardInterrupt


def _hostile() -> None:
    raise Hostile


def _nul() -> None:
    raise ValueError("a\x00b \udcff")


def _group() -> None:
    raise BaseExceptionGroup("several", [SystemExit(1), ValueError("x")])


def _generator_exit() -> None:
    raise GeneratorExit


@pytest.mark.parametrize("kind", ["def", "async def"])
@pytest.mark.parametrize("hurt", [_exit, _interrupt, _hostile, _nul, _group, _generator_exit])
def test_exception_of_any_kind_is_a_failed_attempt_and_the_worker_lives(
    app: App, burst: Burst, hurt: Callable[[], None], kind: str
) -> None:
    if kind == "def":

        @app.task(name="bad", max_attempts=1)
        def bad() -> None:
            hurt()
    else:

        @app.task(name="bad", max_attempts=1)
        async def abad() -> None:
            hurt()

    @app.task
    def after() -> None: ...

    made = app.action("bad").using(priority=9).enqueue()
    then = after.enqueue()
    assert burst(concurrency=1) == 0
    task = app.client.get(made.id)
    assert (task.status, task.attempts) == (Status.DEAD, 1)
    assert task.last_error
    assert app.client.get(then.id).status is Status.COMPLETED


def test_system_exit_in_a_task_that_a_handler_started_does_not_end_the_loop(
    app: App, burst: Burst, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        raise SystemExit(1)

    @app.task
    async def careless() -> str:
        child = asyncio.ensure_future(leave())
        await asyncio.wait([child])
        with pytest.raises(SystemExit):
            child.result()
        return "still here"

    made = careless.enqueue()
    burst()
    assert result_of(app.client.get(made.id)) == "still here"
    assert "raised SystemExit, which ends no worker" in caplog.text


def test_coroutine_returned_by_a_def_handler_is_a_failure_that_says_so(app: App, burst: Burst) -> None:
    async def work() -> None: ...

    @app.task(max_attempts=1)
    def forgot() -> Any:
        return work()

    made = forgot.enqueue()
    burst()
    task = app.client.get(made.id)
    assert task.status is Status.DEAD
    assert "declare it `async def`" in str(task.last_error)


@dataclasses.dataclass
class Exits:
    n: int

    def __post_init__(self) -> None:
        if self.n == 13:
            raise SystemExit(self.n)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_argument_whose_class_exits_is_a_failure_and_the_worker_lives(app: App, burst: Burst, kind: str) -> None:
    if kind == "def":

        @app.task(name="take", max_attempts=1)
        def take(value: Exits) -> None: ...
    else:

        @app.task(name="take", max_attempts=1)
        async def atake(value: Exits) -> None: ...

    bad, good = (app.client.enqueue("take", {"value": {"n": n}}, max_attempts=1) for n in (13, 14))
    assert burst(concurrency=1) == 0
    assert app.client.get(bad.id).status is Status.DEAD
    assert app.client.get(good.id).status is Status.COMPLETED


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_handlers_run_beside_each_other_up_to_the_concurrency(app: App, burst: Burst, kind: str) -> None:
    """Five that wait for each other: with fewer than five at once none would get through."""
    meeting = threading.Barrier(5)
    arrived: list[int] = []
    everybody = asyncio.Event()

    if kind == "def":

        @app.task(name="meet", max_attempts=1)
        def meet(n: int) -> None:
            meeting.wait(30)
    else:

        @app.task(name="meet", max_attempts=1)
        async def ameet(n: int) -> None:
            arrived.append(n)
            if len(arrived) == 5:
                everybody.set()
            await asyncio.wait_for(everybody.wait(), 30)

    app.client.enqueue_many(app.action("meet").new(n=n) for n in range(5))
    burst(concurrency=5)
    assert app.client.stats()["completed"] == 5


def test_concurrency_is_never_exceeded(app: App, burst: Burst) -> None:
    lock, running, most = threading.Lock(), [0], [0]

    @app.task
    def work(n: int) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.002)
        with lock:
            running[0] -= 1

    app.client.enqueue_many(work.new(n=n) for n in range(60))
    burst(concurrency=3)
    assert app.client.stats()["completed"] == 60
    assert most[0] <= 3


def test_handler_may_enqueue_and_burst_runs_that_too(app: App, burst: Burst) -> None:
    @app.task
    def step(n: int) -> None:
        if n:
            step.enqueue(n=n - 1)

    @app.task
    async def astep(n: int) -> None:
        if n:
            await astep.aenqueue(n=n - 1)

    step.enqueue(n=4)
    astep.enqueue(n=4)
    burst()
    assert app.client.stats()["completed"] == 10


def test_failed_attempt_leaves_one_line_in_the_log(app: App, burst: Burst, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(max_attempts=1)
    def fall() -> None:
        raise ValueError("over\x1b[31m the edge")

    made = fall.enqueue()
    assert burst() == 0
    lines = [record.getMessage() for record in caplog.records if "failed in attempt" in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith(f"task {made.id} (fall) failed in attempt 1 of 1: ValueError: over")
    assert "\x1b" not in lines[0]
