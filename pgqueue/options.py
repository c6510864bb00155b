"""What one enqueue may be told, declared once: `Action.using`, `Client.enqueue` and the command line read it here."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, cast
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
    dedupe: "active": the key is free again when its task has ended (the default); "forever": it is used once, ever.
    depends_on: the tasks, at most 10,000, that must complete before it starts: ids or what enqueue returned. One that
        does not exist yet is waited for, 5 minutes at the most.
    on_parent_failure: "cancel": it is cancelled when one of them is dead or cancelled (the default); "run": it starts
        all the same.
    requires: conditions that whoever claims it must offer.
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
    dedupe: Literal["active", "forever"]
    depends_on: Iterable[UUID | Enqueued]
    on_parent_failure: Literal["cancel", "run"]
    requires: Iterable[str]
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

    def __post_init__(self) -> None:
        once = [name for name in ("depends_on", "requires") if isinstance(self.options.get(name), Iterator)]
        if once:
            # Read more than once: for its row, for its edges, and where it is sent again.
            listed = {name: tuple(self.options[name]) for name in once}  # type: ignore[literal-required]
            object.__setattr__(self, "options", {**self.options, **listed})


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
    "dedupe": lambda value: keys.check_choice(value, field="dedupe", choices=("active", "forever")),
    "depends_on": lambda value: parent_ids(value),
    "on_parent_failure": lambda value: keys.check_choice(value, field="on_parent_failure", choices=("cancel", "run")),
    "requires": lambda value: keys.check_names(value, field="requires"),
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
    good = cast("Options", {name: _CHECKS[name](value) for name, value in options.items()})
    if good.get("dedupe") == "forever" and not good.get("dedupe_key"):
        raise InputError("dedupe='forever' needs a dedupe_key; give one", field="dedupe")
    if "depends_on" in good and options.get("id") in tuple(good["depends_on"]):
        raise InputError(
            f"task {options['id']} cannot depend on itself; leave it out of depends_on", field="depends_on"
        )
    return good


def parent_ids(parents: Iterable[UUID | Enqueued]) -> tuple[UUID, ...]:
    """The parents' ids, each once, in ascending order; InputError for anything else and for more than 10,000."""
    if isinstance(parents, (UUID, Enqueued, str)):
        raise InputError("depends_on must be a sequence of ids, not one; write [parent]", field="depends_on")
    if not isinstance(parents, Iterable):
        raise keys.refuse("depends_on", f"must be a sequence of ids, not {keys.shown(parents)}", "write [parent]")
    found: set[UUID] = set()
    for parent in parents:
        task_id = parent.id if isinstance(parent, Enqueued) else parent
        if not isinstance(task_id, UUID):
            raise InputError(
                f"depends_on must hold uuid.UUIDs or what enqueue returned, not {keys.shown(task_id)}; pass UUID(text)",
                field="depends_on",
            )
        found.add(task_id)
    if len(found) > Limits.PARENTS:
        raise InputError(
            f"depends_on names {len(found):,} tasks; the limit is {Limits.PARENTS:,}: put a task in between",
            field="depends_on",
        )
    return tuple(sorted(found))
