"""The tasks of one demo, before they are enqueued: a file each, a summary after each folder, a total after those."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

from pgqueue import demo
from pgqueue.config import Limits
from pgqueue.demo_sums import groups
from pgqueue.ids import new_id
from pgqueue.options import NewTask


class Plan:
    """Ids are minted here, so that a summary can name its files before anything is sent; they are in order."""

    def __init__(self, run: str, queue: str, *, limit: int = Limits.PARENTS) -> None:
        self._run = run
        self._queue = queue
        self._limit = limit
        self._summaries: list[UUID] = []
        self.files: list[NewTask] = []
        self.sums: list[NewTask] = []
        self.parents: dict[UUID, Sequence[UUID]] = {}
        """Of each summary, what it adds up, in order."""

    @property
    def tasks(self) -> list[NewTask]:
        """All of them, children after their parents."""
        return sorted((*self.files, *self.sums), key=lambda task: task.options["id"])

    def add(self, folders: Sequence[demo.Folder], root: bytes) -> None:
        """A task for each file, one at a time in each folder; and the folder's summary, whatever becomes of them."""
        for folder in folders:
            if not folder.names:
                continue
            agent = demo.agent_of(self._run, root, folder.path)
            ids = []
            for name in folder.names:
                new = demo.inventory.new(path=demo.encoded(os.path.join(folder.path, name)))
                ids.append(self._keep(self.files, new, agent=agent))
            summary = functools.partial(demo.summary.new, demo.encoded(folder.path))
            *_, last = self._over(ids, summary, on_parent_failure="run")
            self._summaries.append(last)

    def close(self) -> None:
        """The total. It needs every summary: it would be cancelled with one that is dead."""
        *_, self.total = self._over(self._summaries, demo.total.new)

    def _over(self, parents: Sequence[UUID], new: Callable[[int], NewTask], **options: Any) -> Iterator[UUID]:
        """One task after all of them, or, where that were too many parents, one after several others."""
        while len(parents) > self._limit:
            parts = []
            for number, group in enumerate(groups(parents, self._limit), 1):
                parts.append(self._keep(self.sums, new(number), depends_on=group, **options))
                yield parts[-1]
            parents, options = parts, {}  # a part that is missing would be a wrong sum
        yield self._keep(self.sums, new(0), depends_on=parents, **options)

    def _keep(self, among: list[NewTask], new: NewTask, **options: Any) -> UUID:
        task_id = new_id()
        among.append(
            NewTask(
                new.action,
                new.payload,
                {**new.options, "queue": self._queue, "id": task_id, **options},  # type: ignore[typeddict-item]
                new.encoded,
            )
        )
        if "depends_on" in options:
            self.parents[task_id] = options["depends_on"]
        return task_id
