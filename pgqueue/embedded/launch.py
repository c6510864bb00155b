"""Run a supervisor and hear what became of it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ..errors import EmbeddedError
from . import locks
from .account import Account
from .binaries import Binaries, child_environment
from .cluster import initdb_command, postgres_command
from .failures import WAY_OUT, explain, failed_with_log
from .paths import Layout
from .state import State
from .supervise import INIT_SECONDS, READY_SECONDS, Job


class SupervisorLost(EmbeddedError):
    """It ended without a word: somebody killed it. Another one may fare better."""


_SCRIPT = Path(__file__).with_name("supervise.py")
_REPORT_SECONDS = INIT_SECONDS + READY_SECONDS + 30
_LOG_BYTES = 10 * 1024 * 1024


def start_server(
    layout: Layout,
    state: State,
    account: Account,
    binaries: Binaries,
    settings: Mapping[str, str],
    *,
    server: int,
    supervisor: int,
) -> None:
    """Return when the server takes connections. `server` and `supervisor` are the locked locks.

    Raises:
        EmbeddedError: It did not start; nothing runs, unless the text says that it is still starting.
    """
    data = layout.data(binaries.major)
    _launch(
        layout,
        _job(layout, state, account, mode="start")._replace(
            initdb=initdb_command(binaries, settings),
            postgres=postgres_command(binaries, data, Path(state.sockets), settings),
            server=server,
            supervisor=supervisor,
        ),
    )


def adopt_server(layout: Layout, state: State, account: Account, *, stop: bool, supervisor: int) -> None:
    """Give a running server a new supervisor, which stops it at once or when nobody uses it."""
    server = locks.open_lock(layout.server_lock)
    try:
        job = _job(layout, state, account, mode="stop" if stop else "adopt")
        _launch(layout, job._replace(server=server, supervisor=supervisor))
    finally:
        locks.close(server)


def _job(layout: Layout, state: State, account: Account, *, mode: str) -> Job:
    return Job(
        mode=mode,
        uid=account.uid if account.drop else None,
        gid=account.gid if account.drop else None,
        state=str(layout.state),
        pid_file=str(layout.supervisor_lock),
        cluster=str(layout.cluster),
        data=str(layout.data(state.major)),
        sockets=state.sockets,
        remove_sockets=Path(state.sockets) != layout.run,
        initdb=[],
        postgres=[],
        linger=state.linger,
        users=-1,
        server=-1,
        supervisor=-1,
        report=-1,
    )


def _launch(layout: Layout, job: Job) -> None:
    if not sys.executable:
        raise EmbeddedError(f"the embedded server needs sys.executable, and this interpreter has none: {WAY_OUT}")
    log = _open_log(layout.log)
    since = os.fstat(log).st_size
    users = locks.open_lock(layout.users_lock)
    reader, writer = locks.pipe_transient()
    try:
        _run(job._replace(users=users, report=writer), log)
    finally:
        for descriptor in (log, users, writer):
            locks.close(descriptor)
    try:
        told = _read_report(reader)
    finally:
        locks.close(reader)
    if told != {}:
        raise _failure(told, layout, job, since)


def _run(job: Job, log: int) -> None:
    subprocess.run(  # it forks at once; the supervisor is its child
        [sys.executable, "-I", "-S", str(_SCRIPT), str(Path(job.state).parent)],  # the home, for readers of `ps`
        input=json.dumps(job._asdict()).encode(),
        stdout=log,
        stderr=log,
        pass_fds=(job.users, job.server, job.supervisor, job.report),
        cwd="/",
        env=child_environment(),
        start_new_session=True,  # Ctrl-C at our terminal is not meant for the server
        umask=0o077,
    )


def _read_report(reader: int) -> dict[str, object] | None:
    """None: the supervisor ended without a word, or is stuck."""
    deadline = time.monotonic() + _REPORT_SECONDS
    text = b""
    while not text.endswith(b"\n"):
        poll = select.poll()  # not select(): a busy process has descriptors beyond 1024
        poll.register(reader, select.POLLIN)
        if not poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        chunk = os.read(reader, 4096)
        if not chunk:
            return None
        text += chunk
    told: dict[str, object] = json.loads(text)
    return told


def _failure(told: dict[str, object] | None, layout: Layout, job: Job, since: int) -> EmbeddedError:
    reason = None if told is None else told["failed"]
    home = layout.home
    if told is not None and reason == "os":
        return _refused(told, layout, job)
    if reason == "init":
        return failed_with_log(f"initdb failed for {job.data}", layout.log, since)
    if reason == "slow":
        what = f"the embedded server in {home} is still starting after {READY_SECONDS:.0f} s (try again later)"
        return failed_with_log(what, layout.log, since)
    if reason == "stopped":
        return EmbeddedError(f"the embedded server in {home} was told to stop while it started: try again")
    if reason is None:
        what = f"the supervisor of the embedded server in {home} ended"
        return SupervisorLost(str(failed_with_log(what, layout.log, since)))
    return failed_with_log(f"the embedded server in {home} did not start", layout.log, since)


def _refused(told: dict[str, object], layout: Layout, job: Job) -> EmbeddedError:
    number = told.get("errno")
    place = told.get("place")
    if job.uid is not None and isinstance(number, int):
        if place is None:
            return EmbeddedError(
                f"root may not become uid {job.uid} here, and PostgreSQL does not run as root: {WAY_OUT}"
            )
        if place == job.cluster:
            return EmbeddedError(
                f"uid {job.uid}, which runs the server for root, cannot reach {layout.cluster}: "
                "set PGQUEUE_HOME to a directory that every user may enter (mode 0711 all the way)"
            )
    return explain(number if isinstance(number, int) else None, str(told.get("reason")), place, layout.home)


def _open_log(path: Path) -> int:
    if os.path.lexists(path) and os.lstat(path).st_size > _LOG_BYTES:
        os.replace(path, path.with_name(path.name + ".1"))
    return locks.open_transient(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
