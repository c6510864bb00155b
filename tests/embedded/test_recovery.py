"""kill -9 of anybody, at any time: the next one gets a server."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg

from pgqueue import embedded

from .processes import FAST, User, alive, kill, postmaster, query, stopped, supervisor, until


def test_killed_user_lets_the_server_stop(home: Path, user: Callable[[], User]) -> None:
    only = user()
    only.url()
    pid = postmaster(home)

    only.kill()
    stopped(home)
    until(lambda: not alive(pid))


def test_killed_supervisor_is_replaced_by_the_next_user(home: Path) -> None:
    first = embedded.acquire(home, settings=FAST)
    pid, old = postmaster(home), supervisor(home)
    kill(old)

    second = embedded.acquire(home)
    assert postmaster(home) == pid
    assert supervisor(home) != old
    assert alive(supervisor(home))
    first.release()
    assert query(second.url, "select 1") == 1
    second.release()
    stopped(home)
    until(lambda: not alive(pid))


def test_killed_supervisor_of_a_started_server_is_replaced_and_keeps_it(home: Path) -> None:
    embedded.start(home, settings=FAST)
    kill(supervisor(home))
    with embedded.acquire(home):
        pid = postmaster(home)

    until(lambda: not embedded.status(home).in_use)
    assert alive(supervisor(home))
    assert alive(pid)
    assert embedded.status(home).keep


def test_killed_postmaster_is_replaced_by_the_next_user(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("create table survivor as select 1 as one")
        pid = postmaster(home)
        kill(pid)

        with embedded.acquire(home, settings=FAST) as again:
            assert postmaster(home) != pid
            assert query(again.url, "select one from survivor") == 1


def test_killed_supervisor_and_postmaster_are_replaced(home: Path) -> None:
    with embedded.acquire(home, settings=FAST):
        kill(supervisor(home))
        kill(postmaster(home))

        with embedded.acquire(home, settings=FAST) as again:
            assert query(again.url, "select 1") == 1


def test_stale_pid_file_that_names_a_stranger_is_removed(home: Path) -> None:
    """After a reboot the pid in postmaster.pid is anybody's. PostgreSQL alone would refuse to start."""
    with embedded.acquire(home, settings=FAST) as server:
        major = server.version.split(".")[0]
        kill(supervisor(home))
        kill(postmaster(home))
    pid_file = home / "cluster" / f"pg{major}" / "postmaster.pid"
    owner = pid_file.stat()
    # Of the server's own user: a process that the server could signal.
    stranger = subprocess.Popen(
        ["sleep", "300"],
        user=owner.st_uid if os.geteuid() == 0 else None,
        group=owner.st_gid if os.geteuid() == 0 else None,
    )
    try:
        lines = pid_file.read_text().splitlines()
        pid_file.write_text("\n".join([str(stranger.pid), *lines[1:]]) + "\n")

        with embedded.acquire(home, settings=FAST) as server:
            assert query(server.url, "select 1") == 1
            assert postmaster(home) != stranger.pid
        assert embedded.stop(home) or not embedded.status(home).running
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_killed_during_initdb_starts_afresh(home: Path, user: Callable[[], User]) -> None:
    unlucky = user()
    until((home / "cluster" / "init.tmp" / "global").exists)
    kill(supervisor(home))
    unlucky.kill()

    assert not list((home / "cluster").glob("pg*"))
    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url, "select 1") == 1
    assert not (home / "cluster" / "init.tmp").exists()


def test_killed_supervisor_during_a_start_is_replaced_at_once(home: Path, user: Callable[[], User]) -> None:
    """Whoever waits for a start does not even notice."""
    patient = user()
    until((home / "cluster" / "init.tmp" / "global").exists)
    kill(supervisor(home))

    assert query(patient.url(), "select 1") == 1


def test_killed_starter_leaves_a_server_that_stops(home: Path, user: Callable[[], User]) -> None:
    """The supervisor finishes what it began, finds nobody, and stops."""
    unlucky = user()
    until((home / "cluster" / "init.tmp").exists)
    unlucky.kill()

    stopped(home)
    until(lambda: not alive(supervisor(home)))
    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url, "select 1") == 1


def test_lost_state_file_of_a_running_server_is_made_again(home: Path) -> None:
    with embedded.acquire(home, settings=FAST) as server:
        (home / "state.json").unlink()

        with embedded.acquire(home) as again:
            assert (again.url, again.version) == (server.url, server.version)
        assert embedded.status(home).version == server.version
