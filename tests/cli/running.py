"""Ways to run the program: in this process, in one of its own, on a terminal."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from pgqueue.__main__ import command

ROOT = Path(__file__).resolve().parents[2]

# Whatever the caller's environment says about databases must not decide a test.
BARE: dict[str, str | None] = dict.fromkeys(
    (
        "DATABASE_URL",
        "PGDATABASE",
        "PGHOST",
        "PGHOSTADDR",
        "PGPASSWORD",
        "PGPORT",
        "PGQUEUE_DATABASE_URL",
        "PGQUEUE_SCHEMA",
        "PGSERVICE",
        "PGUSER",
    )
)


@dataclasses.dataclass(frozen=True)
class Ran:
    """How a run ended, and what it said."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[list[str]]:
        """What was printed, as a shell script takes it apart."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def complaint(self) -> str:
        """The one line that a refusal is."""
        assert self.err.startswith("Error: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


class Program:
    """`pgqueue` over one database: `program("list", "--json")` runs it in this process."""

    def __init__(self, url: str | None = None) -> None:
        self.url = url

    def __call__(
        self, *words: str, stdin: str | bytes | None = None, env: Mapping[str, str | None] | None = None
    ) -> Ran:
        done = CliRunner().invoke(
            command(), list(words), input=stdin, env=self._environment(env), prog_name="pgqueue", catch_exceptions=False
        )
        return Ran(done.exit_code, done.stdout, done.stderr)

    def apart(self, *words: str, stdin: str = "", cwd: Path = ROOT, env: Mapping[str, str | None] | None = None) -> Ran:
        """In a process of its own."""
        done = subprocess.run(
            [sys.executable, "-m", "pgqueue", *words],
            input=stdin,
            cwd=cwd,
            env=self._whole(env),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    def on_terminal(
        self, *words: str, columns: int = 100, answer: str = "", env: Mapping[str, str | None] | None = None
    ) -> Ran:
        """In a process of its own whose input and output are a terminal of that width; messages are kept apart."""
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", *words],
            stdin=theirs,
            stdout=theirs,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env=self._whole({"TERM": "xterm", "COLUMNS": None} | dict(env or {})),
        )
        os.close(theirs)
        if answer:
            os.write(ours, answer.encode())
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the last process has closed it
                break
            if not piece:
                break
            shown += piece
        os.close(ours)
        assert process.stderr is not None
        err = process.stderr.read()
        process.stderr.close()
        return Ran(process.wait(), shown.decode().replace("\r\n", "\n"), err)

    def _environment(self, env: Mapping[str, str | None] | None) -> dict[str, str | None]:
        return BARE | {"PGQUEUE_DATABASE_URL": self.url} | dict(env or {})

    def _whole(self, env: Mapping[str, str | None] | None) -> dict[str, str]:
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        merged = {**os.environ, "PYTHONPATH": path, **self._environment(env)}
        return {name: value for name, value in merged.items() if value is not None}


def room(name: str) -> Any:
    """A module of the command line, wherever it is installed."""
    package = command().callback.__module__
    return import_module(f"{package}.{name}")
