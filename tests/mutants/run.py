"""`python -m tests.mutants.run [NAME…]`: plant each bug in a copy of the tree, and see whether its tests find it.

Prints a table. Ends with 1 where a mutant survives, where its tests end without an answer or fail on the tree as it is,
where a patch does not apply any more, and where there is no server; with 2 for an unknown name.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from pgqueue.errors import PgqueueError
from tests.support import servers

from .planting import Mutant, Stale, mutants, plant

ROOT = Path(__file__).resolve().parents[2]
_NOT_COPIED = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "build", "dist", "*.egg-info"
)
_PYTEST = ["-x", "-q", "-rf", "-n", "0", "-p", "no:randomly", "-p", "no:cacheprovider", "--no-header", "--tb=short"]
_FOUND, _PASSED = 1, 0
"""pytest's exit codes."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What one run of pytest said. killed_by: the test that failed, if one did; trouble: why there is no answer."""

    killed_by: str
    trouble: str
    seconds: float


def main(names: Sequence[str]) -> int:
    try:
        chosen = mutants(names)
    except LookupError as error:
        print(error.args[0], file=sys.stderr)
        return 2
    os.environ.setdefault(servers.RUN, uuid.uuid4().hex[:12])
    survived = 0
    try:
        with servers.provide() as server, tempfile.TemporaryDirectory(prefix="pgqueue-mutants-") as room:
            # One server for all: a start each would take longer than most of the tests.
            environment = os.environ | {"PGQUEUE_TEST_DATABASE_URL": server.url}
            found_by = list(dict.fromkeys(test for mutant in chosen for test in mutant.found_by))
            told = _try(None, found_by, Path(room), environment)
            _say(
                "(nothing planted)", told.trouble or (f"FAILS: {told.killed_by}" if told.killed_by else "passes"), told
            )
            if told.trouble or told.killed_by:
                return 1
            for mutant in chosen:
                told = _try(mutant, mutant.found_by, Path(room), environment)
                _say(mutant.name, told.trouble or told.killed_by or f"SURVIVES: {mutant.plants}", told)
                survived += not told.killed_by
    except PgqueueError as error:
        print(f"no server: {error}", file=sys.stderr)
        return 1
    finally:
        servers.clear_up()
    print(f"{len(chosen) - survived} of {len(chosen)} planted bugs were found")
    return 1 if survived else 0


def _try(mutant: Mutant | None, tests: Sequence[str], room: Path, environment: dict[str, str]) -> Verdict:
    began = time.monotonic()
    tree = room / (mutant.name if mutant else "as-it-is")
    shutil.copytree(ROOT, tree, ignore=_NOT_COPIED)
    if mutant:
        try:
            plant(mutant, tree)
        except Stale as stale:
            return Verdict("", f"STALE: {stale}", time.monotonic() - began)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_PYTEST, *tests],
        cwd=tree,
        # Each run has its own databases, and its own migrated template.
        env={name: value for name, value in environment.items() if name != servers.RUN}
        | {"PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    shutil.rmtree(tree)
    failed = re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE)
    seconds = time.monotonic() - began
    if done.returncode == _FOUND and failed:
        return Verdict(failed[1], "", seconds)
    if done.returncode == _PASSED:
        return Verdict("", "", seconds)
    return Verdict("", f"NO ANSWER: pytest ended with {done.returncode}:\n{done.stdout[-2000:]}", seconds)


def _say(name: str, what: str, told: Verdict) -> None:
    print(f"{name:45} {told.seconds:6.1f} s  {what}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
