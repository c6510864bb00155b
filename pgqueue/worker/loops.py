"""An event loop in a thread of its own, which nothing that a handler does can end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable

__all__ = ["LoopThread"]

log = logging.getLogger("pgqueue.worker")

_CLEAN_UP = 1.0
"""Seconds that asyncio tasks of handlers' own have to unwind when the loop ends."""


class LoopThread:
    """The loop that `async def` handlers run on. `close` is awaited there, last of all, before it ends."""

    def __init__(self, close: Callable[[], Awaitable[None]]) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._close = close
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="pgqueue-loop", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, seconds: float) -> None:
        """End the loop, and wait at most so long for it. One that was never started is closed."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._end)
            self._thread.join(seconds)
        elif not self.loop.is_closed():
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._ends:
            try:
                self.loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - SystemExit in an asyncio task that a handler started
                log.warning("an asyncio task of a handler's raised %s, which ends no worker", type(error).__name__)
        # BaseException: a SystemExit in an asyncio task that a handler left behind must not keep the rest from its end.
        for last in (self._cancel_rest, self.loop.shutdown_asyncgens, self._close):
            with contextlib.suppress(BaseException):
                self.loop.run_until_complete(last())
        self.loop.close()

    async def _cancel_rest(self) -> None:
        """What handlers started on the loop and left running ends as under asyncio.run: cancelled, not destroyed."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLEAN_UP)

    def _end(self) -> None:
        self._ends = True
        self.loop.stop()
