"""What one enqueue may be told, declared once: `Action.using`, `Client.enqueue` and the command line read it here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, TypeAlias, TypedDict, cast
from uuid import UUID

from . import keys
from .config import Limits
from .errors import InputError
from .payload import JSON

__all__ = ["Duration", "Enqueued", "NewTask", "Options", "checked"]

Duration: TypeAlias = timedelta | float
"""A number means seconds."""


class Options(TypedDict, total=False):
    """Every option of an enqueue. What is left out is not set: it falls back to the action's, then to the default.

    id: the task's own id, for callers that must know it first (default: a fresh UUIDv7). An enqueue repeated
        with the same id returns the same task.
    queue: the line it waits in (default "default").
    agent: the lane it must run in, one at a time; None: anyone, in parallel.
    account: whose task it is; not interpreted.
    priority: -9 … 9, higher first.
    delay, not_before: when it becomes due; one of them at the most. `not_before` must be aware.
    max_attempts: 1 … 1,000 executions before it is dead.
    timeout: how long one attempt may run; None: no limit.
    dedupe_key: one active task per (agent, key); an enqueue that meets one adopts it.
    trigger: who asked, as JSON (user, workflow, system).
    metadata: trace context, tags, as JSON; not interpreted.
    """

    id: UUID
    queue: str
    agent: str | None
    account: str | None
    priority: int
    delay: Duration
    not_before: datetime
    max_attempts: int
    timeout: Duration | None
    dedupe_key: str | None
    trigger: Mapping[str, JSON] | None
    metadata: Mapping[str, JSON] | None


@dataclasses.dataclass(frozen=True, slots=True)
class Enqueued:
    """The id of the task that stands for this request, and whether this call made it.

    `created` is False when another active task holds the dedupe key (that one's id is returned and this call's
    payload and options are ignored), or when this very id was enqueued before.
    """

    id: UUID
    created: bool


@dataclasses.dataclass(frozen=True, slots=True)
class NewTask:
    """One request as a value: what `enqueue_many` takes.

    `payload` is JSON text when an `Action` made it, already converted and checked.
    """

    action: str
    payload: JSON | str
    options: Options
    encoded: bool = False


_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "queue": lambda value: keys.check_name(value, field="queue"),
    "agent": lambda value: None if value is None else keys.check_name(value, field="agent"),
    "account": lambda value: None if value is None else keys.check_name(value, field="account"),
    "priority": lambda value: keys.check_int(value, field="priority", low=Limits.PRIORITY[0], high=Limits.PRIORITY[1]),
    "delay": lambda value: keys.check_duration(value, field="delay"),
    "not_before": lambda value: keys.check_instant(value, field="not_before"),
    "max_attempts": lambda value: keys.check_int(
        value, field="max_attempts", low=Limits.MAX_ATTEMPTS[0], high=Limits.MAX_ATTEMPTS[1]
    ),
    "timeout": lambda value: None if value is None else keys.check_duration(value, field="timeout", low=0.001),
    "dedupe_key": lambda value: None if value in (None, "") else keys.check_name(value, field="dedupe_key"),
    "trigger": lambda value: value,
    "metadata": lambda value: value,
    "id": lambda value: value,
}


def checked(options: Options) -> Options:
    """The same options with every value in range and durations as timedelta; InputError names the first that is not."""
    unknown = options.keys() - _CHECKS.keys()
    if unknown:
        raise InputError(
            f"unknown option {sorted(unknown)[0]!r}; the options are: {', '.join(Options.__annotations__)}",
            field=sorted(unknown)[0],
        )
    if "delay" in options and "not_before" in options:
        raise InputError("delay and not_before were both given; give one of them", field="delay")
    if not isinstance(options.get("id", UUID(int=0)), UUID):
        raise InputError("id must be a uuid.UUID; pass UUID(text)", field="id")
    for name in ("trigger", "metadata"):
        if not isinstance(options.get(name) or {}, Mapping):
            raise InputError(f"{name} must be a mapping with string keys; pass a dict", field=name)
    return cast("Options", {name: _CHECKS[name](value) for name, value in options.items()})
