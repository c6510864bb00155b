"""Both faces of the client, seen alike: what a test says once holds for `Client` and for `AsyncClient`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from pgqueue.client import AsyncClient


class Blocking:
    """An `AsyncClient`, each verb run to its end on the runner's loop. Tests type it as the `Client` it stands for."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._client, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        verb: Callable[..., Coroutine[Any, Any, Any]] = found
        return lambda *args, **kwargs: self._runner.run(verb(*args, **kwargs))
