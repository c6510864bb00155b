"""Eight processes do everything at once over eight agents and eight keys; the invariants hold at every moment."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pgqueue.client import Client
from pgqueue.lifecycle import Status
from tests.support import Sql, connect

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).resolve().parents[2]
PROCESSES = 8
SECONDS = 5

BROKEN = {
    "an agent runs two tasks": """
        select agent from pgqueue.tasks where status = 'running' and agent is not null
        group by agent having count(*) > 1""",
    "a key is active twice": """
        select agent, dedupe_key from pgqueue.tasks where status in ('pending', 'running') and dedupe_key is not null
        group by agent, dedupe_key having count(*) > 1""",
    "a lease without a run": """
        select id from pgqueue.tasks where (status = 'running') <> (lease_expires_at is not null)""",
    "more attempts than allowed": "select id from pgqueue.tasks where attempts > max_attempts",
}


class Sampler:
    """Looks at the table over and over while others write it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.found: list[tuple[str, Any]] = []
        self.looks = 0
        self.seen_running = 0

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(30)

    def _run(self) -> None:
        with connect(self._url) as connection:
            while not self._stop.wait(0.02):
                for what, query in BROKEN.items():
                    self.found += [(what, row) for row in connection.execute(query).fetchall()]
                running = connection.execute("select count(*) from pgqueue.tasks where status = 'running'").fetchone()
                self.seen_running = max(self.seen_running, running[0] if running else 0)
                self.looks += 1


@pytest.mark.parametrize("face", ["sync", "async"])
def test_contention_of_eight_processes_breaks_no_invariant(
    face: str, database_url: str, client: Client, sql: Sql
) -> None:
    with Sampler(database_url) as sampler:
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.heavy.contender", database_url, face, str(seed), str(SECONDS)],
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed in range(PROCESSES)
        ]
        outputs = [process.communicate(timeout=SECONDS + 60) for process in processes]
    assert [process.returncode for process in processes] == [0] * PROCESSES, [err for _, err in outputs]
    records = [json.loads(out) for out, _ in outputs]

    # Nobody met anything but lawful refusals; no unique violation reached a caller.
    failures = [failure for record in records for failure in record["failures"]]
    assert failures == []
    # At no moment that anybody looked, nor in anybody's own record, did an agent run two tasks.
    assert sampler.found == []
    held = [tuple(one) for record in records for one in record["held"]]
    assert overlaps(held) == []
    # Nothing was claimed twice under one fence, and nothing was completed twice.
    assert len({(task_id, fence) for _, task_id, fence, *_ in held}) == len(held)
    completed = [task_id for _, task_id, _, _, _, became in held if became == "completed"]
    assert len(set(completed)) == len(completed)
    # Nothing was lost: what was made is there, and is what the last of its holders made of it, or a person after that.
    made = {one for record in records for one in record["made"]}
    rows = {str(task_id): Status(status) for task_id, status in sql("select id, status from pgqueue.tasks")}
    assert set(rows) == made
    assert {task_id for task_id, status in rows.items() if status is Status.COMPLETED} == set(completed)
    assert Status.RUNNING not in rows.values()
    # And there was something to contend for.
    assert len(held) > 100
    assert sampler.looks > 10
    assert sampler.seen_running > 1
    drain(client)
    assert sql("select count(*) from pgqueue.tasks where status in ('pending', 'running', 'dead')") == [(0,)]


def overlaps(held: list[tuple[Any, ...]]) -> list[tuple[Any, Any]]:
    """Pairs of holds of one agent of which the second began before the first had been given up."""
    found = []
    by_agent = sorted((one for one in held if one[0] is not None), key=lambda one: (one[0], one[3]))
    for one, two in itertools.pairwise(by_agent):
        if one[0] == two[0] and two[3] < one[4]:
            found.append((one, two))
    return found


def test_overlaps_sees_two_holders_at_once() -> None:
    assert overlaps([("a", "1", 1, 0.0, 2.0, "x"), ("a", "2", 1, 1.0, 3.0, "x"), ("b", "3", 1, 1.0, 2.0, "x")])
    assert not overlaps([("a", "1", 1, 0.0, 1.0, "x"), ("a", "2", 1, 1.5, 3.0, "x"), (None, "3", 1, 0.0, 9.0, "x")])


def drain(client: Client) -> None:
    """Complete all that is left, the dead included."""
    while dead := client.list_tasks(status=Status.DEAD, limit=1000).tasks:
        for task in dead:
            client.dismiss(task.id)
    while client.stats()["pending"]:
        for held in client.claim_batch(limit=1000):
            client.complete(held)
