"""Run handlers, on an event loop or in threads, and turn what they did into a settlement. Knows no database."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

from ..backoff import backoff_for, with_jitter
from ..config import Limits
from ..context import Context, Interrupted, Stop
from ..errors import PayloadError
from ..keys import check_duration, format_duration
from ..lifecycle import Event
from ..outcome import Permanent, RetryAfter, Snooze
from ..payload import encode
from ..sanitize import clean, describe
from ..store import Settlement
from .running import CANCELLED, LOST, SHUTDOWN, TIMEOUT, Running

__all__ = ["Executor", "Outcome"]

log = logging.getLogger("pgqueue.worker")

_PERMANENT = f"{Permanent.__module__}.{Permanent.__qualname__}: "
_CHANCE = Random()
_GROW_AFTER = 0.002
"""Seconds that a `def` task waits for a thread, while none comes free, before another is started."""
_CLEAN_UP = 1.0
"""Seconds that asyncio tasks of handlers' own have to unwind when the loop ends."""


class Outcome:
    """From what a handler did to the settlement that says so. Static and without I/O; tested as a table."""

    @staticmethod
    def of_return(run: Running, value: object) -> Settlement:
        """A normal return completes, even when a cancel was requested: the work is done."""
        if isinstance(value, Snooze):
            return Settlement(Event.SNOOZE, run.lease, None, check_duration(value.delay, field="delay"))
        if value is None:
            return Settlement(Event.COMPLETE, run.lease)
        try:
            text = encode(value, field="result", limit=Limits.RESULT_BYTES, action=run.claimed.action)
        except PayloadError as error:
            # Running it again would do the work again and end the same.
            return Settlement(Event.BURY, run.lease, f"the work is done, but its result cannot be kept: {error}")
        return Settlement(Event.COMPLETE, run.lease, text)

    @staticmethod
    def of_raise(run: Running, error: BaseException) -> Settlement | None:
        """An exception is a failed attempt, unless it says otherwise or the handler was asked to stop.

        None: the lease is lost, and so there is nothing to say.
        """
        asked = isinstance(error, Interrupted | asyncio.CancelledError)
        match run.reason:
            case reason if reason == LOST:
                return None
            case reason if reason == TIMEOUT:
                return Outcome._failed(run, _timed_out(run))
            case reason if reason == CANCELLED and asked:
                return Settlement(Event.ACKNOWLEDGE, run.lease)
            case reason if reason == SHUTDOWN and asked:
                return Settlement(Event.RELEASE, run.lease)
        if isinstance(error, Permanent):
            # A person reads the reason that the handler gave, not the name of our class.
            return Settlement(Event.BURY, run.lease, _described(error).removeprefix(_PERMANENT))
        if isinstance(error, RetryAfter):
            text = clean(error, limit=Limits.ERROR_BYTES) or "asked to be run again later"
            return Settlement(Event.FAIL, run.lease, text, error.delay)
        return Outcome._failed(run, _described(error))

    @staticmethod
    def of_payload(run: Running, error: PayloadError) -> Settlement:
        """A row that does not fit the handler is dead at once: no retry changes it."""
        return Settlement(Event.BURY, run.lease, f"the payload does not fit the handler: {error}")

    @staticmethod
    def of_uncommitted(run: Running) -> Settlement:
        """The handler completed the task in its own transaction. If that was committed this is refused, quietly."""
        return Outcome._failed(
            run, "the handler called ctx.complete, but its transaction was never committed: commit it before returning"
        )

    @staticmethod
    def of_stuck(run: Running) -> Settlement:
        """The handler runs on in its thread, and the process is about to end."""
        if run.reason == TIMEOUT:
            return Outcome._failed(run, f"{_timed_out(run)}; its thread did not stop, and the worker ended over it")
        return Settlement(Event.RELEASE, run.lease)

    @staticmethod
    def _failed(run: Running, text: str) -> Settlement:
        backoff = run.action.backoff if run.action is not None and run.action.backoff is not None else backoff_for
        try:
            delay = check_duration(backoff(run.claimed.attempt), field="backoff")
        except Exception as error:  # noqa: BLE001 - a policy of the user's; its fault must not lose the failure
            log.warning("the backoff of %s failed, using the default: %s", run.claimed.action, clean(error, limit=500))
            delay = backoff_for(run.claimed.attempt)
        return Settlement(Event.FAIL, run.lease, text, with_jitter(delay, _CHANCE))


def _described(error: BaseException) -> str:
    """The error with its traceback from the handler on: the worker's own frame says nothing to its reader."""
    trace = error.__traceback__
    if trace is not None and trace.tb_next is not None:
        error = error.with_traceback(trace.tb_next)
    return describe(error, limit=Limits.ERROR_BYTES)


def _timed_out(run: Running) -> str:
    return f"timed out after {format_duration(run.timeout) if run.timeout is not None else 'its limit'}"


class Executor:
    """Runs handlers: `async def` on one event loop of its own, `def` in threads, at most `threads` of them.

    `done(settlement)` takes each outcome; `lost(run)` a task whose lease was lost, which nobody settles. Made for many
    short handlers: one wake-up per batch on the loop's side, and threads that are started only where a task has been
    waiting for one.
    """

    def __init__(
        self,
        *,
        threads: int,
        done: Callable[[Settlement], None],
        lost: Callable[[Running], None],
        make_context: Callable[[Running, Stop, datetime | None], Context],
        close: Callable[[], Awaitable[None]],
    ) -> None:
        self._done = done
        self._lost = lost
        self._make_context = make_context
        self._close = close
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
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._loop_ends = False
        self._loop_thread = threading.Thread(target=self._run_loop, name="pgqueue-loop", daemon=True)

    def start(self) -> None:
        self._loop_thread.start()
        self._grower.start()

    def submit(self, runs: Sequence[Running]) -> None:
        """Start handlers, in order; returns at once."""
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
        """Ask a handler to stop: its asyncio task is cancelled, a thread sees `ctx.cancelled`."""
        run.stopper().set(reason)
        if run.asyncio_task is not None:
            self._loop.call_soon_threadsafe(run.asyncio_task.cancel)

    def drop_waiting(self) -> list[Running]:
        """Take back what waits for a thread and has not started."""
        dropped = []
        try:
            while True:
                item = self._queue.get_nowait()
                if item is not None:
                    dropped.append(item)
        except queue.Empty:
            return dropped

    def stop(self) -> None:
        """End idle threads and the loop. Threads inside a handler are daemons: they end with the process."""
        self._stops = True
        self._waiting.set()
        with self._grow_lock:
            for _ in self._threads:
                self._queue.put(None)
        if self._loop_thread.is_alive():
            self._loop.call_soon_threadsafe(self._end_loop)
            self._loop_thread.join(5)
        elif not self._loop.is_closed():
            self._loop.close()

    # -- both

    def _prepare(self, run: Running) -> tuple[tuple[object, ...], dict[str, object]]:
        """What to call the handler with. PayloadError: the row does not fit it."""
        assert run.action is not None  # noqa: S101 - unknown actions are sorted out before
        arguments = run.action.arguments
        payload = run.claimed.payload
        values = arguments.decode({} if payload is None else payload)
        deadline = None
        if run.timeout is not None:
            run.ends_at = time.monotonic() + run.timeout.total_seconds()
            deadline = datetime.now(UTC) + run.timeout
        run.started = True
        if arguments.injected is None:
            return (), values
        run.context = self._make_context(run, run.stopper(), deadline)
        return arguments.inject(run.context, values)

    def _returned(self, run: Running, value: object) -> None:
        run.ended = True
        if run.completed_itself:
            self._done(Outcome.of_uncommitted(run))
            return
        try:
            settlement = Outcome.of_return(run, value)
        except BaseException as error:  # noqa: BLE001 - the value is of the handler's own class
            self._raised(run, error)
        else:
            self._done(settlement)

    def _raised(self, run: Running, error: BaseException) -> None:
        run.ended = True
        settlement = Outcome.of_raise(run, error)
        if settlement is None:
            self._lost(run)
        else:
            self._done(settlement)

    def _misfit(self, run: Running, error: PayloadError) -> None:
        run.ended = True
        self._done(Outcome.of_payload(run, error))

    # -- on the loop

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        while not self._loop_ends:
            try:
                self._loop.run_forever()
            except BaseException as error:  # noqa: BLE001 - SystemExit in an asyncio task that a handler started
                log.warning("an asyncio task of a handler's raised %s, which ends no worker", type(error).__name__)
        # BaseException: a SystemExit in an asyncio task that a handler left behind must not keep the rest from its end.
        for last in (self._cancel_rest, self._loop.shutdown_asyncgens, self._close):
            with contextlib.suppress(BaseException):
                self._loop.run_until_complete(last())
        self._loop.close()

    async def _cancel_rest(self) -> None:
        """What handlers started on the loop and left running ends as under asyncio.run: cancelled, not destroyed."""
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest, timeout=_CLEAN_UP)

    def _end_loop(self) -> None:
        self._loop_ends = True
        self._loop.stop()

    def _start_on_loop(self, runs: Sequence[Running]) -> None:
        for run in runs:
            run.asyncio_task = self._loop.create_task(self._run_async(run))

    async def _run_async(self, run: Running) -> None:
        if run.reason is not None:
            # Asked to stop before `asyncio_task` was there to be cancelled.
            self._raised(run, asyncio.CancelledError())
            return
        try:
            args, kwargs = self._prepare(run)
        except PayloadError as error:
            self._misfit(run, error)
            return
        except BaseException as error:  # noqa: BLE001 - a class of the handler's own was being made
            self._raised(run, error)
            return
        try:
            value = await run.action.handler(*args, **kwargs)  # type: ignore[union-attr]
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            self._raised(run, error)
        else:
            self._returned(run, value)

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
            self._run_here(item)

    def _run_here(self, run: Running) -> None:
        if run.reason is not None:
            self._raised(run, Interrupted(run.reason))
            return
        try:
            args, kwargs = self._prepare(run)
        except PayloadError as error:
            self._misfit(run, error)
            return
        except BaseException as error:  # noqa: BLE001 - a class of the handler's own was being made
            self._raised(run, error)
            return
        try:
            value: Any = run.action.handler(*args, **kwargs)  # type: ignore[union-attr]
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            self._raised(run, error)
        else:
            if asyncio.iscoroutine(value):
                value.close()
                self._raised(run, TypeError("the handler returned a coroutine; declare it `async def`, or await it"))
            else:
                self._returned(run, value)


def unknown_action(run: Running) -> Settlement:
    """Nobody here knows this action: give it back, attempt and all, and longer each time."""
    return Settlement(Event.SNOOZE, run.lease, None, with_jitter(backoff_for(run.claimed.fence), _CHANCE))
