"""A task and its events as JSON objects: keys are column names, and are only ever added to."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Final

from pgqueue.errors import PayloadError
from pgqueue.payload import decode

if TYPE_CHECKING:
    from pgqueue.task import Parent, Task, TaskEvent

_CONTENT: Final = ("payload", "result")
"""What tasks carry, which is shown only where somebody asks for it."""


def task_record(task: Task, *, content: bool = False) -> dict[str, Any]:
    """Every column; `payload` and `result` only with `content`."""
    record: dict[str, Any] = {}
    for field in dataclasses.fields(task):
        name, value = field.name.removesuffix("_text"), getattr(task, field.name)
        if name in _CONTENT and not content:
            continue
        record[name] = value if name == field.name else _decoded(value)
    return record


def event_record(event: TaskEvent) -> dict[str, Any]:
    return dataclasses.asdict(event)


def parent_record(parent: Parent) -> dict[str, Any]:
    """All but what it returned."""
    return {field.name: getattr(parent, field.name) for field in dataclasses.fields(parent) if field.repr}


def _decoded(text: str | None) -> Any:
    if text is None:
        return None
    try:
        return decode(text)
    except PayloadError:  # written by another client: jsonb holds numbers that Python does not read
        return text
