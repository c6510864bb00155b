"""One PostgreSQL for a run of the tests, whoever provides it, shared by all processes of the run.

In this order: the one that PGQUEUE_TEST_DATABASE_URL names (a role that may create databases); a container, where
Docker answers; the embedded server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
from psycopg import sql

from pgqueue import embedded
from pgqueue.database import with_database
from pgqueue.errors import EmbeddedError

RUN = "PGQUEUE_TEST_RUN"
"""Names the run: the process that began it writes it into the environment, and the others inherit it."""

SETTINGS = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


@dataclasses.dataclass(frozen=True)
class Provided:
    """A running server. `url` is of a database from which others can be created."""

    provider: str
    version: str
    url: str

    def url_for(self, database: str) -> str:
        return with_database(self.url, database)

    def __str__(self) -> str:
        return f"PostgreSQL {self.version} ({self.provider})"


def home() -> Path:
    """The run's directory. The embedded server's user, who is not always ours, must be able to pass through it."""
    return Path(tempfile.gettempdir()) / f"pgqueue-test-{os.getuid()}-{os.environ[RUN]}"


def prefix() -> str:
    """What the names of the run's databases begin with."""
    return f"pgqueue_{os.environ[RUN]}_"


@contextlib.contextmanager
def provide() -> Iterator[Provided]:
    """The run's server, for as long as the block runs. EmbeddedError says why none can be had."""
    given = os.environ.get("PGQUEUE_TEST_DATABASE_URL")
    if given:
        yield _asked("PGQUEUE_TEST_DATABASE_URL", given)
        return
    _make_home()
    contained = _docker() if os.environ.get("PGQUEUE_TEST_DOCKER") != "no" else None
    if contained:
        yield _asked("Docker", contained)
        return
    with _binaries():
        server = embedded.acquire(home() / "server", settings=SETTINGS)
    with server:
        yield _asked("embedded", server.url)


@contextlib.contextmanager
def _binaries() -> Iterator[None]:
    """The PostgreSQL that PGQUEUE_TEST_PG_BINDIR names, for the run's server alone."""
    chosen, before = os.environ.get("PGQUEUE_TEST_PG_BINDIR"), os.environ.get("PGQUEUE_PG_BINDIR")
    if chosen:
        os.environ["PGQUEUE_PG_BINDIR"] = chosen
    try:
        yield
    finally:
        if chosen:
            os.environ.pop("PGQUEUE_PG_BINDIR")
            if before is not None:
                os.environ["PGQUEUE_PG_BINDIR"] = before


def clear_up() -> None:
    """What the run's last process does: nothing of the run is left."""
    given = os.environ.get("PGQUEUE_TEST_DATABASE_URL")
    if given:
        with contextlib.suppress(psycopg.Error), psycopg.connect(given, autocommit=True) as connection:
            left = connection.execute("select datname from pg_database where starts_with(datname, %s)", [prefix()])
            for (name,) in left.fetchall():
                connection.execute(sql.SQL("drop database {} with (force)").format(sql.Identifier(name)))
    if not home().exists():
        return
    if (home() / "container").exists():
        import docker

        docker.from_env().containers.get((home() / "container").read_text().split()[0]).remove(force=True, v=True)
    if (home() / "server").exists():
        with contextlib.suppress(EmbeddedError):
            embedded.stop(home() / "server", force=True)
    shutil.rmtree(home(), ignore_errors=True)


def _make_home() -> None:
    home().mkdir(exist_ok=True)
    home().chmod(0o711)


def _asked(provider: str, url: str) -> Provided:
    with psycopg.connect(url) as connection:
        row = connection.execute("select split_part(current_setting('server_version'), ' ', 1)").fetchone()
    assert row is not None
    return Provided(provider, str(row[0]), url)


def _docker() -> str | None:
    # Never run where it was written: no engine answered there. A start that fails falls through to the next provider.
    try:
        import docker
        from testcontainers.postgres import PostgresContainer

        docker.from_env(timeout=3).ping()
        os.environ["TESTCONTAINERS_RYUK_DISABLED"] = "true"  # it would end the container with its first process
        note = home() / "container"
        with open(home() / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not note.exists():
                started = PostgresContainer("postgres:18", driver=None).start()
                note.write_text(f"{started.get_wrapped_container().id} {started.get_connection_url()}")
        return note.read_text().split()[1]
    except Exception:  # noqa: BLE001 - whatever it is, there is another provider
        return None
