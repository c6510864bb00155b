"""Postgres stops and starts 20 times, 200 of its processes are ended, and a firewall forgets a connection, under load.

No worker exits, none idles in silence, nothing is lost, and SIGTERM works in between. Whatever recovery takes is
printed; it is bounded only by the test's patience, but for what a worker promises: that it ends within its drain.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqueue import App, Client, Context, Status
from pgqueue.database import Database

from ..support import Sql, eventually
from ..support.figures import percentile
from ..support.ownserver import OwnServer, asking
from ..support.proxy import Proxy
from .test_outages import effects, more_effects, under_load

pytestmark = [pytest.mark.stress, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
STOPS, TERMINATED = 20, 200
DRAIN = 20.0
ANSWERED_WITHIN = 90.0
"""A call to a connection that is silent is given up after 40 s, and twice in a row is possible."""


def test_twenty_stops_and_two_hundred_terminated_backends_lose_nothing(own_server: OwnServer) -> None:
    url = own_server.url
    back, more = [], []
    with under_load(url) as nobody_left:
        for _ in range(STOPS):
            more_effects(url, 20)
            own_server.stop()
            time.sleep(random.uniform(0, 1.5))
            nobody_left()
            own_server.start()
            began, before = time.monotonic(), effects(url)
            eventually(lambda before=before: effects(url) > before)  # type: ignore[misc]
            back.append(time.monotonic() - began)
            nobody_left()
        dropped = 0
        while dropped < TERMINATED:
            began, before = time.monotonic(), effects(url)
            for _ in range(10):
                dropped += own_server.drop_one()
                time.sleep(random.uniform(0, 0.05))
            eventually(lambda before=before: effects(url) > before)  # type: ignore[misc]
            more.append(time.monotonic() - began)
            nobody_left()
        done = effects(url)
    print(
        f"\n{STOPS} stops: the first effect {percentile(back, 50):.2f} s (p50), {max(back):.2f} s (most) after the"
        f" server was back; {dropped} backends ended, ten at a time: {percentile(more, 50):.2f} s (p50),"
        f" {max(more):.2f} s (most); {done} tasks, each with one effect"
    )


def simple(url: str) -> App:
    app = App(url)

    @app.task(max_attempts=100)
    def quick(ctx: Context) -> None:
        time.sleep(0.02)

    @app.task
    def long(ctx: Context) -> str:
        ctx.sleep(45)
        return "interrupted" if ctx.cancelled else "kept"

    return app


def serve_simple(url: str, lease: str) -> None:
    sys.exit(simple(url).run_worker(concurrency=10, lease=float(lease), drain=DRAIN, poll=1))


@pytest.fixture
def proxied(database_url: str, tmp_path: Path) -> Iterator[Proxy]:
    with Proxy(database_url, tmp_path) as proxy:
        yield proxy


def start(url: str, *, lease: float) -> subprocess.Popen[bytes]:
    command = f"import sys; from {__name__} import serve_simple; serve_simple(*sys.argv[1:])"
    return subprocess.Popen([sys.executable, "-c", command, url, str(lease)], cwd=ROOT)


def test_connections_that_a_firewall_forgot_cost_no_lease_and_nobody_idles(
    proxied: Proxy, database_url: str, sql: Sql
) -> None:
    """A lease of 20 s, half of what an answer may take elsewhere, is renewed over a connection of its own, in time."""
    app = simple(database_url)
    worker = start(proxied.url, lease=20)
    try:
        kept = app.action("long").enqueue().id
        eventually(lambda: app.client.get(kept).status is Status.RUNNING)
        time.sleep(2)
        silent = proxied.hush()
        began = time.monotonic()
        made = [app.action("quick").enqueue().id for _ in range(20)]
        expiries = 0
        while (left := [one for one in made if app.client.get(one).status is not Status.COMPLETED]) or not expiries:
            assert time.monotonic() - began < ANSWERED_WITHIN, f"{len(left)} tasks wait for a silent worker"
            assert worker.poll() is None
            assert app.client.reap() == [], "the worker could not renew its lease, and could have"
            expiries += not left
            time.sleep(0.2)
        took = time.monotonic() - began
        eventually(lambda: app.client.get(kept).status is Status.COMPLETED, 120)
        task = app.client.get(kept)
        assert task.result == "kept"
        assert task.fence == 1
        worker.terminate()
        assert worker.wait(DRAIN) == 0
    finally:
        worker.kill()
        worker.wait()
        app.client.close()
    print(f"\n{silent} connections silent for ever: the next tasks done after {took:.1f} s, no lease lost")


@pytest.mark.parametrize("outage", ["stopped", "frozen"])
def test_sigterm_during_an_outage_ends_the_worker_within_its_drain(own_server: OwnServer, outage: str) -> None:
    app = simple(own_server.url)
    app.client.enqueue_many(app.action("quick").new() for _ in range(3000))
    workers = [start(own_server.url, lease=5) for _ in range(2)]
    try:
        some = "select count(*) > 50 from pgqueue.tasks where status = 'completed'"
        eventually(lambda: asking(own_server.url, some) == [(True,)])
        took = []
        for number, worker in zip((signal.SIGTERM, signal.SIGINT), workers, strict=True):
            if outage == "stopped":
                own_server.stop()
                time.sleep(0.5)
                began = time.monotonic()
                worker.send_signal(number)
                statuses = worker.wait(DRAIN)
                took.append(time.monotonic() - began)
                own_server.start()
            else:
                with own_server.frozen():
                    time.sleep(0.5)
                    began = time.monotonic()
                    worker.send_signal(number)
                    statuses = worker.wait(DRAIN)
                    took.append(time.monotonic() - began)
            assert statuses == 0
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
        app.client.close()
    # What they held comes back by itself.
    client = Client(Database(own_server.url))
    eventually(lambda: client.reap() is not None and client.stats()["running"] == 0)
    [(lost,)] = asking(
        own_server.url, "select count(*) from pgqueue.tasks where status not in ('pending', 'completed')"
    )
    assert lost == 0
    client.close()
    ended = ", ".join(f"{t:.1f} s" for t in took)
    print(f"\nserver {outage}: workers ended {ended} after their signal (drain {DRAIN:g} s)")
