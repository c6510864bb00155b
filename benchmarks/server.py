"""The server under the benchmark: a database of its own on it, what it is, and what it spends."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from pgqueue import migrate
from pgqueue.database import Database, translated, with_database

__all__ = ["SCHEMA", "Bench", "Spent", "bench", "cpu_of"]

SCHEMA = "pgqueue"
SETTINGS = ("fsync", "synchronous_commit", "full_page_writes", "wal_compression", "shared_buffers", "max_wal_size")
_PROC = Path("/proc")
_TICK = os.sysconf("SC_CLK_TCK")


@dataclasses.dataclass(frozen=True)
class Spent:
    """What the whole server has spent so far, other databases included; CPU only where its processes can be seen."""

    wal_bytes: int
    commits: int
    cpu_seconds: float | None


class Bench:
    """A migrated database that only this benchmark uses. `connection` is in autocommit."""

    def __init__(self, url: str, connection: psycopg.Connection[Any]) -> None:
        self.url = url
        self.connection = connection
        self._statements = 0

    def one(self, query: str, *parameters: object) -> Any:
        """The only value that a query gives."""
        self._statements += 1
        row = self.connection.execute(query, parameters or None).fetchone()
        assert row is not None
        return row[0]

    def facts(self) -> dict[str, Any]:
        settings = {name: self.one(f"select current_setting('{name}')") for name in SETTINGS}
        return {"version": self.one("select current_setting('server_version')"), "settings": settings}

    def empty(self) -> None:
        self.connection.execute(f"truncate {SCHEMA}.tasks, {SCHEMA}.task_events")

    def settle_down(self) -> None:
        """What loading left to do, done before the clock runs."""
        self.connection.execute(f"vacuum (analyze) {SCHEMA}.tasks")
        self.connection.execute("checkpoint")

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Nobody can claim while the block runs: a worker that has started waits at its first claim."""
        with psycopg.connect(self.url) as gate:
            gate.execute(f"lock table {SCHEMA}.tasks in share mode")
            yield
            gate.rollback()

    def waiting(self) -> bool:
        """Whether somebody has come to the gate."""
        return bool(
            self.one(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            )
        )

    def spent(self) -> Spent:
        self.one("select pg_stat_force_next_flush() is null")
        wal = self.one("select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
        commits = self.one("select xact_commit from pg_stat_database where datname = current_database()")
        return Spent(wal, commits - self._statements, self._server_cpu())

    def _server_cpu(self) -> float | None:
        try:
            backend = self.connection.info.backend_pid
            if not (_PROC / str(backend) / "comm").read_text().startswith("postgres"):
                return None  # the server is on another machine, and the number is somebody else's here
            postmaster = int(_stat(backend)[1])
            # The postmaster's own row holds what its ended children used.
            total = sum(int(field) for field in _stat(postmaster)[11:15])
            for entry in _PROC.iterdir():
                if entry.name.isdecimal():
                    with contextlib.suppress(OSError):
                        stat = _stat(int(entry.name))
                        total += int(stat[11]) + int(stat[12]) if int(stat[1]) == postmaster else 0
            return total / _TICK
        except OSError:
            return None


def cpu_of(pid: int) -> float | None:
    """Seconds of CPU that a running process has used; None where the system does not say."""
    try:
        stat = _stat(pid)
    except OSError:
        return None
    return (int(stat[11]) + int(stat[12])) / _TICK


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat after the name: state, parent, …, utime, stime, cutime, cstime (11 to 14)."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


@contextlib.contextmanager
def bench(url: str) -> Iterator[Bench]:
    """Make the database, and drop it afterwards. `url`: of a server whose role may create databases, or "embedded"."""
    server = Database(url)
    name = sql.Identifier(f"pgqueue_bench_{os.getpid()}")
    try:
        with translated(server), psycopg.connect(server.url, autocommit=True) as admin:
            admin.execute(sql.SQL("create database {}").format(name))
            try:
                own = with_database(server.url, name.as_string().strip('"'))
                migrate.upgrade(Database(own, schema=SCHEMA))
                with psycopg.connect(own, autocommit=True) as connection:
                    yield Bench(own, connection)
            finally:
                admin.execute(sql.SQL("drop database {} with (force)").format(name))
    finally:
        server.dispose()
