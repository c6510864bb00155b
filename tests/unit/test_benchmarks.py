"""The benchmark runs and reports; what it measures is nobody's promise on a shared machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import servers

ROOT = Path(__file__).resolve().parent.parent.parent


def test_floor_is_one_short_file_that_knows_no_library() -> None:
    lines = (ROOT / "benchmarks" / "floor.py").read_text().splitlines()

    assert len(lines) <= 60
    assert [line for line in lines if "import" in line and ("pgqueue" in line or "sqlalchemy" in line)] == []


@pytest.mark.heavy
def test_drain_reports_floor_and_both_kinds_of_handlers(server: servers.Provided) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "drain", "--tasks", "200", "--rounds", "1", "--json"],
        cwd=ROOT,
        env={"PGQUEUE_DATABASE_URL": server.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert list(result["summary"]) == ["floor", "async", "def"]
    assert {run["who"]: run["round"] for run in result["runs"]} == {"floor": 1, "async": 1, "def": 1}
    assert all(figures["rate"]["median"] > 0 for figures in result["summary"].values())
    assert result["server"]["settings"].keys() >= {"fsync", "synchronous_commit", "shared_buffers"}
    assert result["machine"].keys() >= {"cores", "python"}
    assert result["settings"].keys() >= {"tasks", "batch", "concurrency", "floor_batch"}
    assert "ratio_to_floor" in result["summary"]["async"]


@pytest.mark.heavy
def test_journal_reports_both_settings(server: servers.Provided) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "journal", "--tasks", "200", "--rounds", "1", "--json"],
        cwd=ROOT,
        env={"PGQUEUE_DATABASE_URL": server.url, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [run["mode"] for run in result["runs"]] == ["failures", "full"]
    assert result["summary"]["failures"]["rate_of_base"]["median"] == 1
    assert result["summary"]["full"]["wal_bytes_per_task_of_base"]["median"] > 1
