"""Call a handler, and turn what it did into a settlement: the same code in a thread, on the loop and in a process.

Knows no database, no threads and no other process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
import types
from collections.abc import Callable, Mapping
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

__all__ = ["Calls", "Outcome", "unknown_action"]

log = logging.getLogger("pgqueue.worker")

_PERMANENT = f"{Permanent.__module__}.{Permanent.__qualname__}: "
_CHANCE = Random()
_HERE = os.path.join(os.path.dirname(__file__), "")


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
        if isinstance(error, MemoryError) and (limit := run.memory) is not None:
            return Outcome._failed(run, f"out of memory: it may use {_mebibytes(limit)}\n\n{_described(error)}")
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
    def of_kill(run: Running) -> Settlement | None:
        """Its process was killed, as it had been asked to stop and did not. None: the lease is lost."""
        match run.reason:
            case reason if reason == LOST:
                return None
            case reason if reason == TIMEOUT:
                return Outcome._failed(run, f"{_timed_out(run)}; it did not stop, and its process was killed")
            case reason if reason == CANCELLED:
                return Settlement(Event.ACKNOWLEDGE, run.lease)
        return Settlement(Event.RELEASE, run.lease)

    @staticmethod
    def of_death(run: Running, how: str) -> Settlement | None:
        """Its process ended by itself, over the handler or before it. None: the lease is lost."""
        if run.reason == LOST:
            return None
        limit = "" if run.memory is None else f" (its memory limit is {_mebibytes(run.memory)})"
        return Outcome._failed(run, f"{how}{limit}")

    @staticmethod
    def _failed(run: Running, text: str) -> Settlement:
        backoff = run.action.backoff if run.action is not None and run.action.backoff is not None else backoff_for
        try:
            delay = check_duration(backoff(run.claimed.attempt), field="backoff")
        except Exception as error:  # noqa: BLE001 - a policy of the user's; its fault must not lose the failure
            log.warning("the backoff of %s failed, using the default: %s", run.claimed.action, clean(error, limit=500))
            delay = backoff_for(run.claimed.attempt)
        return Settlement(Event.FAIL, run.lease, text, with_jitter(delay, _CHANCE))


class Calls:
    """Calls handlers. Each method returns the settlement, or None where the lease is lost and nobody settles.

    `run.ended` is true from then on.
    """

    def __init__(self, make_context: Callable[[Running, Stop, datetime | None], Context]) -> None:
        self._make_context = make_context

    def call(self, run: Running) -> Settlement | None:
        """Run a `def` handler here, to its end."""
        if run.reason is not None:
            return self.raised(run, Interrupted(run.reason))
        try:
            args, kwargs = self._prepare(run)
        except PayloadError as error:
            return self._misfit(run, error)
        except BaseException as error:  # noqa: BLE001 - a class of the handler's own was being made
            return self.raised(run, error)
        try:
            value = self._invoke(run, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            return self.raised(run, error)
        return self._returned(run, value)

    async def acall(self, run: Running) -> Settlement | None:
        """Run an `async def` handler on this loop, to its end."""
        if run.reason is not None:
            # Asked to stop before there was an asyncio task to cancel.
            return self.raised(run, asyncio.CancelledError())
        try:
            args, kwargs = self._prepare(run)
        except PayloadError as error:
            return self._misfit(run, error)
        except BaseException as error:  # noqa: BLE001 - a class of the handler's own was being made
            return self.raised(run, error)
        try:
            value = await self._invoke(run, args, kwargs)
        except BaseException as error:  # noqa: BLE001 - SystemExit in a handler is a failed attempt, not the worker's end
            return self.raised(run, error)
        return self._returned(run, value)

    def raised(self, run: Running, error: BaseException) -> Settlement | None:
        """What an exception comes to, raised by the handler or in its place."""
        run.ended = True
        return Outcome.of_raise(run, error)

    def _invoke(self, run: Running, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        return run.action.bound(run.context, args, kwargs)()  # type: ignore[union-attr]

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
        if not run.action.needs_context:
            return (), values
        run.context = self._make_context(run, run.stopper(), deadline)
        return arguments.inject(run.context, values)

    def _returned(self, run: Running, value: object) -> Settlement | None:
        run.ended = True
        if type(value) is types.CoroutineType:
            value.close()
            return self.raised(run, TypeError("the handler returned a coroutine; declare it `async def`, or await it"))
        if run.completed_itself:
            return Outcome.of_uncommitted(run)
        try:
            return Outcome.of_return(run, value)
        except BaseException as error:  # noqa: BLE001 - the value is of the handler's own class
            return self.raised(run, error)

    def _misfit(self, run: Running, error: PayloadError) -> Settlement:
        run.ended = True
        return Outcome.of_payload(run, error)


def unknown_action(run: Running) -> Settlement:
    """Nobody here knows this action: give it back, attempt and all, and longer each time."""
    return Settlement(Event.SNOOZE, run.lease, None, with_jitter(backoff_for(run.claimed.fence), _CHANCE))


def _described(error: BaseException) -> str:
    """The error with its traceback from the handler on: the worker's own frames say nothing to its reader."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and trace.tb_frame.f_code.co_filename.startswith(_HERE):
        trace = trace.tb_next
    return describe(error.with_traceback(trace), limit=Limits.ERROR_BYTES)


def _timed_out(run: Running) -> str:
    return f"timed out after {format_duration(run.timeout) if run.timeout is not None else 'its limit'}"


def _mebibytes(size: int) -> str:
    return f"{size / 1024**2:,.0f} MiB"
