"""What a worker's log looks like, and whose task a record is about.

`pgqueue worker` sets this up by itself. Whoever configures logging takes `ContextFilter`, or asks `context()`:

    logging.config.dictConfig({
        "filters": {"task": {"()": "pgqueue.logs.ContextFilter"}},
        "handlers": {"out": {"class": "logging.StreamHandler", "filters": ["task"], "formatter": "..."}},
        ...
    })

A filter, and no record factory: a factory would set `task_id` before `extra=` is looked at, and logging raises
KeyError for an `extra` of a name that is set already.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TextIO

from .config import Limits
from .sanitize import clean

if TYPE_CHECKING:
    from .task import Claimed

__all__ = [
    "FORMATS",
    "LEVELS",
    "ContextFilter",
    "JsonFormatter",
    "TextFormatter",
    "chosen",
    "context",
    "enter",
    "inside",
    "leave",
    "setup",
]

FORMATS: Final = ("auto", "text", "json")
LEVELS: Final = ("debug", "info", "warning", "error", "critical")
FIELDS: Final = ("task_id", "action", "attempt", "queue", "agent", "worker")

_current: ContextVar[tuple[Claimed, str] | None] = ContextVar("pgqueue-task", default=None)

_chosen: tuple[str, str] | None = None

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", *FIELDS}
_TEXT_BYTES: Final = Limits.ERROR_BYTES
# What a terminal obeys, or what turns the direction of its text.
_OBEYED: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2028\u2029\u2066-\u2069]")


def context() -> dict[str, object]:
    """The task that the calling code runs for: task_id (text), action, attempt, queue, agent (or None), worker.

    Empty outside of handlers. What a handler awaits, its asyncio tasks and `asyncio.to_thread` are inside; threads that
    it starts by itself are not, unless they run in a `contextvars.copy_context()`.
    """
    current = _current.get()
    if current is None:
        return {}
    claimed, worker = current
    return {
        "task_id": str(claimed.id),
        "action": claimed.action,
        "attempt": claimed.attempt,
        "queue": claimed.queue,
        "agent": claimed.agent,
        "worker": worker,
    }


def enter(claimed: Claimed, worker: str) -> Token[tuple[Claimed, str] | None]:
    """For whoever runs handlers: what is logged from now on, in this thread or asyncio task, is about this task."""
    return _current.set((claimed, worker))


def leave(token: Token[tuple[Claimed, str] | None]) -> None:
    """The end of what `enter` began."""
    _current.reset(token)


@contextlib.contextmanager
def inside(claimed: Claimed, worker: str) -> Iterator[None]:
    """What is logged in here is about this task."""
    token = enter(claimed, worker)
    try:
        yield
    finally:
        leave(token)


class ContextFilter(logging.Filter):
    """Gives every record the attributes task_id, action, attempt, queue, agent and worker; None outside of a handler.

    It lets everything pass, and leaves alone what the caller set by `extra=`. Put it on handlers: a filter of a logger
    does not see its children's records. Of a QueueHandler and its listener, it belongs on the QueueHandler.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        values = context()
        for name in FIELDS:
            if name not in record.__dict__:
                setattr(record, name, values.get(name))
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, the task's fields, what `extra=` added, error.

    `agent` is there where the task has one; `error` is the traceback. Cannot raise, whatever was logged.
    """

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": clean(_message(record), limit=_TEXT_BYTES),
        }
        line |= _fields(record)
        for name, value in record.__dict__.items():
            if name not in _STANDARD and name not in line:
                line[clean(name, limit=200)] = _plain(value)
        error = _error(self, record)
        if error:
            line["error"] = clean(error, limit=_TEXT_BYTES)
        return json.dumps(line, ensure_ascii=False)


class TextFormatter(logging.Formatter):
    """For people: time, level, logger, message, then whose task it is. Further lines of a message are indented, and
    what a terminal would obey is written out. Cannot raise.
    """

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        whose = f" [{', '.join(f'{name} {value}' for name, value in fields.items() if name != 'worker')}]"
        head = f"{_time(record).astimezone():%Y-%m-%d %H:%M:%S} {record.levelname} {record.name}:"
        text = f"{head} {clean(_message(record), limit=_TEXT_BYTES)}{whose if fields else ''}"
        error = _error(self, record)
        if error:
            text += f"\n{clean(error, limit=_TEXT_BYTES)}"
        return _OBEYED.sub(lambda found: ascii(found[0])[1:-1], text.replace("\r\n", "\n")).replace("\n", "\n    ")


def setup(format: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Log to `stream` (stderr) in that format, from that level on; replaces what the root logger's handlers were.

    format: "text", "json", or "auto": text where the stream is a terminal.
    """
    global _chosen
    stream = stream or sys.stderr
    if format == "auto":
        format = "text" if stream.isatty() else "json"
    _chosen = format, level
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if format == "text" else JsonFormatter())
    handler.addFilter(ContextFilter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def chosen() -> tuple[str, str] | None:
    """What `setup` was told, "auto" decided: for a child process that is to log alike. None: it was not called."""
    return _chosen


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The task's fields, as the filter or the caller set them, or as they are now; without those that are None."""
    values = context()
    found = {name: record.__dict__.get(name, values.get(name)) for name in FIELDS}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except BaseException:  # noqa: BLE001 - the arguments do not fit, or their __str__ raises: what was meant is kept
        return f"{clean(record.msg, limit=_TEXT_BYTES)} (its arguments do not fit it)"


def _error(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    try:
        error = record.exc_text or (formatter.formatException(record.exc_info) if record.exc_info else "")
        stack = formatter.formatStack(record.stack_info) if record.stack_info else ""
    except BaseException as failure:  # noqa: BLE001 - an exception whose str() raises
        return f"(its traceback could not be formatted: {type(failure).__name__})"
    return "\n".join(filter(None, (error, stack)))


def _plain(value: object) -> object:
    """As JSON can hold it: numbers, text, and containers of them as they are; anything else as its text."""
    if type(value) is str:
        return clean(value, limit=_TEXT_BYTES)
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=True)
        return json.loads(text) if len(text) <= _TEXT_BYTES else clean(text, limit=_TEXT_BYTES)
    except BaseException:  # noqa: BLE001 - not JSON, too deep, or a class of the user's
        return clean(value, limit=_TEXT_BYTES)
