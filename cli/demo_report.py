"""What came of a demo, as a value: what is shown, compared and printed as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final
from uuid import UUID

from pgqueue.ids import tail

_BRANCHES: Final = 5
"""Folders that the report shows under the total."""


def tasks_of(count: int) -> str:
    """The count in words: 1 task, 2 tasks."""
    return f"{count:,} task{'' if count == 1 else 's'}"


@dataclasses.dataclass(frozen=True)
class Dead:
    """A task that is dead: which file, and why."""

    id: str
    tail: str
    file: str
    error: str


@dataclasses.dataclass(frozen=True)
class Branch:
    """What one summary says. name: its folder, from where the demo looked; empty for the total."""

    id: str
    tail: str
    name: str
    files: int
    missing: int
    bytes: int
    lines: int


def branches(summaries: Iterable[Branch]) -> list[Branch]:
    """Those that are shown: the total, the folders that miss most, and the largest."""
    found = sorted(summaries, key=lambda one: (one.name != "", -one.missing, -one.bytes, one.name))
    return found[: _BRANCHES + 1]


@dataclasses.dataclass(frozen=True)
class Kill:
    """A worker that was killed, and what it held in that moment."""

    worker: str
    pid: int
    held: list[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """What came of it. Its fields are those of the JSON object."""

    queue: str
    database: str
    directory: str
    workers: int
    files: int
    folders: int
    bytes: int
    lines: int
    digest: str
    tasks: int
    completed: int
    attempts: int
    seconds: float
    """From the first start of a task to the last end, by the server's clock."""
    summaries: int
    """Tasks that add others up: one per folder, and the total."""
    missing: int
    """Files that the total misses."""
    tree: list[Branch]
    """The total, and a few of the folders under it."""
    dead: list[Dead]
    kill_one: bool
    kill: Kill | None
    rerun_ids: list[str]
    """Tasks that had more than one attempt."""
    ordered: bool
    differences: list[str]
    commands: list[str]
    logs: str | None
    """Where the workers' logs were left: only where something is wrong."""

    @property
    def matches(self) -> bool:
        return not self.differences

    @property
    def rate(self) -> float:
        return self.tasks / self.seconds if self.seconds else 0.0

    @property
    def rerun(self) -> int:
        return len(self.rerun_ids)

    @property
    def order(self) -> str:
        kept = "one at a time and in order" if self.ordered else "NOT one at a time and in order"
        return f"{kept} in each folder, by the server's clock"

    @property
    def killed(self) -> str | None:
        if self.kill is None:
            return "nobody: all was done before the moment came; name a larger DIR" if self.kill_one else None
        name, held = self.kill.worker.rpartition("/")[2], tasks_of(len(self.kill.held))
        who = f"{name} (pid {self.kill.pid}) by SIGKILL, holding {held}"
        if not self.rerun:
            return f"{who}, which it had just ended"
        some = ", ".join(tail(UUID(one)) for one in self.rerun_ids[:2])
        return f"{who}; run again after the lease: {self.rerun:,} ({some}{', …' if self.rerun > 2 else ''})"

    def complaint(self) -> str:
        shown = "; ".join(self.differences[:3])
        more = f"; and {len(self.differences) - 3:,} more" if len(self.differences) > 3 else ""
        return f"tasks and direct walk differ: {shown}{more} (the workers' logs are in {self.logs})"

    def record(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"matches": self.matches, "rate": round(self.rate, 1), "rerun": self.rerun}
