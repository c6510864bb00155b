"""A handler's process: `main(descriptor)` serves the worker at the other end of a socketpair.

One task at a time: a `def` handler in the main thread, an `async def` on a loop in a thread. Another thread listens, so
that a request to stop reaches a busy handler. When the worker is gone, so is this process, at once: nobody would settle
what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import faulthandler
import importlib
import logging
import multiprocessing.spawn
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Coroutine, Iterator, Mapping
from datetime import datetime
from typing import Any

from .. import logs
from ..app import Action, App
from ..context import Context, Stop
from ..database import Database
from ..errors import ConfigError
from ..sanitize import describe
from ..store import Settlement
from . import origin
from .calls import Calls
from .lifespan import Opened
from .loops import LoopThread
from .messages import Ask, Broken, Done, Frames, FromChild, FromWorker, Job, Leave, Progress, Ready, Start, encode
from .running import Running

log = logging.getLogger("pgqueue.worker")

ORPHANED = 70
"""Exit status where the worker is gone; nobody reads it."""
_PR_SET_PDEATHSIG = 1
_CLOSE_WITHIN = 3.0
"""Seconds that what handlers left on the loop, and the asynchronous client, have to close."""


class Child:
    """This process, over its socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._frames: Frames[FromWorker] = Frames(FromWorker)
        self._messages = self._listen()
        self._jobs: queue.SimpleQueue[tuple[Job, Running] | None] = queue.SimpleQueue()
        self._running: tuple[int, Running] | None = None
        self._writing = threading.Lock()
        self._app: App | None = None
        self._start: Start | None = None
        self._worker = ""
        self._calls = _Limited(self._context)
        self._opened: Opened | None = None
        self._loop_thread: LoopThread | None = None

    def run(self) -> int:
        """Import the app, run what comes until there is no more to come; the exit status."""
        start = next(self._messages)
        if not isinstance(start, Start):
            raise TypeError(f"the first message is a {type(start).__name__}")
        _die_with(start.parent)
        threading.Thread(target=self._hear, name="pgqueue-hear", daemon=True).start()
        try:
            self._begin(start)
        except BaseException as error:  # noqa: BLE001 - SystemExit at the top of a module
            self._say(Broken(describe(error)))
            return 1
        self._say(Ready())
        while (item := self._jobs.get()) is not None:
            self._answer(*item)
            del item
        if self._opened is not None:
            self._on_loop(self._opened.leave())
        if self._loop_thread is not None:
            self._loop_thread.stop(_CLOSE_WITHIN)
        return 0

    # -- the app

    def _begin(self, start: Start) -> None:
        self._start = start
        self._worker = start.worker
        sys.path[:] = start.path
        sys.argv[:] = start.arguments
        if start.log is not None:
            logs.setup(*start.log)
        origin.IMPORTING.set()
        if start.main is not None:
            multiprocessing.spawn.prepare({f"init_main_from_{start.main[0]}": start.main[1]})
        for module in start.modules:
            importlib.import_module(module)
        if start.app is not None:
            module, name = start.app
            app = getattr(importlib.import_module(module), name, None)
            if not isinstance(app, App):
                raise ConfigError(f"{module}:{name} is no App here, though it is one in the worker")
            self._adopt(app)
        origin.IMPORTING.clear()

    def _adopt(self, app: App) -> None:
        """Once per process, before its first task: the app works over the worker's database, and its lifespan opens."""
        assert self._start is not None  # noqa: S101 - the first message
        url, schema, pooler = self._start.database
        app.database = Database(url, schema=schema, pooler=pooler, application_name="pgqueue handler")
        app._client = None
        self._app = app
        if app.lifespan is not None:
            self._opened = Opened(app)
            self._on_loop(self._opened.enter())

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        if self._loop_thread is None:
            self._loop_thread = LoopThread(self._close)
            self._loop_thread.start()
        return self._loop_thread.loop

    def _on_loop(self, work: Coroutine[Any, Any, object]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _find(self, job: Job) -> Action[..., Any]:
        action = self._app.names.get(job.action) if self._app is not None else None
        if action is None:
            action = origin.finds(job.module, job.qualname, app=self._app, name=job.action)
            if action is None:
                raise ConfigError(
                    f"action {job.action!r} was not declared by importing {job.module} in a process; declare it at the"
                    " top level of a module"
                )
            if self._app is None:
                self._adopt(action.app)
        return action

    def _context(self, run: Running, stop: Stop, deadline: datetime | None) -> Context:
        assert self._app is not None and self._running is not None  # noqa: S101, PT018
        app, number = self._app, self._running[0]
        return Context(
            run.claimed,
            stop=stop,
            client=app.client,
            async_client=lambda: app.async_client,
            progress=lambda percent, message: self._say(Progress(number, percent, message)),
            deadline=deadline,
            state=None if self._opened is None else self._opened.state,
        )

    # -- one task

    def _answer(self, job: Job, run: Running) -> None:
        settlement = self._run(job, run)
        self._running = None
        if settlement is None:
            self._say(Done(job.number, None, None, None, run.completed_itself))
        else:
            event = settlement.event.value
            self._say(Done(job.number, event, settlement.detail, settlement.delay, run.completed_itself))

    def _run(self, job: Job, run: Running) -> Settlement | None:
        try:
            run.belongs_to(self._find(job))
            if not run.action.is_async:  # type: ignore[union-attr]
                with logs.inside(run.claimed, self._worker):
                    return self._calls.call(run)
            ended: queue.SimpleQueue[Settlement | None] = queue.SimpleQueue()
            self._loop.call_soon_threadsafe(self._start_on_loop, run, ended)
            return ended.get()
        except BaseException as error:  # noqa: BLE001 - a KeyboardInterrupt from outside, between two steps
            return self._calls.raised(run, error)

    def _start_on_loop(self, run: Running, ended: queue.SimpleQueue[Settlement | None]) -> None:
        async def go() -> None:
            logs.enter(run.claimed, self._worker)
            ended.put(await self._calls.acall(run))

        run.asyncio_task = self._loop.create_task(go())

    async def _close(self) -> None:
        if self._app is not None:
            await self._app.aclose()

    # -- the worker's side

    def _listen(self) -> Iterator[FromWorker]:
        """Every message, in order. The process ends where the worker is gone."""
        while True:
            try:
                yield from self._frames.messages()
                data = self._socket.recv(64 * 1024)
                if not data:
                    os._exit(ORPHANED)
                self._frames.feed(data)
            except OSError:
                os._exit(ORPHANED)

    def _hear(self) -> None:
        for message in self._messages:
            match message:
                case Job():
                    run = Running(message.claimed, None)
                    self._running = (message.number, run)
                    self._jobs.put((message, run))
                case Ask():
                    running = self._running
                    if running is not None and running[0] == message.number:
                        self._interrupt(running[1], message.reason)
                case Leave():
                    self._jobs.put(None)
        # Not reached while the process is of use.
        os._exit(ORPHANED)

    def _interrupt(self, run: Running, reason: str) -> None:
        run.stopper().set(reason)
        if run.asyncio_task is not None:
            self._loop.call_soon_threadsafe(run.asyncio_task.cancel)

    def _say(self, message: FromChild) -> None:
        data = encode(message)
        with self._writing:
            self._socket.sendall(data)


class _Limited(Calls):
    """Calls handlers with their memory limit in force, and only them: what is said about a failure needs some too."""

    def _invoke(self, run: Running, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        if run.memory is None:
            return super()._invoke(run, args, kwargs)
        if run.action is not None and run.action.is_async:
            return self._await(run.memory, super()._invoke(run, args, kwargs))
        with _at_most(run.memory):
            return super()._invoke(run, args, kwargs)

    async def _await(self, memory: int, handler: Coroutine[Any, Any, object]) -> object:
        with _at_most(memory):
            return await handler


@contextlib.contextmanager
def _at_most(memory: int) -> Iterator[None]:
    """Data of at most so many bytes for this process: beyond, Python raises MemoryError."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (memory if hard == resource.RLIM_INFINITY else min(memory, hard), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _die_with(parent: int) -> None:
    """Be killed when the worker dies, however it dies, and a handler that holds the interpreter lock with it."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        # It died before that took effect.
        os._exit(ORPHANED)


def _default_signals() -> None:
    """What the worker ignores or blocks is inherited over exec; a handler is to start from Python's defaults."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main(descriptor: int) -> None:
    """Serve the worker at the other end of this socket; never returns."""
    _default_signals()
    if sys.stderr is not None:
        # Where a handler crashes the interpreter, its stack is in the worker's log.
        faulthandler.enable()
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    status = 1
    try:
        status = Child(connection).run()
    except BaseException:
        log.exception("the process of a handler ends")
    finally:
        with contextlib.suppress(BaseException):
            logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(BaseException):
                stream.flush()
        # Threads that handlers left behind would keep an ordinary end waiting.
        os._exit(status)
