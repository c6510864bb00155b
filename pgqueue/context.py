"""What a handler may know and say about the task it runs: `Context`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

from .config import Limits
from .errors import InputError
from .ids import new_id
from .keys import check_duration, check_int
from .sanitize import clean

if TYPE_CHECKING:
    from datetime import timedelta

    from .client import AsyncClient, Client
    from .guest import AnyAsyncConnection, AnyConnection
    from .task import Claimed, Parent

__all__ = ["Context", "Interrupted", "Stop"]


class Interrupted(Exception):
    """Raised by `Context.check` when the handler should stop: let it pass, and the worker settles accordingly."""


class Stop:
    """The request to stop that the worker and one running handler share. The first reason stays."""

    __slots__ = ("_event", "reason")

    def __init__(self) -> None:
        self.reason: str | None = None
        self._event = threading.Event()

    def set(self, reason: str) -> None:
        if self.reason is None:
            self.reason = reason
            self._event.set()

    def wait(self, seconds: float) -> bool:
        """Wait at most so long; True when asked to stop."""
        return self._event.wait(seconds)


class Context:
    """Injected where a handler annotates a parameter `Context`.

    id, action, queue, agent, attempt (from 1), max_attempts, fence: the task's. `fence` grows with every claim of the
    task: hand it to systems outside Postgres that can refuse a smaller one. `deadline`: when this attempt times out,
    by this machine's clock, or None.
    """

    def __init__(
        self,
        claimed: Claimed | None,
        *,
        stop: Stop | None = None,
        client: Client | None = None,
        async_client: Callable[[], AsyncClient] | None = None,
        progress: Callable[[int, str | None], None] | None = None,
        deadline: datetime | None = None,
        action: str = "",
    ) -> None:
        self._claimed = claimed
        self._stop = stop or Stop()
        self._client = client
        self._async_client = async_client
        self._progress = progress
        self._completed = False
        self.deadline = deadline
        self.id: UUID = claimed.id if claimed is not None else new_id()
        self.action = claimed.action if claimed is not None else action
        self.queue = claimed.queue if claimed is not None else ""
        self.agent = claimed.agent if claimed is not None else None
        self.account = claimed.account if claimed is not None else None
        self.attempt = claimed.attempt if claimed is not None else 1
        self.max_attempts = claimed.max_attempts if claimed is not None else 1
        self.fence = claimed.fence if claimed is not None else 0

    def __repr__(self) -> str:
        return f"Context({self.action!r}, id={self.id}, attempt={self.attempt}, fence={self.fence})"

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: cancelled, timed out, the lease lost, or the worker is going."""
        return self._stop.reason is not None

    def check(self) -> None:
        """Raise `Interrupted` when the handler should stop; call it between steps."""
        if self._stop.reason is not None:
            raise Interrupted(self._stop.reason)

    def sleep(self, seconds: float | timedelta) -> None:
        """Sleep, but no longer than until the handler should stop; then raise `Interrupted`. For `def` handlers."""
        if self._stop.wait(check_duration(seconds, field="seconds").total_seconds()):
            self.check()

    def progress(self, percent: int, message: str | None = None) -> None:
        """Say how far it is, 0 … 100, and what is being done. Written within a second; the last one counts."""
        check_int(percent, field="percent", low=0, high=100)
        if self._progress is not None:
            text = None if message is None else clean(message, limit=Limits.MESSAGE_BYTES)
            self._progress(percent, text)

    def parents(self) -> list[Parent]:
        """The tasks that this one depended on, in the order of their ids, with their results. For `def` handlers."""
        if self._claimed is None or self._client is None:
            raise _here("parents")
        return self._client.parents(self._claimed.id)

    async def aparents(self) -> list[Parent]:
        """`parents` for `async def` handlers."""
        if self._claimed is None or self._async_client is None:
            raise _here("aparents")
        return await self._async_client().parents(self._claimed.id)

    def complete(self, result: object = None, *, connection: AnyConnection) -> None:
        """Complete the task in the caller's transaction: its rows and the task's completion commit together.

        Commit before returning; a handler that returns without having committed has failed, and says so. LeaseNotHeld:
        somebody else has the task now: roll back.
        """
        if self._claimed is None or self._client is None:
            raise _here("complete")
        self._client.on(connection).complete(self._claimed, result)  # type: ignore[arg-type]
        self._completed = True

    async def acomplete(self, result: object = None, *, connection: AnyAsyncConnection) -> None:
        """`complete` for an asynchronous connection."""
        if self._claimed is None or self._async_client is None:
            raise _here("acomplete")
        await self._async_client().on(connection).complete(self._claimed, result)  # type: ignore[arg-type]
        self._completed = True


def _here(verb: str) -> InputError:
    return InputError(
        f"ctx.{verb} needs a task that a worker claimed; this handler was called directly: let a worker run it",
    )
