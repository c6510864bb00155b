"""Processes that use a server and can be killed, and what shows that they are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psycopg

from pgqueue import embedded

FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}
ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 30.0

_USER = """
import sys
from pathlib import Path
from pgqueue import embedded
server = embedded.acquire(Path(sys.argv[1]), settings=dict(pair.split("=") for pair in sys.argv[2:]))
print(server.url, flush=True)
sys.stdin.read()
"""

T = TypeVar("T")


def until(happened: Callable[[], T]) -> T:
    """What `happened` returns once it is true."""
    deadline = time.monotonic() + PATIENCE
    while not (found := happened()):
        assert time.monotonic() < deadline, f"not within {PATIENCE} s"
        time.sleep(0.01)
    return found


def alive(pid: int) -> bool:
    """Whether the process runs: a zombie does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in "ZX"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    until(lambda: not alive(pid))


def query(url: str, statement: str) -> object:
    with psycopg.connect(url) as connection:
        row = connection.execute(statement.encode()).fetchone()
    return row[0] if row else None


def supervisor(home: Path) -> int:
    return int((home / "supervisor.lock").read_text())


def postmaster(home: Path) -> int:
    pid = embedded.status(home).pid
    assert pid is not None
    return pid


def stopped(home: Path) -> None:
    until(lambda: not embedded.status(home).running)


class User:
    """Another process that acquires the server and holds it until its stdin ends or it is killed."""

    def __init__(self, home: Path, *, env: dict[str, str] | None = None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _USER, str(home), *(f"{name}={value}" for name, value in FAST.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | (env or {}),
            text=True,
        )

    def url(self) -> str:
        """Waits until it has the server."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the process ended without a server"
        return line

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """Let it go by itself; or reap it, if it was killed."""
        self._process.communicate()
