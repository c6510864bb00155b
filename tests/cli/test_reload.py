"""`worker --reload`: a parent that starts the worker again when a file changes."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ..support import eventually
from ..support.waiting import PATIENCE
from .running import Program, room

SOURCE = "import pgqueue\napp = pgqueue.App()\n@app.task\ndef {name}() -> None: ...\n"

SLOW = """
import asyncio, logging, pgqueue

app = pgqueue.App()

@app.task
async def slow() -> None:
    logging.getLogger("slow").info("it runs")
    await asyncio.sleep(3600)
"""


class Reloading:
    """A parent under way, and what it and its children say."""

    def __init__(self, program: Program, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", "worker", "--reload", "--app", "cli_reload:app", *words],
            cwd=folder,
            env=program._whole({"PGQUEUE_RELOAD_PARENT": None}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.put(line)

    def until(self, word: str) -> str:
        """The first line from here on that holds the word."""
        seen = []
        try:
            while True:
                seen.append(self.lines.get(timeout=PATIENCE))
                if word in seen[-1]:
                    return seen[-1]
        except queue.Empty:
            pytest.fail(f"nobody said {word!r}: {''.join(seen)}")

    def end(self) -> int:
        try:
            self.process.terminate()
            return self.process.wait(PATIENCE)
        finally:
            self.process.kill()
            self._reader.join(PATIENCE)
            assert self.process.stderr is not None
            self.process.stderr.close()


@pytest.fixture
def reloading(program: Program, tmp_path: Path) -> Iterator[Callable[..., Reloading]]:
    started: list[Reloading] = []

    def start(*words: str) -> Reloading:
        (tmp_path / "cli_reload.py").write_text(SOURCE.format(name="first"))
        started.append(Reloading(program, tmp_path, *words))
        return started[-1]

    yield start
    for one in started:
        one.end()


def write(path: Path, text: str) -> None:
    """As editors do: the file is whole at every moment."""
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def test_change_starts_the_worker_again_and_a_signal_goes_through(
    reloading: Callable[..., Reloading], tmp_path: Path
) -> None:
    parent = reloading()
    assert "this is for development" in parent.until("starts again when a .py file")
    parent.until("actions first")
    (tmp_path / "notes.txt").write_text("no code")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "odd.py").write_text("")
    write(tmp_path / "cli_reload.py", SOURCE.format(name="second"))
    assert "cli_reload.py changed" in parent.until("changed: starting again")
    parent.until("SIGTERM: stopping")
    parent.until("actions second")
    assert parent.end() == 0


def test_worker_that_cannot_start_waits_for_a_change(reloading: Callable[..., Reloading], tmp_path: Path) -> None:
    parent = reloading()
    parent.until("actions first")
    write(tmp_path / "cli_reload.py", "def broken(:\n")
    parent.until("Error: cli_reload could not be imported: SyntaxError")
    parent.until("the worker ended in 2; it is started again when a file changes")
    write(tmp_path / "cli_reload.py", SOURCE.format(name="mended"))
    parent.until("actions mended")


def test_worker_that_is_done_ends_the_parent(reloading: Callable[..., Reloading]) -> None:
    assert reloading("--burst").process.wait(PATIENCE) == 0


def test_worker_ends_when_its_parent_was_killed(reloading: Callable[..., Reloading], tmp_path: Path) -> None:
    parent = reloading("--health-file", str(tmp_path / "live"))
    parent.until("actions first")
    parent.process.kill()
    parent.until("SIGTERM: stopping")
    eventually(lambda: not (tmp_path / "live").exists())


def test_environments_and_hidden_folders_are_not_looked_at(tmp_path: Path) -> None:
    look = room("reload").look
    for name in ("a.py", "deep/er/b.py", ".git/c.py", "venv/lib/d.py", "x/node_modules/e.py", "deep/f.pyc"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "venv" / "pyvenv.cfg").write_text("")
    (tmp_path / "loop").symlink_to(tmp_path)

    assert sorted(os.path.relpath(path, tmp_path) for path in look(tmp_path)) == ["a.py", "deep/er/b.py"]


def test_ctrl_c_reaches_the_worker_once_and_a_second_one_too(
    reloading: Callable[..., Reloading], program: Program, tmp_path: Path
) -> None:
    parent = reloading("--drain", "1h", "--cancel-grace", "1h")
    parent.until("actions first")
    write(tmp_path / "cli_reload.py", SLOW)
    parent.until("actions slow")
    program("enqueue", "slow")
    parent.until("it runs")
    os.kill(parent.process.pid, signal.SIGINT)
    parent.until("SIGINT: stopping")
    os.kill(parent.process.pid, signal.SIGINT)
    parent.until("SIGINT: stopping")
    assert parent.process.wait(PATIENCE) == 0
