"""Workers that are forks of one warmed process, which imported everything and used the database before its first fork.

A test module gives `declare(url) -> App`; every fork runs a worker of that app.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from pgqueue import App

from .waiting import eventually

__all__ = ["Nursery", "nursery"]

ROOT = Path(__file__).resolve().parents[2]


def nursery(url: str, module: str, name: str, options: str, statuses: str) -> None:
    """Fork a worker for each line on stdin and say its pid; ends with stdin."""
    app: App = getattr(importlib.import_module(module), name)(url)
    app.client.stats()  # an engine with an open connection, which no fork may use
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os.close(0)
            status = app.run_worker(**json.loads(options))
            with open(statuses, "a") as log:
                log.write(f"{os.getpid()} {status}\n")
            os._exit(status)
        app.client.stats()
        print(pid, flush=True)
    app.client.close()


class Nursery:
    """The warmed process, as the test sees it. Use it in a `with`, at whose end nobody of it is left."""

    def __init__(self, url: str, declare: Callable[[str], App], **options: Any) -> None:
        self._statuses = Path(tempfile.mkdtemp(prefix="pgqueue-forks-"), "statuses")
        self._statuses.touch()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                f"import sys; from {__name__} import nursery; nursery(*sys.argv[1:])",
                *(url, declare.__module__, declare.__name__, json.dumps(options), str(self._statuses)),
            ],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.alive: list[int] = []
        self._forked: list[int] = []

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(signal.SIGKILL)
        shutil.rmtree(self._statuses.parent)

    def fork(self) -> int:
        """A new worker's pid; it has only just begun."""
        stdin, stdout = self._pipes()
        stdin.write("fork\n")
        stdin.flush()
        assert select.select([stdout], [], [], 30)[0], "the warmed process does not answer"
        self.alive.append(int(stdout.readline()))
        self._forked.append(self.alive[-1])
        return self.alive[-1]

    def kill_one(self) -> int:
        pid = self.alive.pop(random.randrange(len(self.alive)))
        os.kill(pid, signal.SIGKILL)
        return pid

    def statuses(self) -> dict[int, int]:
        """Exit statuses by pid, of those that came to an end by themselves."""
        return {int(pid): int(status) for pid, status in map(str.split, self._statuses.read_text().splitlines())}

    def close(self, number: signal.Signals) -> None:
        """Send that to those that are alive, and wait for everybody's end and the warmed process's."""
        ended = self.statuses()
        left = self.alive if number != signal.SIGKILL else [pid for pid in self._forked if pid not in ended]
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        eventually(lambda: not any(exists(pid) for pid in left))
        stdin, stdout = self._pipes()
        stdin.close()
        stdout.close()
        assert self._process.wait(30) == 0

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout


def exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
