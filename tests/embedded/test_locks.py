"""Locks and forks: an heir keeps only what it is meant to keep."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pgqueue.embedded import locks
from pgqueue.errors import EmbeddedError

from .processes import until


@contextmanager
def fork() -> Iterator[None]:
    """A child that does nothing, alive for the length of the block."""
    child = os.fork()
    if child == 0:
        signal.pause()
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_attempt_excludes_a_second_holder(tmp_path: Path) -> None:
    held = locks.attempt(tmp_path / "lock")
    assert held is not None

    assert locks.attempt(tmp_path / "lock") is None
    assert locks.attempt(tmp_path / "lock", shared=True) is None
    locks.close(held)
    assert locks.is_free(tmp_path / "lock")


def test_shared_holders_exclude_only_the_exclusive_one(tmp_path: Path) -> None:
    first = locks.attempt(tmp_path / "lock", shared=True)
    assert first is not None

    assert locks.is_free(tmp_path / "lock", shared=True)
    assert not locks.is_free(tmp_path / "lock")
    locks.close(first)


def test_fork_does_not_inherit_a_lock_of_the_moment(tmp_path: Path) -> None:
    held = locks.attempt(tmp_path / "lock")
    assert held is not None

    with fork():
        locks.close(held)
        until(lambda: locks.is_free(tmp_path / "lock"))


def test_fork_inherits_a_lock_that_is_kept(tmp_path: Path) -> None:
    held = locks.attempt(tmp_path / "lock", shared=True)
    assert held is not None
    locks.keep(held)

    with fork():
        locks.close(held)
        assert not locks.is_free(tmp_path / "lock")
    assert locks.is_free(tmp_path / "lock")


def test_wait_gives_up_at_its_deadline(tmp_path: Path) -> None:
    held = locks.attempt(tmp_path / "lock")
    assert held is not None

    with pytest.raises(EmbeddedError, match="busy for 0 s"):
        locks.wait(tmp_path / "lock", seconds=0.05, why="busy")
    locks.close(held)


def test_is_free_creates_nothing(tmp_path: Path) -> None:
    assert locks.is_free(tmp_path / "lock")
    assert not (tmp_path / "lock").exists()
