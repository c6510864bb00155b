"""File locks that the kernel drops when their holder ends (flock).

A lock belongs to an open file description: threads exclude each other as processes do, and whoever inherits the
descriptor keeps the lock alive. The server's processes inherit server.lock on purpose. A fork of the user's own
must not inherit what this module holds for a moment, or it would hold it for its whole life; see `_forget`.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import EmbeddedError

if sys.platform != "win32":
    import fcntl

_POLL_SECONDS = 0.01

# Guards the moment between opening (or closing) a descriptor and noting it: a fork waits for it. Reentrant, so that
# a signal handler that forks does not wait for its own thread.
_guard = threading.RLock()
_transient: set[int] = set()


def open_lock(path: Path) -> int:
    """A descriptor of the lock file, not locked. Read-only, so that no holder can change what stands in it."""
    return open_transient(path, os.O_RDONLY | os.O_CREAT)


def open_transient(path: Path, flags: int, mode: int = 0o600) -> int:
    """Open without following a link; a fork does not get the descriptor."""
    with _guard:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        _transient.add(descriptor)
    return descriptor


def pipe_transient() -> tuple[int, int]:
    with _guard:
        reader, writer = os.pipe()
        _transient.update((reader, writer))
    return reader, writer


def close(descriptor: int) -> None:
    """Close one descriptor. The lock stays while an heir has another."""
    with _guard:
        _transient.discard(descriptor)
        os.close(descriptor)


def keep(descriptor: int) -> None:
    """From now on a fork inherits it: a child uses the server as its parent does."""
    with _guard:
        _transient.discard(descriptor)


def attempt(path: Path, *, shared: bool = False) -> int | None:
    """Take the lock if that is possible now. The descriptor, or None."""
    descriptor = open_lock(path)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        close(descriptor)
        return None
    except BaseException:
        close(descriptor)
        raise
    return descriptor


def wait(path: Path, *, shared: bool = False, seconds: float, why: str) -> int:
    """Take the lock, trying for `seconds`. Polls, because a blocking flock knows no deadline.

    Raises:
        EmbeddedError: Still held after that time; the text begins with `why`.
    """
    deadline = time.monotonic() + seconds
    while (descriptor := attempt(path, shared=shared)) is None:
        if time.monotonic() > deadline:
            raise EmbeddedError(f"{why} for {seconds:.0f} s ({path}): try again, or end that process")
        time.sleep(_POLL_SECONDS)
    return descriptor


@contextmanager
def hold(path: Path, *, seconds: float, why: str) -> Iterator[None]:
    """The lock for the length of a block."""
    descriptor = wait(path, seconds=seconds, why=why)
    try:
        yield
    finally:
        release(descriptor)


def release(descriptor: int) -> None:
    """Give the lock up for all who share the descriptor, and close ours."""
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    close(descriptor)


def is_free(path: Path, *, shared: bool = False) -> bool:
    """Whether the lock could be had now. Creates nothing."""
    if not os.path.lexists(path):
        return True
    descriptor = attempt(path, shared=shared)
    if descriptor is None:
        return False
    release(descriptor)
    return True


def _forget() -> None:
    for descriptor in _transient:
        os.close(descriptor)
    _transient.clear()
    _guard.release()


if sys.platform != "win32":
    os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget)
