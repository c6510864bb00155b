"""Handlers in processes that tell what they find there: what test_processes.py runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from pgqueue import App, Context
from pgqueue.logs import context

from ..support import eventually

if "BROKEN" in os.environ:
    raise ImportError("no such library on this machine")

opened: list[int] = []


@contextlib.contextmanager
def lifespan(app: App) -> Iterator[dict[str, int]]:
    opened.append(os.getpid())
    yield {"opened": len(opened), "pid": os.getpid()}
    if "LEFT" in os.environ:
        with Path(os.environ["LEFT"]).open("a") as file:
            file.write(f"{os.getpid()}\n")


app = App("postgresql://aimed.by.the.test/", lifespan=lifespan)


@app.task(isolation="process")
def whoami(ctx: Context) -> dict[str, Any]:
    """What this process is and has."""
    descriptors = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            descriptors[name] = os.readlink(f"/proc/self/fd/{name}")
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0),
        "group": os.getpgrp(),
        "main": threading.current_thread() is threading.main_thread(),
        "directory": os.getcwd(),
        "path": sys.path,
        "arguments": sys.argv,
        "descriptors": descriptors,
        "state": ctx.state,
        "attempt": ctx.attempt,
        "signals": {
            "SIGTERM": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "blocked": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        },
        "memory": resource.getrlimit(resource.RLIMIT_DATA)[0],
        "log": {name: str(value) for name, value in context().items()},
    }


@app.task(isolation="process")
async def awhoami(ctx: Context) -> dict[str, Any]:
    await asyncio.sleep(0)
    return {"pid": os.getpid(), "log": {name: str(value) for name, value in context().items()}, "state": ctx.state}


@app.task(isolation="process", memory=300 * 1024 * 1024)
def limited() -> int:
    return resource.getrlimit(resource.RLIMIT_DATA)[0]


@app.task(isolation="process")
def reports(ctx: Context) -> None:
    ctx.progress(40, "forty")
    eventually(lambda: app.client.get(ctx.id).message == "forty")


@app.task(isolation="process", max_attempts=1)
def completes(ctx: Context, commit: bool) -> str:
    with psycopg.connect(app.database.url) as connection:
        # Two at once would both find that there is none.
        connection.execute("select pg_advisory_xact_lock(4711)")
        connection.execute("create table if not exists effects (id uuid)")
        connection.execute("insert into effects values (%s)", [ctx.id])
        ctx.complete("by hand", connection=connection)
        if not commit:
            connection.rollback()
    return "not this"


@app.task(isolation="process", max_attempts=1)
def family(ctx: Context) -> None:
    """Starts a process that starts a process, says their numbers, and is deaf."""
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); p.wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    ctx.progress(1, f"{os.getpid()} {child.pid} {child.stdout.readline().strip()}")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _say(data: bytes) -> None:
    """Write to the worker, past all that usually does."""
    command = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    os.write(int(re.findall(rb"main\((\d+)\)", b" ".join(command))[-1]), data)


@app.task(isolation="process", max_attempts=1, timeout=0.5)
def half_a_message() -> None:
    _say(b"\x00\x00\x10\x00half")
    threading.Event().wait()


@app.task(isolation="process", max_attempts=1)
def garbage() -> None:
    _say(b"\x00\x00\x00\x04\xff\xff\xff\xff")
    threading.Event().wait()


@app.task(isolation="process", max_attempts=1)
def closes_all() -> None:
    os.closerange(3, 1000)


@app.task
def here() -> int:
    return os.getpid()
