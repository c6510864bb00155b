"""PgBouncer in transaction mode before the run's server, where its program is on this machine."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .waiting import eventually

PORT = 6432


def program() -> str | None:
    """Where PgBouncer is, if it is; Debian keeps it where only root's path leads."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


@contextlib.contextmanager
def pooled(url: str, *, size: int = 3) -> Iterator[str]:
    """A URL of the same database through a pool of `size` server connections."""
    found, target = program(), conninfo_to_dict(url)
    assert found is not None
    user = target.get("user") or "postgres"
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        home.chmod(0o777)  # it refuses to be root, and makes its socket here
        (home / "users").write_text(f'"{user}" ""\n')
        way = " ".join(f"{key}={target[key]}" for key in ("host", "port", "dbname", "user") if target.get(key))
        (home / "ini").write_text(
            f"[databases]\n{target['dbname']} = {way}\n[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\n"
            f"unix_socket_dir = {home}\nauth_type = trust\nauth_file = {home / 'users'}\npool_mode = transaction\n"
            f"default_pool_size = {size}\nmax_client_conn = 200\nserver_reset_query = DISCARD ALL\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        with (home / "log").open("w") as log:
            running = subprocess.Popen([found, "-q", str(home / "ini")], stdout=log, stderr=log, **_as(target))
        through = make_conninfo(url, host=str(home), hostaddr="", port=PORT)
        try:
            eventually(lambda: _answers(through) or running.poll() is not None)
            assert running.poll() is None, (home / "log").read_text()
            yield through
        finally:
            running.terminate()
            running.wait(30)


def _as(target: dict[str, Any]) -> dict[str, Any]:
    """It refuses to be root; and only the server's own account may pass to the embedded server's socket."""
    if os.getuid() != 0:
        return {}
    host = Path(str(target.get("host", "")))
    owner = host.stat().st_uid if host.is_dir() else 0
    account = owner or pwd.getpwnam("nobody").pw_uid
    return {"user": account, "group": pwd.getpwuid(account).pw_gid, "extra_groups": []}


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2, prepare_threshold=None).close()
    except psycopg.Error:
        return False
    return True
