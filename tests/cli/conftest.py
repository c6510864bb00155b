"""The program over the test's database."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from pgqueue.client import Client

from .running import Program


@pytest.fixture
def program(database_url: str) -> Program:
    return Program(database_url)


@pytest.fixture
def lost() -> Program:
    """The program where nobody named a database."""
    return Program()


@pytest.fixture
def dead(client: Client) -> Callable[..., UUID]:
    """`dead(error=…, **options)`: a task that is dead."""

    def make(error: str = "ValueError: no such address", action: str = "send", **options: object) -> UUID:
        made = client.enqueue(action, None, **{"queue": "morgue", **options})  # type: ignore[arg-type]
        [held] = [task for task in client.claim_batch(str(options.get("queue", "morgue"))) if task.id == made.id]
        client.bury(held, error)
        return made.id

    return make


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], str]]:
    """`module(name, source)`: a module in a directory of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write(name: str, source: str) -> str:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
        return name

    yield write
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
