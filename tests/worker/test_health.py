"""Probes and the health file: live, ready, and why not; and that nothing of it holds up a worker."""

from __future__ import annotations

import http.client
import itertools
import json
import logging
import os
import re
import select
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, ConfigError, DatabaseError
from pgqueue.config import WorkerConfig
from pgqueue.patience import Outage, Patience
from pgqueue.worker import health
from pgqueue.worker.health import Health, HealthFile, HealthServer

from ..support import eventually
from ..support.proxy import Proxy
from .conftest import InThread, Start


def ask(url: str, path: str, method: str = "GET") -> tuple[int, dict[str, Any]]:
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    try:
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text else {}
    finally:
        connection.close()


class Clock:
    """The time that `Health` sees."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(health, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def outage() -> Outage:
    return Outage()


# -- what is live, what is ready


def working(outage: Outage, **parts: Callable[[], bool]) -> Health:
    well = Health(outage, parts, longest_silence=40)
    well.turned()
    well.phase = health.WORKING
    return well


def test_worker_that_starts_is_live_and_not_ready(outage: Outage) -> None:
    well = Health(outage, {"keeper": lambda: False}, longest_silence=40)

    assert well.not_live() == []
    assert "the schema has not been looked at yet" in well.not_ready()[0]


def test_working_is_live_and_ready(outage: Outage, clock: Clock) -> None:
    outage.answered_at = clock.now

    well = working(outage, keeper=lambda: True)

    assert (well.not_live(), well.not_ready()) == ([], [])


def test_part_that_has_ended_is_named(outage: Outage, clock: Clock) -> None:
    outage.answered_at = clock.now
    well = working(outage, keeper=lambda: False, settler=lambda: True)

    assert well.not_live() == ["the keeper has ended"]
    assert well.not_ready() == ["the keeper has ended"]


def test_loop_that_no_longer_turns_is_not_live(outage: Outage, clock: Clock) -> None:
    well = working(outage)
    well.turned(3600)

    clock.now += 3600 + 119
    assert well.not_live() == []
    clock.now += 2
    assert well.not_live() == ["the claim loop has not turned for 121 s"]


def test_outage_makes_it_unready_and_leaves_it_live(outage: Outage, clock: Clock) -> None:
    outage.answered_at = clock.now
    well = working(outage)
    outage.failed_at = clock.now + 1

    clock.now += 4
    assert well.not_ready() == [], "a blip"
    clock.now += 2
    assert well.not_ready() == ["the database has not answered for 6 s"]
    assert well.not_live() == []
    outage.answered_at = clock.now
    assert well.not_ready() == []


def test_silence_alone_makes_it_unready(outage: Outage, clock: Clock) -> None:
    outage.answered_at = clock.now
    well = working(outage)

    clock.now += 39
    assert well.not_ready() == []
    clock.now += 2
    assert well.not_ready() == ["the database has not answered for 41 s"]


@pytest.mark.parametrize(
    ("phase", "says"), [("retiring", "max_tasks"), ("draining", "told to stop"), ("ending", "stop")]
)
def test_worker_that_goes_is_live_and_not_ready(outage: Outage, clock: Clock, phase: str, says: str) -> None:
    outage.answered_at = clock.now
    well = working(outage)
    well.phase = phase

    assert well.not_live() == []
    [why] = well.not_ready()
    assert phase in why or "draining" in why
    assert says in why


# -- over HTTP


@pytest.fixture
def served(outage: Outage) -> Iterator[tuple[str, Health]]:
    well = working(outage)
    server = HealthServer("127.0.0.1:0", well, lambda: {"worker": "w", "running": 3})
    yield server.open(), well
    server.close()


def test_answers_are_json_with_what_it_is_about(served: tuple[str, Health]) -> None:
    url, well = served

    assert ask(url, "/live") == (200, {"live": True, "why": [], "worker": "w", "running": 3})
    assert ask(url, "/ready?verbose=1") == (200, {"ready": True, "why": [], "worker": "w", "running": 3})
    assert ask(url, "/live", "HEAD") == (200, {})
    well.phase = health.DRAINING
    assert ask(url, "/ready") == (
        503,
        {"ready": False, "why": ["draining: it was told to stop"], "worker": "w", "running": 3},
    )
    assert ask(url, "/live")[0] == 200


def test_other_paths_and_methods_are_refused(served: tuple[str, Health]) -> None:
    url, _ = served
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=30)
    connection.request("POST", "/live", "x")

    assert connection.getresponse().status == 501
    connection.close()
    assert ask(url, "/") == (404, {"error": "there is nothing here; ask for /live or /ready"})


def test_clients_that_say_nothing_hold_up_neither_others_nor_the_end(
    served: tuple[str, Health], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health._Request, "timeout", 300)
    url, _ = served
    host, _, port = url.removeprefix("http://").rpartition(":")
    silent = [socket.create_connection((host, int(port)), timeout=30) for _ in range(health._CLIENTS - 1)]

    assert ask(url, "/live")[0] == 200
    more = [socket.create_connection((host, int(port)), timeout=30) for _ in range(2)]
    closed, _, _ = select.select(more, [], [], 30)
    assert closed[0].recv(1) == b"", "there is no place for a client too many"
    for one in silent + more:
        one.close()


def test_port_in_use_is_refused_in_a_line(outage: Outage) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError) as refused:
            HealthServer(f"127.0.0.1:{port}", working(outage), dict).open()
    assert refused.value.field == "health_port"
    assert f"health_port 127.0.0.1:{port} cannot be had (address already in use)" in str(refused.value)
    assert "give each a port of its own" in str(refused.value)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (8080, "127.0.0.1:8080"),
        ("8080", "127.0.0.1:8080"),
        ("0.0.0.0:80", "0.0.0.0:80"),
        ("[::1]:080", "[::1]:80"),
        ("localhost:0", "localhost:0"),
    ],
)
def test_health_port_is_a_port_or_an_address(given: object, kept: str) -> None:
    assert WorkerConfig.of({"health_port": given}).health_port == kept


@pytest.mark.parametrize("given", ["", "x", ":80", "1:2:3", "::1:80", "65536", -1, True, 80.0, "a b:80", "http://a:80"])
def test_health_port_that_is_none_is_refused(given: object) -> None:
    with pytest.raises(
        ConfigError, match=r"health_port cannot be .*; give a port up to 65535, such as 8080"
    ) as refused:
        WorkerConfig.of({"health_port": given})
    assert refused.value.field == "health_port"


# -- of a worker


def health_url(caplog: pytest.LogCaptureFixture) -> str:
    found = eventually(lambda: re.search(r"health: (http://\S+)/live", caplog.text))
    assert found is not None
    return found[1]


def test_worker_says_how_it_is_until_the_end(
    app: App, start: Start, gate: threading.Event, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @app.task
    def work() -> None:
        gate.wait(30)

    file = tmp_path / "live"
    caplog.set_level(logging.INFO, "pgqueue")
    work.enqueue()
    worker = start(health_port=0, health_file=str(file), name="w-1", concurrency=3)
    url = health_url(caplog)

    def running() -> bool:
        status, answer = ask(url, "/ready")
        return status == 200 and answer["running"] == 1

    eventually(running)
    assert ask(url, "/ready")[1] == {
        "ready": True,
        "why": [],
        "worker": "w-1",
        "phase": "working",
        "running": 1,
        "concurrency": 3,
        "started": 1,
    }
    assert file.exists()
    worker.stop()
    eventually(lambda: ask(url, "/ready")[0] == 503)
    assert ask(url, "/live")[0] == 200
    gate.set()
    assert worker.join() == 0
    assert not file.exists()
    with pytest.raises(ConnectionRefusedError):
        ask(url, "/live")


def test_file_is_touched_only_while_the_worker_is_live(
    app: App, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work() -> None: ...

    file = tmp_path / "live"
    worker = start(health_file=str(file))
    eventually(file.exists)
    eventually(worker.worker.started.is_set)
    vitals = worker.worker._vitals
    os.utime(file, (0, 0))
    assert vitals.show()
    assert file.stat().st_mtime > 0
    monkeypatch.setattr(vitals._health, "not_live", lambda: ["broken"])
    os.utime(file, (0, 0))
    assert not vitals.show()
    assert file.stat().st_mtime == 0


@pytest.mark.parametrize("path", ["no/such/directory/live", "."])
def test_health_file_that_cannot_be_written_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ConfigError, match=r"health_file .* cannot be written") as refused:
        HealthFile(str(tmp_path / path)).open()
    assert refused.value.field == "health_file"


def test_worker_that_is_refused_leaves_the_file_of_another_alone(tmp_path: Path) -> None:
    app = App("postgresql://somebody@127.0.0.1:1/nowhere")

    @app.task
    def work() -> None: ...

    (tmp_path / "live").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError):
        app.run_worker(health_port=taken.getsockname()[1], health_file=str(tmp_path / "live"))
    assert (tmp_path / "live").exists()


def test_worker_that_cannot_start_gives_its_port_back_and_leaves_no_file(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    app = App("postgresql://somebody@127.0.0.1:1/nowhere")

    @app.task
    def work() -> None: ...

    caplog.set_level(logging.INFO, "pgqueue")
    with pytest.raises(DatabaseError):
        app.run_worker(health_port=0, health_file=str(tmp_path / "live"))
    with pytest.raises(ConnectionRefusedError):
        ask(health_url(caplog), "/live")
    assert not (tmp_path / "live").exists()


def test_outage_is_seen_by_ready_alone_and_said_with_one_voice(
    database_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "_SILENCE", 0.2)
    caplog.set_level(logging.INFO, "pgqueue")
    with tempfile.TemporaryDirectory() as directory:
        with Proxy(database_url, Path(directory)) as proxy:
            app = App(proxy.url)

            @app.task
            def work() -> None: ...

            worker = InThread(app, {"health_port": 0})
            try:
                url = health_url(caplog)
                eventually(lambda: ask(url, "/ready")[0] == 200)
            except BaseException:
                worker.stop()
                raise
        # The proxy has gone, and so has the way to the server.
        try:
            eventually(lambda: ask(url, "/ready")[0] == 503)
            assert "the database has not answered for" in ask(url, "/ready")[1]["why"][0]
            assert ask(url, "/live")[0] == 200
            # Long enough for every loop to have failed more than once.
            eventually(lambda: sum("cannot" in record.getMessage() for record in caplog.records) >= 3)
            next(Path(directory).iterdir()).unlink()
            with Proxy(database_url, Path(directory)):
                eventually(lambda: ask(url, "/ready")[0] == 200)
                worker.stop()
                assert worker.join() == 0
        finally:
            worker.stop()
            worker.stop()
    said = [record.created for record in caplog.records if "cannot" in record.getMessage()]
    assert all(later - one >= 0.99 for one, later in itertools.pairwise(said))
    assert sum("the database is back" in record.getMessage() for record in caplog.records) == 1
    app.client.close()


# -- one voice for outages


def test_loops_over_one_database_say_one_line_a_second_together(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("pgqueue.patience.monotonic", lambda: now[0])
    caplog.set_level(logging.INFO, "pgqueue")
    stopping, outage = threading.Event(), Outage()
    stopping.set()  # so that nobody waits
    loops = {
        what: Patience(logging.getLogger(f"pgqueue.{what}"), stopping, outage) for what in ("claim", "reap", "renew")
    }

    for _ in range(40):
        for what, loop in loops.items():
            loop.failed(f"cannot {what}", DatabaseError("away"))
        now[0] += 0.1
    lines = [record.getMessage() for record in caplog.records]
    assert 4 <= len(lines) <= 5
    assert lines[0] == "cannot claim: away"
    assert sorted(lines[-1].removesuffix(": away").split(", ")) == ["cannot claim", "cannot reap", "cannot renew"]
    caplog.clear()
    for loop in loops.values():
        loop.worked()
        now[0] += 0.5
    assert [record.getMessage() for record in caplog.records] == ["the database is back after 4.0 s"]
    assert outage.answered_at == pytest.approx(now[0] - 0.5)
