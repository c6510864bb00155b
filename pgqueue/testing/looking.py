"""What was enqueued, and assertions about it."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..app import Action
from ..errors import InputError, PayloadError
from ..ids import tail
from ..options import Options

if TYPE_CHECKING:
    from ..app import App
    from ..client import Client
    from ..task import Task

__all__ = ["assert_enqueued", "enqueued"]

_PAGE = 1000
_SHOWN = 20
"""Tasks that a failure lists."""
_MISSING = object()


def enqueued(what: App | Action[..., Any], /, **payload: Any) -> list[Task]:
    """The tasks that are there, whatever their status, oldest first: of an App, or of one Action.

    An action's may be narrowed: by options, `enqueued(send.using(queue="mail"))`, and by arguments, as the handler gets
    them (converted, defaults included); those that are not named may be anything. It reads all of them: for tests.

    In an uncommitted transaction: within `in_transaction`. InputError for an argument that the handler does not take.
    """
    if not isinstance(what, Action):
        if payload:
            raise InputError("arguments are an action's: enqueued(action, to=…)", field=min(payload))
        return _all(what.client)
    _check(what, payload)
    return [task for task in _of(what) if _fits(what, task, payload)]


def assert_enqueued(action: Action[..., Any], count: int | None = None, /, **payload: Any) -> list[Task]:
    """AssertionError unless a task of the action, with these options and arguments, is there; see `enqueued`.

    count: exactly so many; 0: none. Returns those that fit. The failure says what is there instead.
    """
    found = enqueued(action, **payload)
    if found if count is None else len(found) == count:
        return found
    wanted = f"task of {action.name}{_with(action, payload)}"
    there = f"no {wanted}" if not found else f"{len(found)} × {wanted}"
    expected = "" if count is None else f", expected {count}"
    raise AssertionError(f"{there}{expected}; {_what_there_is(action)}")


def _all(client: Client, **filters: Any) -> list[Task]:
    found: list[Task] = []
    page = client.list_tasks(limit=_PAGE, **filters)
    found += page.tasks
    while page.next is not None:
        page = client.list_tasks(limit=_PAGE, before=page.next, **filters)
        found += page.tasks
    return found[::-1]


def _of(action: Action[..., Any]) -> list[Task]:
    names = (action.name, *action.aliases)
    tasks = [task for name in names for task in _all(action.app.client, action=name)]
    return sorted(tasks, key=lambda task: task.id)


def _check(action: Action[..., Any], payload: Mapping[str, object]) -> None:
    takes = _parameters(action)
    anything = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in takes.values())
    for name in payload:
        if name == action.arguments.injected or not (anything or name in takes):
            known = ", ".join(one for one in takes if one != action.arguments.injected) or "none"
            raise InputError(f"{action.name} takes no argument {name!r}; its arguments are: {known}", field=name)
    for option in ("delay", "depends_on", "dedupe"):
        if option in action.options:
            raise InputError(
                f"{option} is no column of a task; look at what `enqueued` returns (not_before, waiting_on, …)",
                field=option,
            )


def _parameters(action: Action[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(action.handler).parameters


def _fits(action: Action[..., Any], task: Task, payload: Mapping[str, object]) -> bool:
    if not all(_column(task, name) == wanted for name, wanted in _options(action.options)):
        return False
    if not payload:
        return True
    try:
        values = action.arguments.decode({} if task.payload is None else task.payload)
    except PayloadError:
        return False
    takes = _parameters(action)
    for name, wanted in payload.items():
        default = takes[name].default if name in takes else _MISSING
        if values.get(name, default) != wanted:
            return False
    return True


def _options(options: Options) -> Iterator[tuple[str, object]]:
    for name, value in options.items():
        yield name, tuple(value) if name == "requires" else value  # type: ignore[arg-type]


def _column(task: Task, name: str) -> object:
    return getattr(task, name)


def _with(action: Action[..., Any], payload: Mapping[str, object]) -> str:
    parts = [f"{name}={value!r}" for name, value in (*_options(action.options), *payload.items())]
    return f" with {', '.join(parts)}" if parts else ""


def _what_there_is(action: Action[..., Any]) -> str:
    own = _of(action)
    names = {action.name, *action.aliases}
    others = Counter(task.action for task in _all(action.app.client) if task.action not in names)
    listed = ", ".join(f"{count} × {name}" for name, count in sorted(others.items()))
    rest = f"of other actions: {listed}" if others else "of other actions: none"
    if not own:
        return f"there is no task of it at all; {rest}"
    lines = [f"  {_line(task)}" for task in own[:_SHOWN]]
    if len(own) > _SHOWN:
        lines.append(f"  … and {len(own) - _SHOWN} more")
    return "\n".join([f"there are, of {action.name}:", *lines, rest])


def _line(task: Task) -> str:
    marks = [f"queue={task.queue}"]
    marks += [f"{name}={getattr(task, name)}" for name in ("agent", "account", "dedupe_key") if getattr(task, name)]
    if task.priority:
        marks.append(f"priority={task.priority}")
    return f"{tail(task.id)} {task.status} {' '.join(marks)} {json.dumps(task.payload, ensure_ascii=False)[:500]}"
