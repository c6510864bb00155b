"""examples/shop runs as its README says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

from pgqueue.client import Client
from pgqueue.task import Task

from .pages import ROOT

EXAMPLES = ROOT / "examples"


def test_shop_places_orders_and_its_tasks_run(tmp_path: Path, database_url: str) -> None:
    env = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{EXAMPLES}", "PGQUEUE_DATABASE_URL": database_url}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    (tmp_path / "outbox").mkdir()
    assert run("shop").count("receipt") == 3
    assert "was asked for already" in run("shop")
    run("pgqueue", "worker", "--app", "shop.tasks:app", "--app-dir", str(EXAMPLES), "--burst")

    client = Client(database_url)
    tasks = list(client.list_tasks(limit=100))
    client.close()
    assert [task for task in tasks if task.status != "completed"] == []
    assert sorted(path.name for path in (tmp_path / "outbox").iterdir()) == [f"{n}.txt" for n in range(1, 7)]
    [report] = [task for task in tasks if task.action == "daily_report"]
    assert report.result == {"orders": 6, "cents": 2 * (4200 + 1700 + 950)}
    packed = sorted((task for task in tasks if task.agent == "berlin"), key=_started)
    assert len(packed) == 4
    for one, next_one in itertools.pairwise(packed):
        assert one.finished_at is not None
        assert next_one.started_at is not None
        assert one.finished_at <= next_one.started_at


def _started(task: Task) -> float:
    assert task.started_at is not None
    return task.started_at.timestamp()
