"""What the demo's summaries add up: files to folders, folders to the whole. Decides, and reads nothing itself."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from .config import Limits
from .lifecycle import Status

if TYPE_CHECKING:
    from uuid import UUID

    from .task import Parent, Task

__all__ = ["Sum", "compare", "early", "groups", "summed"]

T = TypeVar("T")

TOTAL = ""
"""What the whole is called where folders have their paths."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """What files come to: those that were read, and how many were not. `sha256` is over the digests, in order."""

    files: int
    missing: int
    bytes: int
    lines: int
    sha256: str

    @classmethod
    def of(cls, result: Any) -> Sum:
        """From what a task returned: a summary, or the inventory of one file. Without one, nothing that adds up."""
        told = result if isinstance(result, dict) else {}
        return cls(
            files=told.get("files", 1),
            missing=told.get("missing", 0),
            bytes=told.get("bytes", -1),
            lines=told.get("lines", -1),
            sha256=told.get("sha256", "none"),
        )

    @classmethod
    def over(cls, parts: Iterable[Sum | None], *, limit: int = Limits.PARENTS) -> Sum:
        """The sum of parts in their order; None is a file that could not be read.

        More parts than a task may have parents are added up in groups first, as the tasks do.
        """
        found = list(parts)
        while len(found) > limit:
            found = [cls.over(group) for group in groups(found, limit)]
        digest = hashlib.sha256()
        for part in found:
            digest.update(f"{'' if part is None else part.sha256}\n".encode())
        there = [part for part in found if part is not None]
        return cls(
            files=sum(part.files for part in there),
            missing=sum(part.missing for part in there) + len(found) - len(there),
            bytes=sum(part.bytes for part in there),
            lines=sum(part.lines for part in there),
            sha256=digest.hexdigest(),
        )


def groups(parts: Sequence[T], limit: int = Limits.PARENTS) -> list[Sequence[T]]:
    """The parts in their order, in groups of at most `limit`."""
    return [parts[start : start + limit] for start in range(0, len(parts), limit)]


def summed(parents: Iterable[Parent]) -> Sum:
    """What the parents of a task come to; one that is dead, cancelled or gone is missing."""
    return Sum.over(Sum.of(parent.result) if parent.status is Status.COMPLETED else None for parent in parents)


# -- compared with the walk


def folder_of(task: Task) -> str | None:
    """The folder that a task is the summary of; TOTAL for the total; None for a part of one, and for other tasks."""
    payload = task.payload
    if not isinstance(payload, dict) or payload.get("part"):
        return None
    return {"summary": str(payload.get("folder")), "total": TOTAL}.get(task.action)


def is_whole(task: Task) -> bool:
    """Whether it is a summary that has come to its end: of a whole folder, or the total."""
    return task.status is Status.COMPLETED and folder_of(task) is not None


def compare(expected: Mapping[str, Sequence[Sum | None]], tasks: Iterable[Task]) -> list[str]:
    """Where the summaries differ from what was expected, a line each, the total first.

    expected: by folder, what its files come to, in the order of their names.
    """
    sums = {folder: Sum.over(files) for folder, files in expected.items()}
    sums = {TOTAL: Sum.over(sums.values()), **sums}
    by_folder: dict[str, list[Task]] = {}
    wrong: list[str] = []
    for task in tasks:
        folder = folder_of(task)
        if folder is not None:
            by_folder.setdefault(folder, []).append(task)
        elif task.status is not Status.COMPLETED:
            wrong.append(f"a part of a {task.action} is {task.status}")
    for folder, right in sums.items():
        found = by_folder.pop(folder, [])
        name = _named(folder)
        if len(found) != 1:
            wrong.append(f"{name}: {len(found) or 'no'} summar{'y' if not found else 'ies instead of one'}")
        elif found[0].status is not Status.COMPLETED:
            wrong.append(f"{name}: its summary is {found[0].status} ({found[0].last_error or 'without an error'})")
        else:
            said = Sum.of(found[0].result)
            wrong += [
                f"{name}: the summary says {field} {getattr(said, field)}, the walk {getattr(right, field)}"
                for field in (field.name for field in dataclasses.fields(Sum))
                if getattr(said, field) != getattr(right, field)
            ]
    return wrong + [f"{_named(folder)}: a summary, though the walk found no such folder" for folder in by_folder]


def early(tasks: Iterable[Task], parents: Mapping[UUID, Sequence[UUID]]) -> list[str]:
    """Where a summary began before the last of what it depends on had ended, by the server's clock; a line each."""
    rows = {task.id: task for task in tasks}
    wrong = []
    for task_id, above in parents.items():
        began = rows[task_id].started_at if task_id in rows else None
        ends = [rows[parent].finished_at if parent in rows else None for parent in above]
        if began is None or any(end is None or end > began for end in ends):
            wrong.append(f"{_named(folder_of(rows[task_id]) if task_id in rows else None)}: added up too early")
    return wrong


def _named(folder: str | None) -> str:
    return "a part" if folder is None else folder or "total"
