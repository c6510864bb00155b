"""An App with middleware and handlers in processes: what test_middleware.py runs."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

from pgqueue import App, Context


def around(ctx: Context, call: Callable[[], Any]) -> Any:
    return {"handler": call(), "middleware": os.getpid(), "action": ctx.action}


async def aaround(ctx: Context, call: Callable[[], Awaitable[Any]]) -> Any:
    return {"handler": await call(), "middleware": os.getpid(), "action": ctx.action}


app = App("postgresql://aimed.by.the.test/", middleware=[around, aaround])


@app.task(isolation="process")
def plain() -> int:
    return os.getpid()


@app.task(isolation="process")
async def coro() -> int:
    return os.getpid()
