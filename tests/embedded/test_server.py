"""One server per home, up while somebody uses it."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest

from pgqueue import embedded
from pgqueue.errors import EmbeddedError

from .processes import FAST, User, alive, kill, postmaster, query, stopped, supervisor, until


def test_acquire_on_a_fresh_home_makes_a_server(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url, "select current_user") == "pgqueue"
        assert query(server.url, "show server_version") == server.version
        assert query(server.url, "show listen_addresses") == ""
        assert query(server.url, "show shared_buffers") == FAST["shared_buffers"]
        assert query(server.url, "show max_connections") == "200"
        assert (server.bindir / "postgres").exists()
        assert server.home == home


def test_acquire_after_the_server_stopped_finds_its_data(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server, psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("create database kept")
    stopped(home)

    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url_for("kept"), "select current_database()") == "kept"


def test_release_by_the_last_stops_the_server(home: Path) -> None:
    first = embedded.acquire(home, settings=FAST)
    second = embedded.acquire(home)
    pid = postmaster(home)

    first.release()
    first.release()
    assert query(second.url, "select 1") == 1

    second.release()
    stopped(home)
    until(lambda: not alive(pid))


def test_acquire_by_another_process_adopts(home: Path, user: Callable[[], User]) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        pid = postmaster(home)
        other = user()
        assert other.url() == server.url

    assert embedded.status(home).in_use
    assert postmaster(home) == pid
    other.end()
    stopped(home)


def test_acquire_by_four_at_once_makes_one_server(home: Path, user: Callable[[], User]) -> None:
    users = [user() for _ in range(4)]

    assert len({one.url() for one in users}) == 1
    assert (home / "server.log").read_text().count("starting PostgreSQL") == 1


def test_acquire_by_threads_makes_one_server(home: Path) -> None:
    servers: list[embedded.Server] = []
    threads = [threading.Thread(target=lambda: servers.append(embedded.acquire(home, settings=FAST))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len({server.url for server in servers}) == 1
    for server in servers:
        assert query(server.url, "select 1") == 1
        server.release()
    stopped(home)


def test_fork_shares_its_parents_use(home: Path) -> None:
    """The parent lets go; the child's copy of the lock still counts, and its own end frees it."""
    server = embedded.acquire(home, settings=FAST)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    server.release()

    assert embedded.status(home).in_use
    os.close(writer)
    os.waitpid(child, 0)
    stopped(home)


def test_linger_keeps_the_server_for_the_next_user(home: Path) -> None:
    with embedded.acquire(home, settings=FAST, linger=60):
        pid = postmaster(home)
    until(lambda: not embedded.status(home).in_use)

    with embedded.acquire(home):
        assert postmaster(home) == pid


def test_start_stays_until_stop(home: Path) -> None:
    status = embedded.start(home, settings=FAST)

    assert status.running
    assert status.keep
    assert not status.in_use
    assert status.url is not None
    with embedded.acquire(home) as server:
        assert server.url == status.url
    assert query(status.url, "select 1") == 1
    assert embedded.stop(home)
    assert not embedded.status(home).running
    assert not embedded.stop(home)


def test_start_takes_over_a_server_in_use(home: Path) -> None:
    with embedded.acquire(home, settings=FAST):
        pid = postmaster(home)
        embedded.start(home)

    status = embedded.status(home)
    assert (status.running, status.keep, status.pid) == (True, True, pid)


def test_start_is_forgotten_by_the_next_server(home: Path) -> None:
    embedded.start(home, settings=FAST)
    embedded.stop(home)

    with embedded.acquire(home, settings=FAST):
        assert not embedded.status(home).keep
    stopped(home)


def test_stop_refuses_while_used_unless_forced(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        with pytest.raises(EmbeddedError, match="still use"):
            embedded.stop(home)
        assert query(server.url, "select 1") == 1

        assert embedded.stop(home, force=True)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(server.url)


def test_stop_without_a_supervisor(home: Path) -> None:
    embedded.start(home, settings=FAST)
    kill(supervisor(home))

    assert embedded.status(home).running
    assert embedded.stop(home)


def test_status_of_an_absent_home_creates_nothing(home: Path) -> None:
    status = embedded.status(home)

    assert (status.running, status.in_use, status.pid, status.url, status.size) == (False, False, None, None, 0)
    assert not home.exists()


def test_status_tells_version_and_size(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        status = embedded.status(home)

    assert status.version == server.version
    assert status.bindir == server.bindir
    assert status.size > 1_000_000
    assert status.in_use


def test_psql_runs_against_the_server(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGHOST", "elsewhere.invalid")
    monkeypatch.setenv("PGPORT", "1")
    with embedded.acquire(home, settings=FAST) as server:
        command = embedded.psql(home, "-Atc", "select current_user")
        done = subprocess.run(command.argv, env=command.env, stdout=subprocess.PIPE, check=True)
        assert done.stdout == b"pgqueue\n"
        assert query(server.url, "select 1") == 1


def test_psql_without_a_server_is_refused(home: Path) -> None:
    with pytest.raises(EmbeddedError, match="start it first"):
        embedded.psql(home)


@pytest.mark.parametrize("setting", [{"listen_addresses": "*"}, {"PORT": "1"}, {"no such": "1"}, {"fsync": "a\0b"}])
def test_acquire_with_a_setting_that_is_ours_or_none_is_refused(home: Path, setting: dict[str, str]) -> None:
    with pytest.raises(EmbeddedError):
        embedded.acquire(home, settings=setting)
    assert not home.exists()


def test_acquire_with_a_setting_that_postgres_refuses_quotes_its_log(home: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"unrecognized configuration parameter .*: leave that one out") as caught:
        embedded.acquire(home, settings=FAST | {"no_such_thing": "1"})
    assert "\n" not in str(caught.value)

    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url, "select 1") == 1
