"""A worker that has nothing to do costs next to nothing, and one that has much to do does not grow.

A day's churn is scaled to a minute and a half: as many tasks as there is time for, under leases of a second, so that
claims, renewals, settlements, connections and threads turn over as often as in a day of common ones.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pgqueue import App, Context, RetryAfter, Snooze

from ..support import Sql, eventually
from ..support.proxy import CountingProxy
from ..support.vitals import Use, use_of

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
IDLE, CHURN, WARM_UP = 60.0, 75.0, 15.0
CPU, QUERIES, RSS = 0.005, 1.0, 80.0
"""The promise: of a core, a second and queue, and MiB."""
ONLY = ("BEGIN", "COMMIT", "ROLLBACK")
LEFT = "select action, status, attempts, fence, agent, not_before from pgqueue.tasks where active limit 10"
CONNECTIONS = (
    "select count(*) from pg_stat_activity"
    " where datname = current_database() and starts_with(application_name, 'pgqueue') and pid <> pg_backend_pid()"
)


def declare(url: str) -> App:
    app = App(url)

    @app.task
    def work(ctx: Context) -> None:
        time.sleep(random.uniform(0, 0.01))

    @app.task
    async def awork(ctx: Context) -> dict[str, str]:
        await asyncio.sleep(random.uniform(0, 0.02))
        return {"some": "result" * 20}

    @app.task(backoff=lambda n: 0.1)
    def fails(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("again")
        raise RetryAfter(0.05) if ctx.attempt == 2 else ValueError("dead")

    @app.task
    def longer(ctx: Context) -> Snooze | None:
        ctx.progress(50, "half")
        ctx.sleep(random.uniform(0.5, 2))
        return Snooze(0.1) if random.random() < 0.2 else None

    return app


def serve(url: str, lease: str, concurrency: str) -> None:
    sys.exit(declare(url).run_worker(lease=float(lease), concurrency=int(concurrency)))


APP = """
from pgqueue import App

app = App()

@app.task
def work() -> None: ...
"""


def start(url: str, *, lease: float, concurrency: int) -> subprocess.Popen[bytes]:
    command = f"import sys; from {__name__} import serve; serve(*sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", command, url, str(lease), str(concurrency)], cwd=ROOT)


def test_idle_worker_uses_next_to_nothing(database_url: str, sql: Sql, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text(APP)
    with CountingProxy(database_url, tmp_path) as proxy:
        # As anybody starts it, and with nothing of the tests in its memory.
        command = [sys.executable, "-m", "pgqueue", "worker", "--app", "idle:app", "--app-dir", str(tmp_path)]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PGQUEUE_DATABASE_URL": proxy.url, "PYTHONPATH": path}
        worker = subprocess.Popen(command, cwd=tmp_path, env=environment)
        try:
            eventually(lambda: any(text.startswith("listen") for text in proxy.statements))
            # The looks of the first moments are over.
            time.sleep(5)
            proxy.statements.clear()
            before, began = use_of(worker.pid), time.monotonic()
            time.sleep(IDLE)
            after, took = use_of(worker.pid), time.monotonic() - began
            asked = {text: count for text, count in proxy.statements.items() if not text.startswith(ONLY)}
            framed = sum(proxy.statements.values())
            worker.terminate()
            assert worker.wait(30) == 0
        finally:
            worker.kill()
            worker.wait()
    cpu, queries = (after.cpu - before.cpu) / took, sum(asked.values()) / took
    print(
        f"\nidle for {took:.0f} s: {100 * cpu:.2f} % of a core, {queries:.2f} queries/s ({framed / took:.2f} with BEGIN"
        f" and COMMIT) for one queue, {after.rss:.0f} MiB, {after.threads} threads, {after.files} files"
    )
    for text, count in sorted(asked.items(), key=lambda one: -one[1]):
        print(f"  {count / took:.2f}/s {' '.join(text.split())[:100]}")
    # The promises are of a machine with two idle cores; which this is not known to be.
    assert queries <= 2 * QUERIES
    assert after.rss <= 1.5 * RSS
    assert cpu <= 4 * CPU, f"{100 * cpu:.2f} % of a core: far beyond the promised {100 * CPU:g} %"


def thirds(seen: list[tuple[Use, int]], of: int) -> tuple[list[float], list[float]]:
    """The second third and the last of what was seen, of one of its figures."""
    values = [float((*use, connections)[of]) for use, connections in seen]
    third = len(values) // 3
    return values[third : 2 * third], values[2 * third :]


def test_churn_leaves_memory_connections_threads_and_files_flat(database_url: str, sql: Sql) -> None:
    app = declare(database_url)
    worker = start(database_url, lease=1, concurrency=30)
    mix = ["work"] * 40 + ["awork"] * 40 + ["fails"] * 5 + ["longer"] * 5
    seen: list[tuple[Use, int]] = []
    sent = 0
    began = time.monotonic()
    look_at = began + WARM_UP
    try:
        while (now := time.monotonic()) < began + WARM_UP + CHURN:
            assert worker.poll() is None
            if app.client.stats()["pending"] < 500:
                random.shuffle(mix)
                made = [
                    app.action(name).using(agent=f"host-{n % 9}" if n % 4 == 0 else None).new()
                    for n, name in enumerate(mix)
                ]
                sent += len(app.client.enqueue_many(made))
            else:
                time.sleep(0.05)
            if now >= look_at:
                seen.append((use_of(worker.pid), int(sql(CONNECTIONS)[0][0])))
                look_at = now + 0.5
        eventually(lambda: not sql(LEFT), 60)
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
        app.client.close()
    said = []
    for name, of, allowed in (("MiB", 1, 0.03), ("threads", 2, 0), ("files", 3, 0), ("connections", 4, 0)):
        second, last = thirds(seen, of)
        said.append(f"{statistics.median(second):.1f} → {statistics.median(last):.1f} {name}")
        assert statistics.median(last) <= statistics.median(second) * (1 + allowed), said[-1]
        assert max(last) <= max(second) * (1 + allowed) + (0 if name == "MiB" else 1), (
            f"{name}: {max(second)}, {max(last)}"
        )
    [(attempts, claims)] = sql("select sum(attempts), sum(fence) from pgqueue.tasks")
    assert sql("select count(*) from pgqueue.tasks where status not in ('completed', 'dead')") == [(0,)]
    print(
        f"\n{sent} tasks, {claims} claims, {attempts} attempts in {WARM_UP + CHURN:.0f} s, leases of 1 s;"
        f" second third → last third (medians): {', '.join(said)}"
    )
