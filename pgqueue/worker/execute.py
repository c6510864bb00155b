"""Run handlers, on an event loop, in threads or in processes. Knows no database."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from datetime import datetime
from typing import Any, TypeVar

from .. import logs
from ..context import Context, Stop
from ..store import Settlement
from .calls import Calls
from .loops import LoopThread
from .processes import Processes
from .running import Running

__all__ = ["Executor"]

T = TypeVar("T")

_GROW_AFTER = 0.002
"""Seconds that a `def` task waits for a thread, while none comes free, before another is started."""


class Executor:
    """Runs handlers: `async def` on one event loop of its own, `def` in threads, at most `threads` of them, and those
    that ask for it in `processes`.

    `done(settlement)` takes each outcome; `lost(run)` a task whose lease was lost, which nobody settles. Made for many
    short handlers: one wake-up per batch on the loop's side, and threads that are started only where a task has been
    waiting for one. `worker` is the worker's name, for what handlers log.
    """

    def __init__(
        self,
        *,
        threads: int,
        done: Callable[[Settlement], None],
        lost: Callable[[Running], None],
        make_context: Callable[[Running, Stop, datetime | None], Context],
        close: Callable[[], Awaitable[None]],
        processes: Processes | None = None,
        worker: str = "",
    ) -> None:
        self._done = done
        self._lost = lost
        self._calls = Calls(make_context)
        self._processes = processes
        self._worker = worker
        self._max_threads = threads
        self._queue: queue.SimpleQueue[Running | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._idle_lock = threading.Lock()
        # Counted without a lock: a lost count delays the next thread by one look.
        self._taken = 0
        self._grow_lock = threading.Lock()
        self._waiting = threading.Event()
        self._stops = False
        self._grower = threading.Thread(target=self._grow_where_needed, name="pgqueue-grower", daemon=True)
        self._loop_thread = LoopThread(close)
        self._loop: asyncio.AbstractEventLoop = self._loop_thread.loop

    def start(self) -> None:
        self._loop_thread.start()
        self._grower.start()
        if self._processes is not None:
            self._processes.start()

    @property
    def alive(self) -> bool:
        return self._loop_thread.alive

    def on_loop(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run it on the handlers' loop, beside them."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def submit(self, runs: Sequence[Running]) -> None:
        """Start handlers, in order; returns at once."""
        if self._processes is not None:
            in_processes = [run for run in runs if run.killable]
            if in_processes:
                self._processes.submit(in_processes)
                runs = [run for run in runs if not run.killable]
        on_loop = [run for run in runs if run.action is not None and run.action.is_async]
        if on_loop:
            self._loop.call_soon_threadsafe(self._start_on_loop, on_loop)
        if len(on_loop) < len(runs):
            for run in runs:
                if run.action is not None and not run.action.is_async:
                    self._queue.put(run)
            if self._idle == 0:
                self._grow(1)
            self._waiting.set()

    def interrupt(self, run: Running, reason: str) -> None:
        """Ask a handler to stop: its asyncio task is cancelled, a thread sees `ctx.cancelled`, a process hears of it
        and is killed if that does not help.
        """
        run.stopper().set(reason)
        if run.asyncio_task is not None:
            self._loop.call_soon_threadsafe(run.asyncio_task.cancel)
        if self._processes is not None and run.killable:
            self._processes.interrupt(run)

    def kill(self) -> None:
        """Kill the processes whose handlers were asked to stop; their outcomes have been said when this returns."""
        if self._processes is not None:
            self._processes.kill()

    def drop_waiting(self) -> list[Running]:
        """Take back what waits for a thread or a process and has not started."""
        dropped = self._processes.drop_waiting() if self._processes is not None else []
        try:
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    dropped.append(item)
        except queue.Empty:
            return dropped

    def stop(self) -> None:
        """End processes, idle threads and the loop. Threads inside a handler are daemons: they end with the process."""
        self._stops = True
        self._waiting.set()
        with self._grow_lock:
            for _ in self._threads:
                self._queue.put(None)
        if self._processes is not None:
            self._processes.stop()
        self._loop_thread.stop(5)

    def _say(self, run: Running, settlement: Settlement | None) -> None:
        if settlement is None:
            self._lost(run)
        else:
            self._done(settlement)

    # -- on the loop

    def _start_on_loop(self, runs: Sequence[Running]) -> None:
        for run in runs:
            run.asyncio_task = self._loop.create_task(self._run_async(run))

    async def _run_async(self, run: Running) -> None:
        # Never left again: an asyncio task has a context of its own.
        logs.enter(run.claimed, self._worker)
        self._say(run, await self._calls.acall(run))

    # -- in threads

    def _grow(self, wanted: int) -> None:
        with self._grow_lock:
            for _ in range(0 if self._stops else min(wanted, self._max_threads - len(self._threads))):
                thread = threading.Thread(target=self._work, name=f"pgqueue-handler-{len(self._threads)}", daemon=True)
                self._threads.append(thread)
                thread.start()

    def _grow_where_needed(self) -> None:
        """Start threads where nothing was taken up for a moment; not for a queue that empties by itself.

        Many short handlers then run in few threads, and a long one keeps nobody waiting for more than milliseconds. In
        a thread of its own: the one that claims may be waiting for the database.
        """
        while not self._stops:
            self._waiting.wait()
            self._waiting.clear()
            while not self._queue.empty() and len(self._threads) < self._max_threads and not self._stops:
                taken = self._taken
                time.sleep(_GROW_AFTER)
                if self._taken == taken:
                    self._grow(min(8, self._queue.qsize()))

    def _work(self) -> None:
        while True:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                with self._idle_lock:
                    self._idle += 1
                item = self._queue.get()
                with self._idle_lock:
                    self._idle -= 1
            if item is None:
                return
            self._taken += 1
            token = logs.enter(item.claimed, self._worker)
            self._say(item, self._calls.call(item))
            logs.leave(token)
