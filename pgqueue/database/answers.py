"""No answer is waited for without end."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from typing import Any

import psycopg

ANSWER_WITHIN = 40.0
"""Seconds after which a server that does not answer counts as gone. More than the server's own statement_timeout: this
one is for servers that are frozen or cut off, and so keep to no time limit."""


class Deadline:
    """How long a call may take from its beginning, or from when this was said, whichever is later."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._said = time.monotonic()

    def passed(self, began: float) -> bool:
        return time.monotonic() - max(began, self._said) > self.seconds


class _NoAnswer(Exception):
    """Raised inside of a wait, and translated outside of it."""


def _bounded(exchange: Generator[Any, Any, Any], deadline: Callable[[], Deadline] | None) -> Generator[Any, Any, Any]:
    """The driver's exchange with the server, which it steps at least ten times a second, until it takes too long."""
    began = time.monotonic()
    try:
        wanted = next(exchange)
        while True:
            ready = yield wanted
            if not ready and deadline is not None and deadline().passed(began):
                raise _NoAnswer
            wanted = exchange.send(ready)
    except StopIteration as done:
        return done.value


class BoundedConnection(psycopg.Connection[Any]):
    """One that does not wait without end.

    The server's time limits and TCP's keepalives see neither a server that is stopped nor one whose disk hangs.
    """

    deadline: Callable[[], Deadline] | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return super().wait(_bounded(gen, self.deadline), *args, **kwargs)
        except _NoAnswer:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from None


class AsyncBoundedConnection(psycopg.AsyncConnection[Any]):
    """The same for asyncio."""

    deadline: Callable[[], Deadline] | None = None

    async def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await super().wait(_bounded(gen, self.deadline), *args, **kwargs)
        except _NoAnswer:
            self.pgconn.finish()
            raise psycopg.OperationalError("the server does not answer") from None
