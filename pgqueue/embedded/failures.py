"""What the operating system or PostgreSQL said, as one line that ends in what to do."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import EmbeddedError

WAY_OUT = "set PGQUEUE_DATABASE_URL to a PostgreSQL server of yours"
_TAIL_LINES = 6
_TAIL_BYTES = 8192
_TAIL_CHARACTERS = 900

# What a server.log says, and what helps. First match wins.
_ADVICE = (
    ("No space left on device", "free some space, or set PGQUEUE_HOME to a directory on another disk"),
    ("Disk quota exceeded", "free some space, or set PGQUEUE_HOME to a directory on another disk"),
    ("could not look up effective user ID", f"run as a user that /etc/passwd knows, or {WAY_OUT}"),
    ("Cannot allocate memory", "free some memory, or pass a smaller shared_buffers in settings"),
    ("pre-existing shared memory block", "wait until the last process of the old server has ended, or end it"),
    ("unrecognized configuration parameter", "leave that one out of settings"),
    ("invalid value for parameter", "give that one another value in settings"),
)


def require_posix() -> None:
    if sys.platform == "win32":
        raise EmbeddedError(f"the embedded server does not run on Windows: {WAY_OUT}")


@contextmanager
def explained(home: Path) -> Iterator[None]:
    """Raise what the operating system refuses inside as `EmbeddedError`."""
    try:
        yield
    except OSError as error:
        raise explain(error.errno, error.strerror or str(error), error.filename, home) from error


def explain(number: int | None, reason: str, filename: object, home: Path) -> EmbeddedError:
    place = os.fsdecode(filename) if isinstance(filename, str | bytes | os.PathLike) else str(home)
    if number in (errno.ENOSPC, errno.EDQUOT):
        advice = "free some space, or set PGQUEUE_HOME to a directory on another disk"
    elif number in (errno.EACCES, errno.EPERM):
        advice = f"give it to uid {os.geteuid()}, or set PGQUEUE_HOME to a directory that this user may write"
    elif number == errno.EROFS:
        advice = "set PGQUEUE_HOME to a directory that can be written"
    elif number in (errno.ENOLCK, errno.EOPNOTSUPP):
        advice = "this file system has no locks; set PGQUEUE_HOME to a directory on a local disk"
    elif number == errno.ELOOP:
        advice = "a symbolic link stands where a file of pgqueue belongs; remove it"
    else:
        advice = f"set PGQUEUE_HOME to another directory, or {WAY_OUT}"
    return EmbeddedError(f"embedded server in {home}: {_one_line(reason)} ({_one_line(place)}): {advice}")


def failed_with_log(what: str, log: Path, since: int) -> EmbeddedError:
    """`what` failed; the reason stands in the lines that `log` gained after byte `since`."""
    tail = _tail(log, since)
    advice = next((text for needle, text in _ADVICE if needle in tail), f"read {log}, or {WAY_OUT}")
    return EmbeddedError(f"{what}; {log.name} ends in: {tail or '(nothing)'}: {advice}")


def _tail(log: Path, since: int) -> str:
    try:
        with open(log, "rb", opener=_no_follow) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(since if since <= size else 0, size - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    last = [line for line in lines if line.strip()][-_TAIL_LINES:]
    return _one_line(" | ".join(last))[-_TAIL_CHARACTERS:]


def _no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _one_line(text: str) -> str:
    return " ".join("".join(character if character.isprintable() else " " for character in text).split())
