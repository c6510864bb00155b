"""sd_notify as systemd speaks it: what is sent, when, and that a missing listener harms nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pgqueue import App
from pgqueue.worker.systemd import Supervisor

from ..support.waiting import PATIENCE
from .conftest import Start

ROOT = Path(__file__).resolve().parents[2]
UNIT = ROOT / "examples" / "pgqueue-worker.service"


class Listening:
    """The supervisor's end of the socket."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(f"\0{address[1:]}" if address.startswith("@") else address)
        self.socket.settimeout(PATIENCE)

    def hear(self) -> list[str]:
        return self.socket.recv(65536).decode().split("\n")

    def until(self, word: str) -> list[str]:
        """All that is said, up to the datagram that holds this word."""
        said: list[str] = []
        while word not in said:
            said += self.hear()
        return said


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Listening]:
    address = f"@pgqueue-test-{uuid4()}" if request.param == "abstract" else str(tmp_path / "notify")
    listening = Listening(address)
    yield listening
    listening.socket.close()


def test_words_go_out_in_one_datagram_a_line_each(systemd: Listening) -> None:
    Supervisor({"NOTIFY_SOCKET": systemd.address}).tell("READY=1", "STATUS=a\nb")

    assert systemd.hear() == ["READY=1", "STATUS=a b"]


@pytest.mark.parametrize("address", ["", "relative", "vsock:2:1", "/no/such/socket", "@no-such-pgqueue-socket"])
def test_nobody_to_tell_is_no_error(address: str) -> None:
    Supervisor({"NOTIFY_SOCKET": address}).tell("READY=1")


def test_a_supervisor_that_does_not_read_holds_nobody_up(systemd: Listening, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pgqueue.worker.systemd._SEND_WITHIN", 0.001)
    supervisor = Supervisor({"NOTIFY_SOCKET": systemd.address})
    for number in range(1000):
        supervisor.tell(f"STATUS={number}{'x' * 1000}")
    systemd.socket.settimeout(0)
    heard = 0
    with contextlib.suppress(BlockingIOError):
        while systemd.hear():
            heard += 1
    assert 0 < heard < 1000, "what there was no room for is dropped"


@pytest.mark.parametrize(
    ("environment", "every"),
    [
        ({"WATCHDOG_USEC": "30000000"}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": str(os.getpid())}, 15.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({}, None),
    ],
)
def test_watchdog_is_fed_at_half_of_its_time(environment: dict[str, str], every: float | None) -> None:
    assert Supervisor({"NOTIFY_SOCKET": "@x", **environment}).watchdog == every
    assert Supervisor(environment).watchdog is None, "there is nobody to feed"


def test_worker_says_ready_lives_and_says_when_it_stops(
    app: App, start: Start, systemd: Listening, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task
    def work() -> None:
        gate.wait(30)

    monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
    monkeypatch.setenv("WATCHDOG_USEC", "50000")
    work.enqueue()
    worker = start(concurrency=4)
    assert systemd.hear()[0] == "READY=1"
    said = systemd.until("STATUS=working; runs 1 of 4, started 1")
    assert "WATCHDOG=1" in said + systemd.until("WATCHDOG=1")
    worker.stop()
    systemd.until("STOPPING=1")
    systemd.until("WATCHDOG=1")
    gate.set()
    assert worker.join() == 0


def test_worker_that_is_not_live_lets_the_watchdog_starve(
    app: App, start: Start, systemd: Listening, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task
    def work() -> None: ...

    monkeypatch.setenv("NOTIFY_SOCKET", systemd.address)
    monkeypatch.setenv("WATCHDOG_USEC", "600000000")
    worker = start().worker
    systemd.until("READY=1")
    monkeypatch.setattr(worker._vitals._health, "_parts", {"keeper of leases": lambda: False})
    worker._vitals.show()
    worker._vitals._supervisor.tell("STATUS=from here")
    systemd.until("STATUS=from here")
    worker._vitals.show()
    worker._vitals._supervisor.tell("STATUS=to here")
    assert "WATCHDOG=1" not in systemd.until("STATUS=to here")
    assert caplog.text.count("this worker is not live: the keeper of leases has ended") == 1


def test_unit_of_the_example_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd-analyze here")
    # It looks for the program that is named.
    unit = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert "ExecStart=/srv/shop/.venv/bin/pgqueue worker" in text
    unit.write_text(text.replace("/srv/shop/.venv/bin/pgqueue", "/bin/true"))
    done = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert unit.name not in done.stderr, done.stderr


def test_unit_of_the_example_is_the_one_of_the_page() -> None:
    assert f"```ini\n{UNIT.read_text()}```" in (ROOT / "docs" / "operations.md").read_text()
