"""What `App(lifespan=…)` opens: entered and left in one asyncio task, as cancel scopes and task groups need it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from ..errors import LifespanFailed, PgqueueError
from ..sanitize import clean, one_line

if TYPE_CHECKING:
    from ..app import App

__all__ = ["Opened"]

log = logging.getLogger("pgqueue.worker")


class Opened:
    """One opening of an app's lifespan. `enter` and `leave` are awaited on one loop, which runs what is in between.

    `state` is what it yielded; None without a lifespan, and before `enter`.
    """

    def __init__(self, app: App) -> None:
        self._app = app
        self._task: asyncio.Task[None] | None = None
        self._entered = asyncio.Event()
        self._leaving = asyncio.Event()
        self.state: Any = None

    async def enter(self) -> Any:
        """Open it; returns what it yields. LifespanFailed, in one line, where it raises. Cancelled: it is unwound."""
        if self._app.lifespan is None:
            return None
        self._task = asyncio.create_task(self._hold(), name="pgqueue-lifespan")
        entered = asyncio.create_task(self._entered.wait())
        try:
            await asyncio.wait((self._task, entered), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._task.cancel()
            await asyncio.wait((self._task,))
            raise
        finally:
            entered.cancel()
        if self._entered.is_set():
            return self.state
        task, self._task = self._task, None
        error = None if task.cancelled() else task.exception()
        raise _failed(error or asyncio.CancelledError("cancelled while it opened")) from error

    async def leave(self) -> None:
        """Close it. What it raises then is logged, and no more than that: the work is done."""
        task, self._task = self._task, None
        if task is None:
            return
        self._leaving.set()
        await asyncio.wait((task,))
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("the lifespan failed at its end: %s", _line(error), exc_info=error)

    async def _hold(self) -> None:
        try:
            assert self._app.lifespan is not None  # noqa: S101 - looked at by `enter`
            async with _asynchronous(self._app.lifespan(self._app)) as self.state:
                self._entered.set()
                await self._leaving.wait()
        except (KeyboardInterrupt, SystemExit) as error:
            # Raised on, these would end the loop that they happen to run on.
            raise RuntimeError(f"it raised {type(error).__name__}") from error


@asynccontextmanager
async def _asynchronous(
    manager: AbstractAsyncContextManager[Any] | AbstractContextManager[Any],
) -> AsyncIterator[Any]:
    if isinstance(manager, AbstractAsyncContextManager):
        async with manager as state:
            yield state
    elif isinstance(manager, AbstractContextManager):
        with manager as state:
            yield state
    else:
        # The annotation says what it must be, and nobody may have checked it.
        with contextlib.suppress(AttributeError):  # type: ignore[unreachable,unused-ignore]
            manager.close()
        raise TypeError(f"it gave a {type(manager).__name__}, not a context manager; decorate it with @contextmanager")


def _failed(error: BaseException) -> PgqueueError:
    return LifespanFailed(
        f"the App's lifespan failed, and nothing was claimed: {_line(error)}; mend it, then start again"
    )


def _line(error: BaseException) -> str:
    return one_line(clean(f"{type(error).__name__}: {error}", limit=1000), 500)
