"""The process that keeps one embedded server. A script: `python -I -S supervise.py HOME`; `launch.py` runs it.

The `Job` comes as JSON on standard input; HOME is there for whoever looks at a list of processes.

Standard library only, and all of it imported before privileges are dropped: afterwards the interpreter's own files
may be out of reach. What lies in cluster/ and run/ belongs to the server's user, who could plant links there, so root
never touches it: all of that happens here, as that user.

    start   remove what a dead server left, run initdb if there is no data, run postgres as a child
    adopt   look after a server whose supervisor is gone
    stop    adopt, and stop at once

It then blocks on users.lock. Having it exclusively means that nobody is left: stop postgres, end. SIGTERM means stop
now. If postgres ends by itself, so does this process. Its report is one JSON object on a pipe: {} for success.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple, Protocol

if sys.platform != "win32":
    import fcntl

SOCKET = ".s.PGSQL.5432"
INIT_SECONDS = 180.0
READY_SECONDS = 60.0
FAST_SECONDS = 30.0
IMMEDIATE_SECONDS = 10.0
_POLL_SECONDS = 0.01

_USERS_GONE = 0xF0  # beside signal numbers, in the pipe that wakes us
_SERVER_GONE = 0xF1


class Job(NamedTuple):
    """What to do. Paths are absolute; the descriptors are inherited."""

    mode: str
    uid: int | None
    """Become this user first; None: stay who we are."""
    gid: int | None
    state: str
    pid_file: str
    cluster: str
    data: str
    sockets: str
    remove_sockets: bool
    initdb: list[str]
    postgres: list[str]
    linger: float
    users: int
    """users.lock, not locked."""
    server: int
    """server.lock: locked for start, not locked for adopt and stop."""
    supervisor: int
    """supervisor.lock, locked. Held to the end, never touched."""
    report: int


class InitFailed(Exception):
    pass


class StartFailed(Exception):
    pass


class Told(Exception):
    """SIGTERM came while something else was waited for."""


class Server(Protocol):
    def alive(self) -> bool: ...
    def signal(self, number: int) -> None: ...


class Child:
    """A process that this one started, and will reap: initdb, or the postmaster."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def succeeded(self) -> bool:
        return self._process.poll() == 0

    def signal(self, number: int) -> None:
        self._process.send_signal(number)


class Orphan:
    """A postmaster whose supervisor is gone. Its end shows in server.lock, which no zombie and no stranger holds."""

    def __init__(self, data: str, watch: Watch, lock: int) -> None:
        self._data = data
        self._watch = watch
        watch.lock_in_background(lock, _SERVER_GONE)

    def alive(self) -> bool:
        return _SERVER_GONE not in self._watch.seen

    def signal(self, number: int) -> None:
        pid, _ = read_pid_file(self._data)
        if pid is not None and is_postmaster(pid, self._data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class Watch:
    """Everything that can happen, as bytes in one pipe."""

    def __init__(self) -> None:
        self.seen: set[int] = set()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)  # the wakeup descriptor carries the news
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # our starter may have blocked some

    @property
    def told(self) -> bool:
        return signal.SIGTERM in self.seen

    def wait(self, seconds: float | None) -> None:
        """Until something happens, or the time is over."""
        select.select([self._reader], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self.seen.update(os.read(self._reader, 4096))

    def wait_until(self, happened: Callable[[], bool], seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not happened():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            self.wait(left)
        return True

    def lock_in_background(self, descriptor: int, event: int) -> None:
        def block() -> None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.write(self._writer, bytes((event,)))

        threading.Thread(target=block, daemon=True).start()


def main(text: str) -> None:
    job = Job(**json.loads(text))
    if os.fork():
        # Nobody's child: our starter need not reap us, and its end is no news to us.
        os._exit(0)
    try:
        write_pid(job.pid_file)
        become(job.uid, job.gid)
        run(job)
    except InitFailed:
        report(job, failed="init")
    except StartFailed:
        report(job, failed="start")
    except Told:
        report(job, failed="stopped")
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else None
        report(job, failed="os", errno=error.errno, reason=error.strerror, place=place)
    except BaseException:  # noqa: BLE001 - the last thing this process can do is say so
        traceback.print_exc()
        report(job, failed="start")
    os._exit(0)  # threads may be blocked in a lock for ever


def run(job: Job) -> None:
    os.umask(0o077)
    watch = Watch()
    os.listdir(job.cluster)  # refuses here when a directory above is closed to this user
    if job.mode == "start":
        server: Server = start(job, watch)
    else:
        server = Orphan(job.data, watch, job.server)
        report(job)
    if job.mode != "stop":
        until_unwanted(job, watch, server)
    stop(watch, server)
    if job.remove_sockets and not server.alive():
        with contextlib.suppress(OSError):
            os.rmdir(job.sockets)


def start(job: Job, watch: Watch) -> Child:
    private_directory(job.sockets)
    if not os.path.exists(os.path.join(job.data, "PG_VERSION")):
        initialize(job, watch)
    # We hold server.lock, so no process of an older server lives, whatever pid this file names.
    for stale in (
        os.path.join(job.data, "postmaster.pid"),
        os.path.join(job.sockets, SOCKET),
        os.path.join(job.sockets, SOCKET + ".lock"),
    ):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(stale)
    child = Child(spawn(job, job.postgres))
    # From here on the lock says one thing only: a process of this server lives.
    os.close(job.server)
    await_ready(job, watch, child)
    return child


def initialize(job: Job, watch: Watch) -> None:
    """Make the data aside and rename it: there is all of it or none."""
    unfinished = os.path.join(job.cluster, "init.tmp")
    if os.path.lexists(unfinished):
        shutil.rmtree(unfinished)
    initdb = Child(spawn(job, [*job.initdb, "-D", unfinished]))
    if not watch.wait_until(lambda: watch.told or not initdb.alive(), INIT_SECONDS) or watch.told:
        initdb.signal(signal.SIGTERM)
        watch.wait_until(lambda: not initdb.alive(), IMMEDIATE_SECONDS)
        raise Told if watch.told else InitFailed
    if not initdb.succeeded():
        raise InitFailed
    os.rename(unfinished, job.data)
    sync_directory(job.cluster)


def spawn(job: Job, command: list[str]) -> subprocess.Popen[bytes]:
    # Output goes to server.log, which we got as ours. A pipe would be kept open by every backend.
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=(job.server,), cwd="/")


def await_ready(job: Job, watch: Watch, child: Child) -> None:
    """Report when it is ready, or that it takes long: then go on, since a long recovery must not begin anew."""
    deadline: float | None = time.monotonic() + READY_SECONDS
    while read_pid_file(job.data) != (child.pid, "ready"):
        if not child.alive():
            raise StartFailed
        if watch.told:
            stop(watch, child)
            raise Told
        if deadline is not None and time.monotonic() > deadline:
            report(job, failed="slow")
            deadline = None
        watch.wait(_POLL_SECONDS)
    report(job)


def until_unwanted(job: Job, watch: Watch, server: Server) -> None:
    """Return when the server shall stop, or has stopped."""

    def ended() -> bool:
        return watch.told or not server.alive()

    while True:
        watch.seen.discard(_USERS_GONE)
        watch.lock_in_background(job.users, _USERS_GONE)
        while not ended() and _USERS_GONE not in watch.seen:
            watch.wait(None)
        if ended():
            return
        if kept(job.state):
            # Only SIGTERM ends this; `stop` sends it.
            fcntl.flock(job.users, fcntl.LOCK_UN)
            while not ended():
                watch.wait(None)
            return
        if job.linger <= 0:
            return
        fcntl.flock(job.users, fcntl.LOCK_UN)
        if watch.wait_until(ended, job.linger):
            return
        if nobody_uses(job.users) and not kept(job.state):
            return


def nobody_uses(users: int) -> bool:
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def stop(watch: Watch, server: Server) -> None:
    for number, seconds in (
        (signal.SIGINT, FAST_SECONDS),
        (signal.SIGQUIT, IMMEDIATE_SECONDS),
        (signal.SIGKILL, IMMEDIATE_SECONDS),
    ):
        if server.alive():
            server.signal(number)
            watch.wait_until(lambda: not server.alive(), seconds)


def kept(state: str) -> bool:
    try:
        with open(state, encoding="utf-8") as file:
            return json.load(file).get("keep") is True
    except (OSError, ValueError, AttributeError):
        return False


def read_pid_file(data: str) -> tuple[int | None, str]:
    """The pid and the status ("starting", "ready", …) that a server wrote; (None, "") when it wrote neither."""
    try:
        descriptor = os.open(os.path.join(data, "postmaster.pid"), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None, ""
    try:
        lines = os.read(descriptor, 4096).decode("utf-8", "replace").split("\n")
        return int(lines[0]), lines[7].strip() if len(lines) > 7 else ""
    except (OSError, ValueError):
        return None, ""
    finally:
        os.close(descriptor)


def is_postmaster(pid: int, data: str) -> bool:
    """Whether that process is the server of this data, and not a stranger with a reused pid."""
    if pid <= 1:
        return False
    try:
        return os.path.samestat(os.stat(f"/proc/{pid}/cwd"), os.stat(data))
    except OSError:
        if os.path.isdir(f"/proc/{os.getpid()}"):
            return False
    # No /proc (macOS): by its command line.
    told = subprocess.run(["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True)
    return b"postgres" in told.stdout and os.fsencode(data) in told.stdout


def write_pid(path: str) -> None:
    # While still root: afterwards nobody but root could change whom `stop` signals.
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_TRUNC)
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)


def become(uid: int | None, gid: int | None) -> None:
    if uid is None or gid is None:
        return
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def private_directory(path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o077:
        raise PermissionError(errno.EPERM, "not a private directory of the server's user", path)


def sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


_reported = False


def report(job: Job, **what: object) -> None:
    """The first report counts. Whoever waited for it may be gone."""
    global _reported
    if _reported:
        return
    _reported = True
    with contextlib.suppress(OSError):
        os.write(job.report, json.dumps(what).encode() + b"\n")
    os.close(job.report)


if __name__ == "__main__":
    main(sys.stdin.read())
