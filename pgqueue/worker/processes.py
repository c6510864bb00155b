"""Handlers in processes of their own: started where they are needed, used again, and killed where they must be.

One thread starts the children (on Linux they die with the thread that started them), hears them and decides. It never
waits for one of them: sockets do not block, and what a child says is put together from whatever has arrived.

Each child leads a session and a process group of its own: Ctrl-C in a terminal does not reach it, and what its handler
started is killed with it.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing.spawn
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from .. import logs
from ..context import Interrupted
from ..keys import format_duration
from ..lifecycle import Event
from ..sanitize import one_line
from ..store import Settlement
from . import origin
from .calls import Outcome
from .messages import Ask, Broken, Done, Frames, FromChild, FromWorker, Job, Leave, Progress, Ready, Start, encode
from .running import LOST, Running

if TYPE_CHECKING:
    from ..app import App
    from ..config import WorkerConfig

__all__ = ["Processes"]

log = logging.getLogger("pgqueue.worker")

_START_WITHIN = 300.0
"""Seconds that the import of an app may take in a child."""
_START_AGAIN = (1.0, 30.0)
"""Seconds to the next start after one that failed: the first time, and at the most; it doubles."""
_STARTS_AT_ONCE = max(2, os.cpu_count() or 1)
_LEAVE_WITHIN = 5.0
"""Seconds that a child has to close what it opened."""
_WARM_FOR = 300.0
"""Seconds after which an idle child is let go; but for one."""
_LOOK = 0.05
"""Seconds between looks for the dead where the system cannot tell by itself."""
_KILL_WITHIN = 3.0
_GONE_WITHIN = 0.5
"""Seconds between the end of a child's connection and of the child; a busy machine's."""
_READ = 256 * 1024
_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_CHILD = "import sys; sys.path.append({folder!r}); from pgqueue.worker.child import main; main({descriptor})"
"""`python -m pgqueue.worker.child`, where this package is not on the path that an interpreter begins with."""


class _Slot:
    """One child, as the parent knows it."""

    __slots__ = (
        "broken",
        "closed",
        "frames",
        "idle_since",
        "kill_at",
        "killed",
        "leaving",
        "number",
        "out",
        "pidfd",
        "process",
        "ready",
        "run",
        "socket",
        "tasks",
    )

    def __init__(self, process: subprocess.Popen[bytes], connection: socket.socket) -> None:
        self.process = process
        self.socket = connection
        self.pidfd: int | None = None
        self.frames: Frames[FromChild] = Frames(FromChild)
        self.out = bytearray()
        self.ready = False
        self.leaving = False
        self.closed = False
        self.killed: str | None = None
        """Why we killed it: "asked" in vain, or what it did."""
        self.broken: str | None = None
        self.run: Running | None = None
        self.number = 0
        self.tasks = 0
        self.kill_at: float | None = time.monotonic() + _START_WITHIN
        self.idle_since = 0.0

    @property
    def idle(self) -> bool:
        return self.ready and self.run is None and not self.leaving and not self.closed and self.killed is None


class Processes:
    """At most `limit` children. `done`, `lost` and `progress` are called from the thread that runs them all.

    start: makes the first message to a child. grace: how long a handler may unwind before it is killed. recycle: tasks
    after which a child is replaced; 0: never.
    """

    def __init__(
        self,
        start: Callable[[], Start],
        *,
        limit: int,
        grace: timedelta,
        recycle: int,
        done: Callable[[Settlement], None],
        lost: Callable[[Running], None],
        progress: Callable[[Running, int, str | None], None],
    ) -> None:
        self._make_start = start
        self._start_message: bytes | None = None
        self._limit = limit
        self._grace = grace
        self._recycle = recycle
        self._done = done
        self._lost = lost
        self._progress = progress
        try:
            self._directory: str | None = os.getcwd()
        except OSError:
            self._directory = None
        self._lock = threading.Lock()
        self._waiting: deque[Running] = deque()
        self._asked: deque[Running] = deque()
        self._slots: list[_Slot] = []
        self._numbers = 0
        self._start_at = 0.0
        self._start_wait = _START_AGAIN[0]
        self._kill_now = threading.Event()
        self._quiet = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._loop, name="pgqueue-processes", daemon=True)

    @classmethod
    def of(
        cls,
        app: App,
        config: WorkerConfig,
        *,
        worker: str,
        done: Callable[[Settlement], None],
        lost: Callable[[Running], None],
        progress: Callable[[Running, int, str | None], None],
    ) -> Processes | None:
        """Those of a worker; None where no action asks for them. ConfigError: a child could not find one that does."""
        actions = [action for action in app.actions.values() if action.isolation == "process"]
        if not actions:
            return None
        found = origin.locate(app, actions)

        def start() -> Start:
            modules = list(dict.fromkeys(module for module, _ in map(origin.place, actions) if module))
            needs_main = "__main__" in modules or (found is not None and found[0] == "__main__")
            return Start(
                parent=os.getpid(),
                worker=worker,
                path=list(sys.path),
                arguments=list(sys.argv),
                main=origin.main_module() if needs_main else None,
                app=found,
                modules=modules,
                database=(app.database.url, app.database.schema, app.database.pooler),
                log=logs.chosen(),
            )

        return cls(
            start,
            limit=config.concurrency,
            grace=config.cancel_grace,
            recycle=config.process_tasks,
            done=done,
            lost=lost,
            progress=progress,
        )

    # -- called from other threads

    def start(self) -> None:
        """Start the thread. No process yet: those are started as they are needed."""
        self._ours, self._wakes = socket.socketpair()
        self._ours.setblocking(False)
        self._wakes.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ours, selectors.EVENT_READ, None)
        self._thread.start()

    def submit(self, runs: Sequence[Running]) -> None:
        """Start handlers, in order, as processes come free; returns at once."""
        with self._lock:
            self._waiting.extend(runs)
        self._wake()

    def interrupt(self, run: Running) -> None:
        """Tell the handler of `run.reason`; `grace` later it is killed."""
        self._asked.append(run)
        self._wake()

    def kill(self) -> None:
        """Kill all whose handlers were asked to stop. Their outcomes have been said when this returns, but for a child
        that even the system cannot kill.
        """
        if self._thread.is_alive():
            self._quiet.clear()
            self._kill_now.set()
            self._wake()
            self._quiet.wait(_KILL_WITHIN)

    def drop_waiting(self) -> list[Running]:
        """Take back what waits for a process and has not started."""
        with self._lock:
            dropped = list(self._waiting)
            self._waiting.clear()
        return dropped

    def stop(self) -> None:
        """End all children: the idle may close what they opened, the busy are killed."""
        self._ending = True
        if self._thread.is_alive():
            self._wake()
            self._thread.join(_LEAVE_WITHIN + _KILL_WITHIN)

    def _wake(self) -> None:
        # Where the buffer is full, it is about to wake anyway.
        with contextlib.suppress(OSError):
            self._wakes.send(b"\0")

    # -- the thread

    def _loop(self) -> None:
        while True:
            try:
                self._look()
                self._obey()
                self._pass_time(time.monotonic())
                self._assign()
            except Exception:
                log.exception("the processes of handlers are in trouble; trying again")
                time.sleep(_LOOK)
            if self._kill_now.is_set() and not any(slot.run and slot.run.reason for slot in self._slots):
                self._kill_now.clear()
                self._quiet.set()
            if self._ending and not self._slots:
                self._close()
                return

    def _look(self) -> None:
        for key, mask in self._selector.select(self._wait()):
            if key.data is None:
                with contextlib.suppress(OSError):
                    while self._ours.recv(4096):
                        pass
                continue
            slot: _Slot = key.data
            if slot not in self._slots:
                continue
            if key.fileobj is slot.socket:
                if mask & selectors.EVENT_READ:
                    self._read(slot)
                if mask & selectors.EVENT_WRITE:
                    self._write(slot)
            else:
                self._bury(slot)
        for slot in list(self._slots):
            if slot.pidfd is None:
                self._bury(slot)

    def _wait(self) -> float | None:
        """Seconds to the next thing to do that nobody tells of."""
        now = time.monotonic()
        moments = [slot.kill_at for slot in self._slots if slot.kill_at is not None]
        if any(slot.pidfd is None for slot in self._slots):
            moments.append(now + _LOOK)
        idle = [slot.idle_since + _WARM_FOR for slot in self._slots if slot.idle]
        moments += idle if len(idle) > 1 else []
        if self._waiting and self._start_at > now:
            moments.append(self._start_at)
        return max(0.0, min(moments) - now) if moments else None

    def _obey(self) -> None:
        now = time.monotonic()
        while self._asked:
            run = self._asked.popleft()
            slot = next((slot for slot in self._slots if slot.run is run), None)
            if slot is None:
                with self._lock:
                    found = run in self._waiting
                    if found:
                        self._waiting.remove(run)
                if found:
                    self._end_unstarted(run)
                continue
            kill_at = now + self._grace.total_seconds()
            slot.kill_at = kill_at if slot.kill_at is None else min(slot.kill_at, kill_at)
            self._send(slot, Ask(slot.number, run.reason or ""))
        if self._kill_now.is_set():
            for slot in self._slots:
                if slot.run is not None and slot.run.reason is not None:
                    slot.kill_at = now

    def _pass_time(self, now: float) -> None:
        if self._ending:
            for slot in self._slots:
                if slot.idle:
                    self._dismiss(slot)
                elif not slot.leaving:
                    slot.kill_at = now
        for slot in self._slots:
            if slot.kill_at is not None and now >= slot.kill_at and slot.killed is None:
                self._kill(slot, _why_now(slot))
        idle = [slot for slot in self._slots if slot.idle]
        for slot in idle[:-1]:
            if now - slot.idle_since >= _WARM_FOR:
                self._dismiss(slot)

    def _assign(self) -> None:
        while True:
            # The last that came free first: the others may be let go some time.
            idle = max((slot for slot in self._slots if slot.idle), key=lambda slot: slot.idle_since, default=None)
            with self._lock:
                if not self._waiting or idle is None:
                    break
                run = self._waiting.popleft()
            if run.reason is not None:
                self._end_unstarted(run)
            else:
                self._hand(idle, run)
        starting = sum(not slot.ready and slot.killed is None and not slot.closed for slot in self._slots)
        wanted = min(len(self._waiting) - starting, self._limit - len(self._slots), _STARTS_AT_ONCE - starting)
        for _ in range(wanted):
            if self._ending or time.monotonic() < self._start_at:
                return
            self._spawn()

    def _hand(self, slot: _Slot, run: Running) -> None:
        assert run.action is not None  # noqa: S101 - unknown actions are sorted out before
        self._numbers += 1
        slot.number, slot.run = self._numbers, run
        slot.tasks += 1
        slot.kill_at = None
        run.started = True
        if run.timeout is not None:
            run.ends_at = time.monotonic() + run.timeout.total_seconds()
        self._send(slot, Job(slot.number, run.claimed, run.action.name, *origin.place(run.action)))

    def _end_unstarted(self, run: Running) -> None:
        self._say(run, Outcome.of_raise(run, Interrupted(run.reason)))

    def _say(self, run: Running, settlement: Settlement | None) -> None:
        run.ended = True
        if settlement is None:
            self._lost(run)
        else:
            self._done(settlement)

    # -- one child

    def _spawn(self) -> None:
        try:
            if self._start_message is None:
                self._start_message = encode(self._make_start())
            ours, theirs = socket.socketpair()
            try:
                process = subprocess.Popen(
                    [
                        os.fsdecode(multiprocessing.spawn.get_executable()),
                        *subprocess._args_from_interpreter_flags(),  # type: ignore[attr-defined]
                        *("-c", _CHILD.format(folder=_FOLDER, descriptor=theirs.fileno())),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    cwd=self._directory,
                    start_new_session=True,
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
        except Exception as error:  # noqa: BLE001 - no memory, no more processes, no such directory any more
            self._failed_to_start(f"no process could be started for it: {type(error).__name__}: {error}")
            return
        ours.setblocking(False)
        slot = _Slot(process, ours)
        self._slots.append(slot)
        self._selector.register(ours, selectors.EVENT_READ, slot)
        if sys.platform == "linux":
            # Not by SIGCHLD, nor by the end of the socket: the first is the program's, and a handler's own child may
            # hold the second open.
            with contextlib.suppress(OSError):
                slot.pidfd = os.pidfd_open(process.pid)
                self._selector.register(slot.pidfd, selectors.EVENT_READ, slot)
        slot.out += self._start_message
        self._write(slot)

    def _failed_to_start(self, text: str) -> None:
        """The task that waited for it fails with what went wrong; the next start waits, longer each time."""
        self._start_at = time.monotonic() + self._start_wait
        self._start_wait = min(2 * self._start_wait, _START_AGAIN[1])
        with self._lock:
            run = self._waiting.popleft() if self._waiting else None
        if run is not None:
            self._say(run, Outcome.of_death(run, text))
        else:
            log.warning("a handler's process could not start: %s", one_line(text, 300))

    def _send(self, slot: _Slot, message: FromWorker) -> None:
        waits = bool(slot.out)
        slot.out += encode(message)
        if not waits:
            self._write(slot)

    def _write(self, slot: _Slot) -> None:
        if slot.closed:
            return
        try:
            while slot.out:
                del slot.out[: slot.socket.send(slot.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._hang_up(slot)
            return
        self._selector.modify(slot.socket, selectors.EVENT_READ | (selectors.EVENT_WRITE if slot.out else 0), slot)

    def _read(self, slot: _Slot) -> bool:
        """Hear what has arrived; False where that was nothing."""
        if slot.closed:
            return False
        try:
            data = slot.socket.recv(_READ)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._hang_up(slot)
            return False
        slot.frames.feed(data)
        try:
            for message in slot.frames.messages():
                self._heard(slot, message)
        except ValueError as error:
            log.warning("process %d of a handler sends what is no message: %s", slot.process.pid, error)
            self._hang_up(slot)
            self._kill(slot, "said what is no message")
            return False
        return True

    def _heard(self, slot: _Slot, message: FromChild) -> None:
        run = slot.run
        match message:
            case Ready():
                slot.ready = True
                slot.kill_at = None
                slot.idle_since = time.monotonic()
                self._start_at, self._start_wait = 0.0, _START_AGAIN[0]
            case Broken():
                slot.broken = message.text
            case Progress() if run is not None and message.number == slot.number:
                self._progress(run, message.percent, message.message)
            case Done() if run is not None and message.number == slot.number:
                slot.run = None
                slot.kill_at = None
                slot.idle_since = time.monotonic()
                run.completed_elsewhere = message.completed_itself
                if self._recycle and slot.tasks >= self._recycle:
                    self._dismiss(slot)
                event = None if message.event is None else Event(message.event)
                if event is None or (run.reason == LOST and event in (Event.FAIL, Event.BURY)):
                    self._say(run, None)
                else:
                    self._say(run, Settlement(event, run.lease, message.detail, message.delay))

    def _dismiss(self, slot: _Slot) -> None:
        slot.leaving = True
        slot.kill_at = time.monotonic() + _LEAVE_WITHIN
        self._send(slot, Leave())

    def _hang_up(self, slot: _Slot) -> None:
        """It closed its end, or is dead: either way nothing more is to be heard, and without us it must not go on."""
        if not slot.closed:
            slot.closed = True
            self._selector.unregister(slot.socket)
            slot.socket.close()
            # Where it died, how is known in a moment, and is what is to be told; only one that lives on is killed.
            slot.kill_at = time.monotonic() + _GONE_WITHIN

    def _kill(self, slot: _Slot, why: str) -> None:
        slot.killed = why
        slot.kill_at = None
        run = slot.run
        if run is not None and not slot.closed:
            log.warning(
                "killed process %d with task %s (%s): it did not end within %s of being asked to (%s)",
                slot.process.pid,
                run.lease.task_id,
                run.claimed.action,
                format_duration(self._grace),
                run.reason or "the worker is stopping",
            )
        _kill_group(slot.process.pid)

    def _bury(self, slot: _Slot) -> None:
        """Where it is dead: its group with it, then what its handler came to."""
        if not _is_dead(slot.process):
            return
        # While it is a zombie its number is nobody else's, and so is its group's.
        _kill_group(slot.process.pid)
        while self._read(slot):
            pass
        status = slot.process.wait()
        self._slots.remove(slot)
        if slot.pidfd is not None:
            self._selector.unregister(slot.pidfd)
            os.close(slot.pidfd)
        if not slot.closed:
            self._selector.unregister(slot.socket)
            slot.socket.close()
        run, slot.run = slot.run, None
        if run is not None:
            if slot.killed == "asked" and run.reason is not None:
                self._say(run, Outcome.of_kill(run))
            else:
                self._say(run, Outcome.of_death(run, f"its process died: {_how(status, slot)}"))
        elif not slot.ready and not self._ending:
            self._failed_to_start(
                f"its process could not import the app: {slot.broken}"
                if slot.broken is not None
                else f"its process died before it had imported the app: {_how(status, slot)}"
            )

    def _close(self) -> None:
        self._selector.close()
        self._ours.close()
        self._wakes.close()


def _why_now(slot: _Slot) -> str:
    """Why a child is killed whose time is up."""
    if not slot.ready:
        return f"was not ready within {_START_WITHIN:.0f} s"
    if slot.closed and (slot.run is None or slot.run.reason is None):
        return "closed its connection"
    return "asked"


def _is_dead(process: subprocess.Popen[bytes]) -> bool:
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # Somebody in this program waits for any child at all; how it ended is not to be had any more.
        return True


def _kill_group(pid: int) -> None:
    with contextlib.suppress(OSError):
        os.killpg(pid, signal.SIGKILL)


def _how(status: int, slot: _Slot) -> str:
    if slot.killed is not None and slot.killed != "asked":
        return f"killed by the worker, as it {slot.killed}"
    if status >= 0:
        return f"exited with {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}" + (" (out of memory, or by somebody's hand)" if -status == signal.SIGKILL else "")
