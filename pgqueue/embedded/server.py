"""Start, share and stop the server of one home.

The order is always the same: start.lock, then users.lock (which waits out a shutdown), then server.lock says whether
a server lives. What this module believes comes from locks, which the kernel keeps true, and never from a pid.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Self
from urllib.parse import quote

from ..errors import EmbeddedError
from . import binaries, launch, locks, runtime
from .account import Account, server_account
from .cluster import check_settings
from .failures import explained, require_posix
from .paths import Layout, give_directory, locate, prepare
from .probe import PORT, USER, answers
from .state import State, load, save
from .supervise import FAST_SECONDS, IMMEDIATE_SECONDS, INIT_SECONDS, READY_SECONDS, read_pid_file

logger = logging.getLogger("pgqueue.embedded")

_NO_SETTINGS: Mapping[str, str] = MappingProxyType({})
_POLL_SECONDS = 0.01
_SUPERVISORS = 3  # to lose before giving up
_STOP_SECONDS = FAST_SECONDS + 2 * IMMEDIATE_SECONDS + 10
_START_LOCK_SECONDS = INIT_SECONDS + READY_SECONDS + _STOP_SECONDS
_START_LOCK_HELD = "another process has been starting or stopping the embedded server"
_USERS_LOCK_HELD = "the embedded server has been shutting down"


class Server:
    """One use of a running server. While it is held, by this process or a fork of it, the server stays up.

    A context manager. It does not release itself when it is garbage: an URL outlives the object it came from.
    The end of the process, however it comes, releases it.
    """

    def __init__(self, layout: Layout, state: State, users: int) -> None:
        self.home = layout.home
        self.bindir = Path(state.bindir)
        self.version = state.version
        self.sockets = Path(state.sockets)
        self._users = [users]

    @property
    def url(self) -> str:
        """Of the database `postgres`, for libpq, psycopg, asyncpg and SQLAlchemy."""
        return self.url_for("postgres")

    def url_for(self, dbname: str) -> str:
        return _url(self.sockets, dbname)

    def release(self) -> None:
        """Stop using it. Repeating this, in any thread, does nothing. If nobody is left the server stops, soon."""
        try:
            users = self._users.pop()
        except IndexError:
            return
        # Closed, not unlocked: a fork that shares the lock may still use the server.
        locks.close(users)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.version} in {self.home}{'' if self._users else ', released'}>"


@dataclass(frozen=True, kw_only=True)
class Status:
    """What `status` found. `pid` is the postmaster's; `url` and `pid` are None when nothing runs."""

    home: Path
    running: bool
    in_use: bool
    """Some process uses the server now."""
    keep: bool
    """Started by `start`: stays up when nobody uses it."""
    pid: int | None
    version: str | None
    """As 18.6; of the running server, or of the one that ran last; None before the first start."""
    bindir: Path | None
    url: str | None
    size: int
    """Bytes of data on disk."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program to run: `os.execve(argv[0], argv, env)` or `subprocess.run(argv, env=env)`."""

    argv: list[str]
    env: dict[str, str]


def acquire(home: Path | None = None, *, settings: Mapping[str, str] = _NO_SETTINGS, linger: float = 0.0) -> Server:
    """Use the server of `home`, starting it if need be (0.6 s the first time, 0.06 s later).

    Args:
        home: Its directory, made if missing; `default_home()` if None.
        settings: PostgreSQL settings ("fsync": "off"), obeyed only if this call starts the server.
        linger: Seconds that the server stays up after its last user, obeyed only if this call starts the server.

    Returns:
        A `Server`, which takes connections now. Hold it while you use the server, then release it.

    Raises:
        EmbeddedError: No server can be had; one line that says why and what to do.

    Blocks, at most for minutes when another process is stuck. Any thread may call this, any number of times.
    """
    return _enter(home, settings, linger, keep=False)


def start(home: Path | None = None, *, settings: Mapping[str, str] = _NO_SETTINGS) -> Status:
    """Start the server, or take over the running one, and leave it running until `stop`.

    Raises:
        EmbeddedError: As `acquire`.
    """
    with _enter(home, settings, 0.0, keep=True) as server:
        pass
    return status(server.home)


def stop(home: Path | None = None, *, force: bool = False) -> bool:
    """Stop the server and wait for its end.

    Args:
        force: Also when processes use it; their connections break.

    Returns:
        Whether a server ran.

    Raises:
        EmbeddedError: It is in use, or did not end; it may still run.
    """
    require_posix()
    layout = locate(home)
    if not layout.home.is_dir():
        return False
    with explained(layout.home):
        _check_owner(layout)
        with locks.hold(layout.start_lock, seconds=_START_LOCK_SECONDS, why=_START_LOCK_HELD):
            if locks.is_free(layout.server_lock):
                return False
            if not force and _in_use(layout):
                raise EmbeddedError(
                    f"processes still use the embedded server in {layout.home}: end them first, or stop with force"
                )
            _stop(layout)
            return True


def status(home: Path | None = None) -> Status:
    """Look, and change nothing: an absent home is a server that does not run.

    Raises:
        EmbeddedError: The home cannot be read.
    """
    require_posix()
    layout = locate(home)
    with explained(layout.home):
        if layout.home.is_dir():
            _check_owner(layout)
        state = load(layout.state)
        running = not locks.is_free(layout.server_lock)
        pid = read_pid_file(str(layout.data(state.major)))[0] if running and state else None
        return Status(
            home=layout.home,
            running=running,
            in_use=_in_use(layout),
            keep=running and state is not None and state.keep,
            pid=pid,
            version=state.version if state else None,
            bindir=Path(state.bindir) if state else None,
            url=_url(Path(state.sockets), "postgres") if running and state else None,
            size=_size(layout.cluster),
        )


def psql(home: Path | None = None, *arguments: str) -> Command:
    """The command that opens psql on the running server. It uses the server only while a `Server` is held beside it.

    Raises:
        EmbeddedError: Nothing runs, or this PostgreSQL came without psql.
    """
    require_posix()
    layout = locate(home)
    with explained(layout.home):
        state = load(layout.state)
        if state is None or locks.is_free(layout.server_lock):
            raise EmbeddedError(f"no embedded server runs in {layout.home}: start it first")
    program = Path(state.bindir) / "psql"
    if not os.access(program, os.X_OK):
        raise EmbeddedError(f"{state.bindir} has no psql: connect with another client to {_url(Path(state.sockets))}")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PG") or name.startswith("PGQUEUE")}
    env |= {"PGHOST": state.sockets, "PGPORT": str(PORT), "PGUSER": USER, "PGDATABASE": "postgres"}
    return Command(argv=[str(program), *arguments], env=env)


def _enter(home: Path | None, settings: Mapping[str, str], linger: float, *, keep: bool) -> Server:
    require_posix()
    check_settings(settings)
    layout = locate(home)
    with explained(layout.home):
        prepare(layout)
        with locks.hold(layout.start_lock, seconds=_START_LOCK_SECONDS, why=_START_LOCK_HELD):
            users = locks.wait(layout.users_lock, shared=True, seconds=_STOP_SECONDS, why=_USERS_LOCK_HELD)
            try:
                state = _bring_up(layout, settings, linger, keep=keep)
            except BaseException:
                locks.close(users)
                raise
            locks.keep(users)
            return Server(layout, state, users)


def _bring_up(layout: Layout, settings: Mapping[str, str], linger: float, *, keep: bool) -> State:
    """A server that answers: ours, or the one that runs. The caller holds start.lock and shares users.lock."""
    account = server_account(layout.cluster)
    deadline = time.monotonic() + READY_SECONDS
    lost = 0
    while True:
        try:
            state = _start_or_adopt(layout, account, settings, linger, keep=keep)
        except launch.SupervisorLost:
            lost += 1
            if lost == _SUPERVISORS:
                raise
            continue
        if state is not None:
            return state
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"processes of the embedded server in {layout.home} live, but it has let nobody in for "
                f"{READY_SECONDS:.0f} s: read {layout.log}, wait, or end them"
            )
        time.sleep(_POLL_SECONDS)


def _start_or_adopt(
    layout: Layout, account: Account, settings: Mapping[str, str], linger: float, *, keep: bool
) -> State | None:
    """None: somebody lives, but lets nobody in. A server that starts or ends, an initdb whose supervisor was killed."""
    server = locks.attempt(layout.server_lock)
    if server is not None:
        try:
            return _start(layout, account, settings, linger, keep=keep, server=server)
        finally:
            locks.close(server)
    state = load(layout.state) or _guess(layout, account)
    return _adopt(layout, account, state, keep=keep) if answers(Path(state.sockets)) else None


def _start(
    layout: Layout, account: Account, settings: Mapping[str, str], linger: float, *, keep: bool, server: int
) -> State:
    major = layout.major()
    chosen = binaries.find(major, data=layout.data(major) if major else layout.cluster)
    chosen = runtime.reachable(chosen, account, layout)
    sockets = layout.sockets(account.uid)
    give_directory(layout.cluster, uid=account.uid, gid=account.gid)
    if sockets == layout.run:
        give_directory(layout.run, uid=account.uid, gid=account.gid)
    state = State(
        bindir=str(chosen.bindir), version=chosen.version, sockets=str(sockets), keep=keep, linger=float(linger)
    )
    # The last supervisor may need a moment more than its server.
    supervisor = locks.wait(
        layout.supervisor_lock, seconds=_STOP_SECONDS, why="the last supervisor of the embedded server has been ending"
    )
    try:
        # Before the launch: whoever finds the server running finds this.
        save(layout.state, state, readable=account.drop)
        launch.start_server(layout, state, account, chosen, settings, server=server, supervisor=supervisor)
    finally:
        locks.close(supervisor)
    logger.debug("started PostgreSQL %s in %s", state.version, layout.home)
    return state


def _adopt(layout: Layout, account: Account, state: State, *, keep: bool) -> State:
    state = replace(state, keep=state.keep or keep)
    # The supervisor reads it when it has users.lock alone, and we share that now.
    save(layout.state, state, readable=account.drop)
    supervisor = locks.attempt(layout.supervisor_lock)
    if supervisor is not None:
        try:
            launch.adopt_server(layout, state, account, stop=False, supervisor=supervisor)
        finally:
            locks.close(supervisor)
        logger.debug("adopted PostgreSQL %s in %s", state.version, layout.home)
    return state


def _stop(layout: Layout) -> None:
    """Until nothing of the server lives. The caller holds start.lock."""
    account = server_account(layout.cluster)
    state = load(layout.state) or _guess(layout, account)
    save(layout.state, replace(state, keep=False), readable=account.drop)
    deadline = time.monotonic() + _STOP_SECONDS
    signalled: int | None = None
    while not locks.is_free(layout.server_lock):
        supervisor = locks.attempt(layout.supervisor_lock)
        if supervisor is not None:
            try:
                launch.adopt_server(layout, state, account, stop=True, supervisor=supervisor)
            finally:
                locks.close(supervisor)
        elif (pid := _supervisor_pid(layout)) != signalled:
            signalled = pid
            _terminate(pid)
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the embedded server in {layout.home} did not end in {_STOP_SECONDS:.0f} s: "
                f"read {layout.log}, and end its processes"
            )
        time.sleep(_POLL_SECONDS)


def _supervisor_pid(layout: Layout) -> int | None:
    """Whoever holds supervisor.lock wrote this; None in the moment before it did."""
    descriptor = locks.open_lock(layout.supervisor_lock)
    try:
        text = os.read(descriptor, 64)
    finally:
        locks.close(descriptor)
    return int(text) if text.strip().isdigit() else None


def _terminate(pid: int | None) -> None:
    if pid is not None and pid > 1:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)


def _in_use(layout: Layout) -> bool:
    # A shared lock that can be had while the exclusive one cannot: others share it. Neither: a supervisor has it
    # alone, so nobody uses the server, which is shutting down.
    return not locks.is_free(layout.users_lock) and locks.is_free(layout.users_lock, shared=True)


def _guess(layout: Layout, account: Account) -> State:
    """What state.json would say, had nobody lost it."""
    major = layout.major()
    chosen = binaries.find(major, data=layout.data(major) if major else layout.cluster)
    return State(bindir=str(chosen.bindir), version=chosen.version, sockets=str(layout.sockets(account.uid)))


def _check_owner(layout: Layout) -> None:
    uid = os.stat(layout.home).st_uid
    if uid != os.geteuid():
        raise EmbeddedError(
            f"{layout.home} belongs to uid {uid}, and this is uid {os.geteuid()}: run as its owner, "
            "or set PGQUEUE_HOME to a directory of your own"
        )


def _size(top: Path) -> int:
    total = 0
    for folder, _, files in os.walk(top):
        for name in files:
            with contextlib.suppress(OSError):  # the server removes files while we look
                total += os.lstat(os.path.join(folder, name)).st_size
    return total


def _url(sockets: Path, dbname: str = "postgres") -> str:
    # The port is part of the socket's name: without it $PGPORT would decide.
    host = quote(os.fsencode(sockets), safe="/")
    return f"postgresql://{USER}@/{quote(dbname, safe='')}?host={host}&port={PORT}"
