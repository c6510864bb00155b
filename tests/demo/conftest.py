"""The command as people run it: a process of its own, over an embedded server of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pgqueue import embedded
from pgqueue.errors import EmbeddedError

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = [sys.executable, "-m", "pgqueue"]


@dataclasses.dataclass(frozen=True)
class Ran:
    """A run of the command that has ended."""

    code: int
    out: str
    err: str

    @property
    def record(self) -> dict[str, Any]:
        """What `--json` printed: one object and nothing else."""
        assert self.out.count("\n") == 1, self.out + self.err
        found: dict[str, Any] = json.loads(self.out)
        return found


Demo = Callable[..., Ran]


@pytest.fixture(scope="session")
def environment() -> Iterator[Mapping[str, str]]:
    """The environment of all runs: a home that root's server user may pass through, temporary files to look at."""
    room = Path(tempfile.mkdtemp(prefix="pgqueue-demos-", dir="/tmp"))
    room.chmod(0o711)
    (room / "tmp").mkdir()
    env = os.environ | {"PGQUEUE_HOME": str(room / "home"), "TMPDIR": str(room / "tmp")}
    if chosen := os.environ.get("PGQUEUE_TEST_PG_BINDIR"):
        env["PGQUEUE_PG_BINDIR"] = chosen
    yield env
    with contextlib.suppress(EmbeddedError):
        embedded.stop(room / "home", force=True)
    shutil.rmtree(room)


@pytest.fixture
def demo(environment: Mapping[str, str]) -> Demo:
    """`demo(*arguments)`: run it to its end."""

    def run(*arguments: str | Path, **more: str) -> Ran:
        done = subprocess.run(
            [*PROGRAM, "demo", *map(str, arguments)],
            cwd=ROOT,
            env={**environment, **more},
            capture_output=True,
            timeout=100,
            check=False,
        )
        return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())

    return run


@pytest.fixture
def temporary(environment: Mapping[str, str]) -> Callable[[], list[str]]:
    """What runs have left among the temporary files."""

    def left() -> list[str]:
        return sorted(name for name in os.listdir(environment["TMPDIR"]) if name.startswith("pgqueue-demo-"))

    return left


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree with an empty file, one without a last newline, and one in a folder of its own."""
    root = tmp_path / "tree"
    (root / "docs" / "deep").mkdir(parents=True)
    (root / "empty").touch()
    (root / "one.txt").write_text("a\nb\nc")
    (root / "docs" / "two.txt").write_text("d\n" * 1000)
    (root / "docs" / "deep" / "three.bin").write_bytes(bytes(range(256)) * 9000)
    return root


def grow(root: Path, *, folders: int, files: int) -> None:
    """Many small files, each unlike the others."""
    for folder in range(folders):
        (root / f"folder-{folder}").mkdir(parents=True)
        for file in range(files):
            (root / f"folder-{folder}" / f"{file}.txt").write_text(f"{folder} {file}\n" * (file + 1))


@pytest.fixture(scope="session")
def killed(environment: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Ran]:
    """A run with --kill-one over a tree that takes long enough, and that tree."""
    root = tmp_path_factory.mktemp("killed") / "tree"
    grow(root, folders=30, files=20)
    done = subprocess.run(
        [*PROGRAM, "demo", str(root), "--kill-one", "--json"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        timeout=100,
        check=False,
    )
    return root, Ran(done.returncode, done.stdout.decode(), done.stderr.decode())
