"""What the world outside sees of a worker: probes over HTTP, a file's age, a supervisor that is told and waits to hear.

One object with the phases of a worker's life as its verbs. Nothing in here keeps a worker from ending.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from ..config import WorkerConfig
from ..patience import Outage
from .health import DRAINING, ENDING, RETIRING, WORKING, Health, HealthFile, HealthServer
from .systemd import Supervisor

__all__ = ["Vitals"]

log = logging.getLogger("pgqueue.worker")

_TICK: Final = 2.0
_COMPLAIN_EVERY: Final = 60.0


class Vitals:
    """The vital signs of one worker, and a thread that shows them every two seconds, or as often as the watchdog wants.

    Without health_file and supervisor there is no thread, without health_port no server.

    parts: what must be alive, by name. counts: running, concurrency, started: what probes and `systemctl status` show.
    """

    def __init__(
        self,
        config: WorkerConfig,
        outage: Outage,
        *,
        name: str,
        parts: Mapping[str, Callable[[], bool]],
        counts: Callable[[], Mapping[str, int]],
    ) -> None:
        # Reaper and sweeper ask at least that often, whatever else there is to do.
        silence = 2 * config.maintenance.total_seconds() + 5
        self._health = Health(outage, parts, longest_silence=silence)
        self._counts = counts
        self._name = name
        self._server = (
            None if config.health_port is None else HealthServer(str(config.health_port), self._health, self._about)
        )
        self._file = None if config.health_file is None else HealthFile(config.health_file)
        self._supervisor = Supervisor()
        self._status = ""
        self._complained = -_COMPLAIN_EVERY
        self._tick = min(_TICK, self._supervisor.watchdog or _TICK)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="pgqueue-vitals", daemon=True)
        self.turned = self._health.turned

    def open(self) -> None:
        """Take the port and make the file. ConfigError where one of them cannot be had."""
        try:
            if self._server is not None:
                log.info("health: %s/live and /ready", self._server.open())
            if self._file is not None:
                self._file.open()
        except BaseException:
            self.close()
            raise

    def working(self) -> None:
        """All parts run: from now on there is something to be said about them."""
        self._health.turned()
        self._health.phase = WORKING
        self._supervisor.tell("READY=1", f"STATUS={self._say()}")
        if self._file is not None or self._supervisor.there:
            self._thread.start()

    def retiring(self) -> None:
        """It claims no more, and finishes what it holds."""
        self._health.phase = RETIRING

    def draining(self) -> None:
        """It was told to stop, or has nothing more to do."""
        self._health.phase = DRAINING
        self._supervisor.tell("STOPPING=1", f"STATUS={self._say()}")

    def ending(self) -> None:
        """Its parts end now, and that is as it should be."""
        self._health.phase = ENDING

    def close(self) -> None:
        """Give the port back, and remove the file."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(5)
        if self._file is not None:
            self._file.close()
        if self._server is not None:
            self._server.close()

    def show(self) -> bool:
        """One look, passed on; returns whether the worker is live."""
        if (status := self._say()) != self._status:
            self._status = status
            self._supervisor.tell(f"STATUS={status}")
        if why := self._health.not_live():
            self._complain("this worker is not live: %s", ", ".join(why))
            return False
        if self._supervisor.watchdog is not None:
            self._supervisor.tell("WATCHDOG=1")
        if self._file is not None:
            try:
                self._file.touch()
            except OSError as error:
                self._complain("cannot touch the health file: %s", error)
        return True

    def _about(self) -> Mapping[str, object]:
        return {"worker": self._name, "phase": self._health.phase, **self._counts()}

    def _say(self) -> str:
        counts = self._counts()
        return f"{self._health.phase}; runs {counts['running']} of {counts['concurrency']}, started {counts['started']}"

    def _complain(self, text: str, what: object) -> None:
        now = time.monotonic()
        if now - self._complained >= _COMPLAIN_EVERY:
            self._complained = now
            log.error(text, what)

    def _loop(self) -> None:
        while not self._ended.wait(self._tick):
            try:
                self.show()
            except Exception:
                log.exception("cannot say how the worker is")
