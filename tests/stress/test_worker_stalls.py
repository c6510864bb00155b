"""A handler that blocks the event loop for three leases, and one that holds the interpreter: no lease is lost.

The keeper is a thread of the same process, so it runs only when it is let. Code in C that does not let go of the
interpreter (the GIL) for a while keeps it from renewing for as long, again and again: a renewal over a connection that
is there takes one or two turns, more where the machine is busy. The default lease of 60 s stands ten seconds at a time
with a third of it to spare; one of 6 s under one second at a time, scaled in the same way, was kept on an idle machine
and lost by a hair on a loaded one, where milliseconds do not scale. Where a lease must be shorter than six times what
a handler's C code may hold, it needs a process of its own.
"""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pgqueue import App, Context, Status

from ..support import Sql

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
LEFT = "select extract(epoch from lease_expires_at - clock_timestamp()) from pgqueue.tasks where id = %s"


def declare(url: str) -> App:
    app = App(url)
    libc = ctypes.PyDLL(None)  # unlike CDLL, it calls without letting go of the interpreter

    @app.task
    async def blocks(ctx: Context, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - that is what is tested

    @app.task
    async def beside(ctx: Context, seconds: float) -> None:
        import asyncio

        await asyncio.sleep(seconds)

    @app.task
    def holds(ctx: Context, while_: float, times: int) -> None:
        for _ in range(times):
            libc.usleep(int(while_ * 1e6))

    @app.task
    def waits(ctx: Context, seconds: float) -> None:
        time.sleep(seconds)

    return app


def serve(url: str, lease: str) -> None:
    sys.exit(declare(url).run_worker(concurrency=4, lease=float(lease), poll=0.5))


def watched(url: str, sql: Sql, tasks: dict[str, dict[str, Any]], *, lease: float, patience: float) -> float:
    """Run these in a worker, reap as everybody does meanwhile; returns the least that was left of any lease."""
    app = declare(url)
    ids: list[UUID] = [app.action(name).enqueue(**arguments).id for name, arguments in tasks.items()]
    command = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"
    worker = subprocess.Popen([sys.executable, "-c", command, url, str(lease)], cwd=ROOT)
    least = lease
    deadline = time.monotonic() + patience
    try:
        while any(app.client.get(one).status is not Status.COMPLETED for one in ids):
            for one in ids:
                [(left,)] = sql(LEFT, one)
                least = min(least, lease if left is None else float(left))
            assert app.client.reap() == [], f"a lease was lost; the least left before was {least:.2f} s"
            assert worker.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert {app.client.get(one).fence for one in ids} == {1}
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
        app.client.close()
    return least


def test_handler_that_blocks_the_event_loop_for_three_leases_loses_none(database_url: str, sql: Sql) -> None:
    lease = 3.0
    tasks = {"blocks": {"seconds": 3 * lease}, "beside": {"seconds": 3 * lease}, "waits": {"seconds": 3 * lease}}
    least = watched(database_url, sql, tasks, lease=lease, patience=60)
    print(f"\na loop blocked for 3 leases of {lease:g} s: at least {least:.2f} s were left of every lease")


def test_handler_that_holds_the_interpreter_ten_seconds_at_a_time_loses_none(database_url: str, sql: Sql) -> None:
    """Without a pause in between, for longer than a lease; which is the default one."""
    lease, while_, times = 60.0, 10.0, 7
    tasks = {"holds": {"while_": while_, "times": times}, "waits": {"seconds": 1.0}}
    least = watched(database_url, sql, tasks, lease=lease, patience=150)
    print(
        f"\nthe interpreter held {times} times {while_:g} s, lease {lease:g} s: at least {least:.2f} s were left of it"
    )
