"""Whether a worker is well, for whoever looks at it: probes over HTTP, the age of a file, a supervisor's watchdog.

*Live*: restarting would not help. *Ready*: it takes tasks now. An outage of the database makes a worker unready and
leaves it live: it waits, and tries again by itself.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import socketserver
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from time import monotonic
from typing import Any, Final

from ..config import split_address
from ..errors import ConfigError
from ..keys import shown
from ..patience import Outage

__all__ = ["DRAINING", "ENDING", "RETIRING", "STARTING", "WORKING", "Health", "HealthFile", "HealthServer"]

STARTING, WORKING, RETIRING, DRAINING, ENDING = "starting", "working", "retiring", "draining", "ending"

_LATE: Final = 120.0
"""Seconds that a pass of the claim loop may take: three calls, each given up after 40 s, and it is still well."""
_SILENCE: Final = 5.0
"""Seconds without an answer, after a failure, until the database counts as away."""
_TURN: Final = 0.2
"""Seconds that the server may need to notice that it is to stop."""
_REQUEST: Final = 5.0
"""Seconds that a client may take to send its request."""
_CLIENTS: Final = 16


class Health:
    """What is known of one worker. Reads flags and clocks, never the database; safe between threads.

    parts: what must be alive, by name: each says whether it is.
    longest_silence: seconds without an answer of the database that are no sign of anything.
    """

    def __init__(self, outage: Outage, parts: Mapping[str, Callable[[], bool]], *, longest_silence: float) -> None:
        self._outage = outage
        self._parts = parts
        self._longest_silence = longest_silence
        self._expected = 0.0
        self.phase = STARTING

    def turned(self, pause: float = 0.0) -> None:
        """The loop is here, and will be again within `pause` seconds and what a pass takes."""
        self._expected = monotonic() + pause

    def not_live(self) -> list[str]:
        """Why a supervisor should start another worker; empty: there is no reason to."""
        if self.phase in (STARTING, ENDING):
            return []
        why = [f"the {name} has ended" for name, alive in self._parts.items() if not alive()]
        late = monotonic() - self._expected
        if late > _LATE:
            why.append(f"the claim loop has not turned for {late:.0f} s")
        return why

    def not_ready(self) -> list[str]:
        """Why it takes no tasks now; empty: it does."""
        match self.phase:
            case phase if phase == STARTING:
                return ["starting: the schema has not been looked at yet, or the lifespan has not opened"]
            case phase if phase == RETIRING:
                return ["retiring: it has reached its max_tasks or max_lifetime, and finishes what it holds"]
            case phase if phase in (DRAINING, ENDING):
                return ["draining: it was told to stop"]
        return self.not_live() + self._silence()

    def _silence(self) -> list[str]:
        answered, failed = self._outage.answered_at, self._outage.failed_at
        if answered is None:
            return ["the database has not answered yet"] if failed is not None else []
        silent = monotonic() - answered
        away = failed is not None and failed > answered and silent > _SILENCE
        return [f"the database has not answered for {silent:.0f} s"] if away or silent > self._longest_silence else []


class HealthServer:
    """`/live` and `/ready` over HTTP: 200, or 503 with the reasons, as JSON. Threads of its own, which hold up nobody.

    address: as WorkerConfig keeps it, host:port; port 0 is any that is free. ConfigError, from `open`, where it cannot
    be had. `about` is what every answer says besides.
    """

    def __init__(self, address: str, health: Health, about: Callable[[], Mapping[str, object]]) -> None:
        self._address = address
        self._health = health
        self._about = about
        self._server: _Server | None = None

    def open(self) -> str:
        """Take the port and begin to answer; returns the URL."""
        host, port = split_address(self._address)
        try:
            family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            server = _Server(family, where, self._answer)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            way_out = (
                "another worker or program is there; give each a port of its own"
                if error.errno == errno.EADDRINUSE
                else "name an address of this machine and a port that this user may have"
            )
            raise ConfigError(
                f"health_port {self._address} cannot be had ({why}): {way_out}", field="health_port"
            ) from error
        self._server = server
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": _TURN}, name="pgqueue-health", daemon=True
        ).start()
        name = f"[{host}]" if ":" in host else host
        return f"http://{name}:{server.server_address[1]}"

    def close(self) -> None:
        """Give the port back. What is being answered ends by itself."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _answer(self, path: str) -> tuple[int, Mapping[str, object]]:
        looks = {"/live": self._health.not_live, "/ready": self._health.not_ready}
        look = looks.get(path.partition("?")[0])
        if look is None:
            return 404, {"error": "there is nothing here; ask for /live or /ready"}
        why = look()
        return 503 if why else 200, {path.partition("?")[0][1:]: not why, "why": why, **self._about()}


class _Server(socketserver.ThreadingTCPServer):
    """Not http.server's: that one asks the name service who it is."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, family: int, where: Any, answer: Callable[[str], tuple[int, Mapping[str, object]]]) -> None:
        self.address_family = family
        self.answer = answer
        self._places = threading.BoundedSemaphore(_CLIENTS)
        super().__init__(where, _Request)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            # No thread could be started.
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or sent nonsense, is not worth a line."""


class _Request(BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST
    server_version = "pgqueue"
    sys_version = ""

    def do_GET(self) -> None:
        self._reply(body=True)

    def do_HEAD(self) -> None:
        self._reply(body=False)

    def _reply(self, *, body: bool) -> None:
        status, answer = self.server.answer(self.path)
        text = f"{json.dumps(answer)}\n".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        if body:
            self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes come every few seconds; they are no news."""


class HealthFile:
    """A file whose mtime says when the worker was last live: for probes that run a command. Gone after a clean end."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._made = False

    def open(self) -> None:
        """Make the file. ConfigError where that cannot be."""
        try:
            self.touch()
            self._made = True
        except OSError as error:
            raise ConfigError(
                f"health_file {shown(str(self._path), width=200)} cannot be written"
                f" ({(error.strerror or str(error)).lower()}): name a file in a directory that the worker may write to",
                field="health_file",
            ) from error

    def touch(self) -> None:
        # Not Path.touch: on a directory that would succeed.
        with self._path.open("ab"):
            pass
        self._path.touch()

    def close(self) -> None:
        # One that was never opened here is somebody else's.
        if self._made:
            with contextlib.suppress(OSError):
                self._path.unlink()
