"""What is logged, in which form, and whose task it is about."""

from __future__ import annotations

import asyncio
import contextvars
import io
import json
import logging
import logging.handlers
import queue
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pgqueue import App, Context, logs

from ..support import eventually
from .conftest import Burst

log = logging.getLogger("shop.orders")


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger, as it was afterwards."""
    monkeypatch.setattr(logs, "_chosen", None)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


class Out(io.StringIO):
    """A stream that is, or is not, a terminal."""

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self.terminal = terminal

    def isatty(self) -> bool:
        return self.terminal

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def said(self, logger: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["logger"] == logger]


# -- whose task


def test_records_inside_a_handler_say_whose_task_it_is(app: App, burst: Burst, root: logging.Logger) -> None:
    @app.task(queue="mail")
    def work(ctx: Context) -> None:
        log.info("in the thread")
        copy = contextvars.copy_context()
        thread = threading.Thread(target=copy.run, args=(log.info, "in its own thread"))
        thread.start()
        thread.join()

    @app.task(queue="mail")
    async def awork(ctx: Context) -> None:
        async def inner() -> None:
            log.info("in an asyncio task")

        log.info("on the loop")
        await asyncio.create_task(inner())
        await asyncio.to_thread(log.info, "in to_thread")

    out = Out()
    logs.setup("json", "info", out)
    made = work.using(agent="host-7").enqueue()
    amade = awork.enqueue()
    burst(name="w-1")

    lines = {line["message"]: line for line in out.said("shop.orders")}
    assert len(lines) == 5
    common = {"level": "INFO", "logger": "shop.orders", "attempt": 1, "queue": "mail", "worker": "w-1"}
    for message in ("in the thread", "in its own thread"):
        line = {name: value for name, value in lines[message].items() if name not in ("time", "message")}
        assert line == common | {"task_id": str(made.id), "action": "work", "agent": "host-7"}
    for message in ("on the loop", "in an asyncio task", "in to_thread"):
        line = {name: value for name, value in lines[message].items() if name not in ("time", "message")}
        assert line == common | {"task_id": str(amade.id), "action": "awork"}
    hello = out.said("pgqueue.worker")[0]
    assert "task_id" not in hello


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_task_of_a_failure_is_named_and_the_next_one_is_another(
    app: App, burst: Burst, root: logging.Logger, kind: str
) -> None:
    def fail(number: int) -> None:
        log.info("%d", number)
        raise ValueError(str(number))

    async def afail(number: int) -> None:
        fail(number)

    action = app.task(name="fail", max_attempts=1)(fail if kind == "def" else afail)
    out = Out()
    logs.setup("json", "info", out)
    made = {number: str(action.enqueue(number).id) for number in range(10)}
    burst(concurrency=1)

    assert {int(line["message"]): line["task_id"] for line in out.said("shop.orders")} == made
    failed = [line for line in out.said("pgqueue.worker") if "failed in attempt" in line["message"]]
    assert {int(line["message"].rpartition(" ")[2]): line["task_id"] for line in failed} == made
    assert logs.context() == {}


def test_handlers_side_by_side_do_not_mix(app: App, burst: Burst) -> None:
    seen: dict[str, list[object]] = {}
    turn = asyncio.Event()

    @app.task
    async def work(ctx: Context) -> None:
        seen[str(ctx.id)] = [logs.context()["task_id"]]
        if len(seen) == 3:
            turn.set()
        await turn.wait()
        seen[str(ctx.id)].append(logs.context()["task_id"])

    ids = [str(work.enqueue().id) for _ in range(3)]
    burst()
    assert seen == {id_: [id_, id_] for id_ in ids}


def test_filter_serves_those_who_configure_logging_themselves(app: App, burst: Burst, root: logging.Logger) -> None:
    import logging.config

    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"task": {"()": "pgqueue.logs.ContextFilter"}},
            "formatters": {"ours": {"format": "%(action)s %(attempt)s %(agent)s %(name)s %(message)s"}},
            "handlers": {
                "out": {
                    "class": "logging.StreamHandler",
                    "filters": ["task"],
                    "formatter": "ours",
                    "stream": (out := Out()),
                }
            },
            "root": {"level": "INFO", "handlers": ["out"]},
        }
    )

    @app.task
    def work() -> None:
        log.info("inside")

    log.info("outside")
    work.enqueue()
    burst()
    assert "None None None shop.orders outside" in out.getvalue()
    assert "work 1 None shop.orders inside" in out.getvalue()


def test_what_the_caller_says_wins(app: App, burst: Burst, root: logging.Logger) -> None:
    """With a LogRecord factory, an `extra` of such a name would be a KeyError."""
    out = Out()
    logs.setup("json", "info", out)

    @app.task
    def work() -> None:
        log.info("mine", extra={"queue": "at the till", "order": 17})

    work.enqueue()
    burst()
    [line] = out.said("shop.orders")
    assert (line["queue"], line["order"], line["action"]) == ("at the till", 17, "work")


def test_queue_handler_carries_the_fields_to_its_listener(app: App, burst: Burst, root: logging.Logger) -> None:
    records: queue.SimpleQueue[logging.LogRecord] = queue.SimpleQueue()
    front = logging.handlers.QueueHandler(records)
    front.addFilter(logs.ContextFilter())
    log.addHandler(front)
    log.setLevel(logging.INFO)

    @app.task
    def work() -> None:
        log.info("inside")

    try:
        made = work.enqueue()
        burst()
    finally:
        log.removeHandler(front)
        log.setLevel(logging.NOTSET)
    record = records.get(timeout=30)
    assert json.loads(logs.JsonFormatter().format(record))["task_id"] == str(made.id)


# -- in which form


def test_text_on_a_terminal_and_json_otherwise(root: logging.Logger) -> None:
    for terminal in (True, False):
        out = Out(terminal=terminal)
        logs.setup(stream=out)
        log.info("hello")
        log.debug("not this")
        assert out.getvalue().startswith("{") is not terminal
        assert out.getvalue().count("\n") == 1
        assert logs.chosen() == ("text" if terminal else "json", "info")


def record(
    message: object = "m", *args: object, exc: BaseException | None = None, **extra: object
) -> logging.LogRecord:
    info = None if exc is None else (type(exc), exc, exc.__traceback__)
    made = log.makeRecord("shop", logging.WARNING, "f.py", 1, message, args, info, extra=extra)
    made.created = 1_800_000_000.25
    return made


class Hostile:
    def __str__(self) -> str:
        raise SystemExit("no")

    __repr__ = __str__


class HostileError(Exception):
    def __str__(self) -> str:
        raise KeyboardInterrupt


HOSTILE = {
    "nul and surrogates": record("a\0b\ud800"),
    "arguments that do not fit": record("%d of %s", "x"),
    "a message whose str raises": record(Hostile()),
    "an argument whose str raises": record("%s", Hostile()),
    "an extra whose str raises": record("m", thing=Hostile(), deep=[Hostile()]),
    "not a number": record("m", thing=float("nan"), more={"a": [float("inf")]}),
    "a huge number": record("m", thing=10**5000),
    "a circle": record("m", thing=(circle := [])),  # type: ignore[var-annotated]
    "an error whose str raises": record("m", exc=HostileError()),
    "ten megabytes": record("x" * 10_000_000),
    "odd keys": record("m", thing={(1, 2): 3}),
}
circle.append(circle)


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_that_is_logged_breaks_the_log(case: str) -> None:
    line = logs.JsonFormatter().format(HOSTILE[case])
    assert "\n" not in line
    assert len(line) < 200_000
    line.encode()
    parsed = json.loads(line, parse_constant=pytest.fail)
    assert parsed["level"] == "WARNING"
    text = logs.TextFormatter().format(HOSTILE[case])
    text.encode()
    assert len(text) < 200_000


def test_json_line_has_the_time_in_utc_and_the_traceback() -> None:
    try:
        raise ValueError("of postgresql://u:hunter2@h/d")
    except ValueError as error:
        line = json.loads(logs.JsonFormatter().format(record("failed", exc=error, level="mine")))
    assert line["time"] == "2027-01-15T08:00:00.250Z"
    assert (line["level"], line["logger"], line["message"]) == ("WARNING", "shop", "failed")
    assert line["error"].startswith("Traceback")
    assert line["error"].endswith("ValueError: of postgresql://u:***@h/d")


def test_text_keeps_what_a_terminal_would_obey_from_it_and_cannot_be_forged() -> None:
    text = logs.TextFormatter().format(record("a\x1b]0;title\x07\n2026-01-01 INFO shop: forged \u202eb\r\nc"))
    assert "\x1b" not in text
    assert r"a\x1b]0;title\x07" in text
    assert r"\u202eb" in text
    first, *rest = text.split("\n")
    assert first.endswith(r"WARNING shop: a\x1b]0;title\x07")
    assert len(rest) == 2
    assert all(line.startswith("    ") for line in rest)


def test_text_ends_in_whose_task_it_is(app: App, burst: Burst, root: logging.Logger) -> None:
    out = Out()
    logs.setup("text", "info", out)

    @app.task
    def work() -> None:
        log.info("hello")

    made = work.enqueue()
    burst(name="w-1")
    [line] = eventually(lambda: [line for line in out.getvalue().splitlines() if "shop.orders" in line])
    assert line.endswith(f"INFO shop.orders: hello [task_id {made.id}, action work, attempt 1, queue default]")
