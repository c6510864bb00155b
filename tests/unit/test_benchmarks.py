"""The benchmark runs, checks what it drained, and keeps its floor small enough to be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_floor_is_short_enough_to_be_believed() -> None:
    assert len((ROOT / "benchmarks" / "floor.py").read_text().splitlines()) <= 60


@pytest.mark.heavy
def test_drain_counts_what_it_measured(database_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "drain", "--tasks", "200", "--rounds", "1", "--json"],
        cwd=ROOT,
        env={**os.environ, "PGQUEUE_DATABASE_URL": database_url},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["settings"]["tasks"] == 200
    assert set(result["summary"]) == {"floor", "async", "def"}
    assert all(run["seconds"] > 0 and run["wal_bytes_per_task"] > 0 for run in result["runs"])
