"""`pgqueue worker --reload`: a parent that starts the worker again when a .py file has changed. For development.

The parent imports nothing of the app, so that what does not import can be mended and tried again. Files are looked at
by their size and mtime, twice a second.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, TypeAlias

from .common import program
from .errors import tell

CHILD: Final = "PGQUEUE_RELOAD_PARENT"
"""Set in the child: the parent's process id."""

_LOOK_EVERY: Final = 0.5
_WITHIN: Final = 5.0
"""Seconds that running handlers get before they are given back, and after that before the child is killed."""
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})

Seen: TypeAlias = dict[str, tuple[int, int]]


def supervise(folder: Path) -> int:
    """Run this command line in a child until it ends by itself or is told to stop; returns its exit code.

    SIGTERM and SIGINT go on to the child. A child that fails is started again when a file changes.
    """
    signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    for caught in (signal.SIGTERM, signal.SIGINT):
        signal.signal(caught, lambda number, _: signals.put(number))
    tell(f"{program()} worker starts again when a .py file in {folder} changes; this is for development")
    seen = look(folder)
    child: subprocess.Popen[bytes] | None = _start()
    told = False
    while True:
        try:
            number = signals.get(timeout=_LOOK_EVERY)
        except queue.Empty:
            pass
        else:
            if child is None:
                return 0
            told = True
            _send(child, number)
        if child is not None and (status := child.poll()) is not None:
            if status == 0 or told:
                return status if status >= 0 else 128 - status
            tell(f"the worker ended in {status}; it is started again when a file changes")
            child = None
        if told:
            continue
        before, seen = seen, look(folder)
        if seen != before:
            tell(f"{_changed(before, seen)} changed: starting again")
            if child is not None:
                _stop(child)
            child = _start()


def look(folder: Path) -> Seen:
    """Size and mtime of every .py file below the folder, but for hidden folders and environments."""
    return dict(_files(str(folder)))


def _files(folder: str) -> Iterator[tuple[str, tuple[int, int]]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    if any(entry.name == "pyvenv.cfg" for entry in entries):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED:
                    yield from _files(entry.path)
            elif entry.name.endswith(".py"):
                stat = entry.stat()
                yield entry.path, (stat.st_mtime_ns, stat.st_size)
        except OSError:
            continue


def die_with_parent() -> None:
    """In the child: stop as by SIGTERM when the parent is no more, which SIGKILL would not let it say."""
    parent = os.environ.get(CHILD)

    def watch() -> None:
        while os.getppid() == int(parent or 0):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)

    if parent:
        threading.Thread(target=watch, name="pgqueue-reload", daemon=True).start()


def _start() -> subprocess.Popen[bytes]:
    # A process group of its own: Ctrl-C reaches the parent alone, which passes it on once.
    return subprocess.Popen(
        [sys.executable, "-m", "pgqueue", *sys.argv[1:]],
        env=os.environ | {CHILD: str(os.getpid())},
        process_group=0,
    )


def _stop(child: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL):
        _send(child, number)
        try:
            child.wait(_WITHIN)
        except subprocess.TimeoutExpired:
            continue
        return
    child.wait()


def _send(child: subprocess.Popen[bytes], number: int) -> None:
    if child.poll() is None:
        child.send_signal(number)


def _changed(before: Seen, after: Seen) -> str:
    paths = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
    return paths[0] if len(paths) == 1 else f"{paths[0]} and {len(paths) - 1} more"
