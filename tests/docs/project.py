"""Pages that are a whole program: each Python block begins with the name of its file.

The files are written to a folder, and run there by processes of their own, as a reader would: settings, event loops
and import paths of one page are none of another's.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from .pages import ROOT, blocks

PROJECTS = {ROOT / "docs" / f"{page}.md" for page in ("django", "exactly-once", "fastapi", "flask")}
"""Run by a test module of their own, and so not by test_examples."""

_FILE = re.compile(r"# (\w+(?:/\w+)*\.py)\n")


class Project:
    """The files of a page in a folder, over a database."""

    def __init__(self, page: Path, folder: Path, database_url: str, **variables: str) -> None:
        self.folder = folder
        self.variables = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}",
            "PGQUEUE_DATABASE_URL": database_url,
            **variables,
        }
        for block in blocks(page, "python"):
            named = _FILE.match(block.text)
            assert named is not None, f"{block}: the first line names the file: # shop/tasks.py"
            self.write(named[1], block.text)
        for package in {path.parent for path in folder.rglob("*.py")} - {folder}:
            (package / "__init__.py").touch()

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace one text, which is there once."""
        text = (self.folder / name).read_text()
        assert text.count(old) == 1, f"{old!r} in {name}"
        self.write(name, text.replace(old, new))

    def python(self, *arguments: str, code: int = 0) -> str:
        """`python …` in the folder, to its end with that code; what it printed."""
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    def pytest(self, name: str) -> str:
        """A file of tests, with warnings as errors, as ours are."""
        (self.folder / "pytest.ini").write_text("[pytest]\nfilterwarnings =\n    error\n")
        return self.python("-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", name)
