"""A home for each test."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pgqueue import embedded

from .processes import User


@pytest.fixture
def room() -> Iterator[Path]:
    """A directory through which the server's user may pass; pytest's own tmp_path is closed to it."""
    room = Path(tempfile.mkdtemp(prefix="pgqueue-embedded-", dir="/tmp"))
    room.chmod(0o711)
    yield room
    shutil.rmtree(room)


@pytest.fixture
def home(room: Path) -> Iterator[Path]:
    home = room / "home"
    yield home
    embedded.stop(home, force=True)


@pytest.fixture
def user(home: Path) -> Iterator[Callable[[], User]]:
    users: list[User] = []

    def make() -> User:
        users.append(User(home))
        return users[-1]

    yield make
    for one in users:
        one.end()
