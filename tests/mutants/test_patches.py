"""The planted bugs still fit the tree; `make mutants` plants them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .planting import Hunk, Mutant, Stale, mutants, plant

ROOT = Path(__file__).resolve().parents[2]
ALL = mutants()


def test_there_are_at_least_fifteen() -> None:
    assert len(ALL) >= 15


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_patch_applies(mutant: Mutant, tmp_path: Path) -> None:
    for file in {hunk.file for hunk in mutant.hunks}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)

    plant(mutant, tmp_path)

    for hunk in mutant.hunks:
        changed = (tmp_path / hunk.file).read_text()
        assert changed != (ROOT / hunk.file).read_text()
        if hunk.file.endswith(".py"):
            compile(changed, hunk.file, "exec")


def test_tests_that_are_to_find_them_are_there() -> None:
    tests = sorted({test for mutant in ALL for test in mutant.found_by})
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("text", ["", "a\nb\na\nb\n", "xa\nb\n"])
def test_patch_whose_place_is_gone_or_twofold_says_so_and_changes_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("x\n")
    (tmp_path / "two.py").write_text(text)
    mutant = Mutant("m", "…", [], [Hunk("one.py", "x\n", "y\n"), Hunk("two.py", "a\nb\n", "c\n")])

    with pytest.raises(Stale, match=r"m\.patch: .* two\.py is there [02] times instead of once: write the patch anew"):
        plant(mutant, tmp_path)

    assert (tmp_path / "one.py").read_text() == "x\n"
