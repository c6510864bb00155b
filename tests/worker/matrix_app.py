"""Every way in which a handler can end, declared once for each executor: what test_matrix.py runs.

A module with an App at its top, as the processes of handlers have to import it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pgqueue import App, Context, Permanent, RetryAfter, Snooze

from ..support import eventually

THREAD, LOOP, PROCESS, PROCESS_ASYNC = EXECUTORS = ("thread", "loop", "process", "process-async")
LEASE: Final = 0.9
TIMEOUT: Final = 0.3
MEMORY: Final = 512 * 1024 * 1024

app = App("postgresql://aimed.by.the.test/")
gate = threading.Event()
"""Opened at the end: what runs on in threads of the test's own process ends then."""

SYNC: Final[dict[str, Callable[[Context], Any]]] = {}
ASYNC: Final[dict[str, Callable[[Context], Any]]] = {}
OPTIONS: Final[dict[str, dict[str, Any]]] = {}


class Bang(BaseException):
    """No Exception."""


class Hostile(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text for you")


def ending(name: str, **options: Any) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    """A handler that ends in the same way under `def` and `async def`, unless an `async def` of that name follows."""

    def declare(handler: Callable[[Context], Any]) -> Callable[[Context], Any]:
        if asyncio.iscoroutinefunction(handler):
            ASYNC[name] = handler
            return handler

        async def awaited(ctx: Context) -> Any:
            await asyncio.sleep(0)
            return handler(ctx)

        SYNC[name], ASYNC[name] = handler, awaited
        OPTIONS[name] = options
        return handler

    return declare


def raises(name: str, make: Callable[[], BaseException], **options: Any) -> None:
    def handler(ctx: Context) -> None:
        raise make()

    ending(name, **options)(handler)


def returns(name: str, make: Callable[[Context], Any]) -> None:
    def handler(ctx: Context) -> Any:
        return make(ctx)

    ending(name)(handler)


returns("return", lambda ctx: {"n": 1})
returns("not-json", lambda ctx: {"n": object()})
returns("snooze", lambda ctx: Snooze(3600))
raises("permanent", lambda: Permanent("no such parcel"), max_attempts=3)
raises("retry-after", lambda: RetryAfter(3600, "429 from the courier"), max_attempts=3)
raises("exception", lambda: LookupError("no such order"))
raises("base-exception", lambda: Bang("boom"))
raises("system-exit", lambda: SystemExit(3))
raises("keyboard-interrupt", KeyboardInterrupt)
raises("hostile-str", Hostile)
raises("nul", lambda: ValueError("a\0b\ud800c"))
raises("ten-megabytes", lambda: ValueError("x" * 10_000_000))
returns("os-exit", lambda ctx: os._exit(3))
returns("segfault", lambda ctx: ctypes.string_at(0))


@ending("memory", memory=MEMORY)
def memory(ctx: Context) -> int:
    return len(bytearray(8 * MEMORY))


@ending("coroutine")
def coroutine(ctx: Context) -> Any:
    return asyncio.sleep(0)


@ending("blocked")
def blocked(ctx: Context) -> None:
    """Blocks its thread, and the loop where it runs on one, until its lease was moved on by three times its length."""

    def outlived() -> bool:
        task = app.client.get(ctx.id)
        assert task.lease_expires_at is not None
        assert task.started_at is not None
        return (task.lease_expires_at - task.started_at).total_seconds() > 3 * LEASE

    eventually(outlived)


@ending("never-returns", timeout=TIMEOUT)
def never_returns(ctx: Context) -> None:
    gate.wait()


@ending("timeout", timeout=TIMEOUT)
def timeout(ctx: Context) -> None:
    ctx.sleep(60)


@ending("timeout")
async def atimeout(ctx: Context) -> None:
    await asyncio.sleep(60)


@ending("swallows", timeout=TIMEOUT)
def swallows(ctx: Context) -> None:
    while not gate.is_set():
        with contextlib.suppress(BaseException):
            ctx.sleep(0.01)
        time.sleep(0.01)


@ending("swallows")
async def aswallows(ctx: Context) -> None:
    while not gate.is_set():
        with contextlib.suppress(BaseException):
            await asyncio.sleep(0.01)


@ending("leaks-threads")
def leaks_threads(ctx: Context) -> int:
    for _ in range(3):
        threading.Thread(target=gate.wait).start()
    return 3


@ending("lost")
def lost(ctx: Context) -> str:
    ctx.progress(1, "begun")
    eventually(lambda: ctx.cancelled)
    return "too late"


@ending("lost")
async def alost(ctx: Context) -> str:
    ctx.progress(1, "begun")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "too late"


@ending("cancel-obeys")
def cancel_obeys(ctx: Context) -> None:
    ctx.progress(1, "begun")
    ctx.sleep(60)


@ending("cancel-obeys")
async def acancel_obeys(ctx: Context) -> None:
    ctx.progress(1, "begun")
    await asyncio.sleep(60)


@ending("cancel-returns")
def cancel_returns(ctx: Context) -> str:
    ctx.progress(1, "begun")
    eventually(lambda: ctx.cancelled)
    return "the last step"


@ending("cancel-returns")
async def acancel_returns(ctx: Context) -> str:
    ctx.progress(1, "begun")
    with contextlib.suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    return "the last step"


@ending("cancel-ignores")
def cancel_ignores(ctx: Context) -> None:
    ctx.progress(1, "begun")
    gate.wait()


@ending("cancel-ignores")
async def acancel_ignores(ctx: Context) -> None:
    ctx.progress(1, "begun")
    await aswallows(ctx)


CRASHES: Final = ("os-exit", "segfault")
STUCK: Final = ("never-returns", "swallows", "cancel-ignores")
"""What nothing but the end of a process can stop."""


def has(executor: str, name: str) -> bool:
    """Whether there is such a cell: in the test's own process nothing may crash it, and memory has no limit there."""
    return executor.startswith("process") or name not in (*CRASHES, "memory")


def queue_of(executor: str, name: str) -> str:
    """Those that somebody else claims, and those that hold up or end their worker, have a queue of their own."""
    alone = name == "lost" or (name in ("blocked", *STUCK) and not executor.startswith("process"))
    return f"{executor}/{name}" if alone else executor


def declare() -> None:
    for executor in EXECUTORS:
        handlers = SYNC if executor in (THREAD, PROCESS) else ASYNC
        for name, handler in handlers.items():
            if has(executor, name):
                options = {"max_attempts": 1, **OPTIONS[name]}
                if executor.startswith("process"):
                    options["isolation"] = "process"
                app.task(name=f"{executor}/{name}", queue=queue_of(executor, name), **options)(handler)


declare()
