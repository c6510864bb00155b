"""`embedded start|stop|status|psql` on a server of the test's own."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pgqueue import embedded

from .running import Program


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory through which the server's user may pass; pytest's own is closed to it."""
    room = Path(tempfile.mkdtemp(prefix="pgqueue-cli-", dir="/tmp"))
    room.chmod(0o711)
    yield room / "home"
    embedded.stop(room / "home", force=True)
    shutil.rmtree(room)


def test_start_status_psql_stop(lost: Program, home: Path) -> None:
    env = {"PGQUEUE_HOME": str(home)}
    assert lost("embedded", "status", "--json", env=env).objects[0]["running"] is False

    started = lost("embedded", "start", env=env)
    assert started.code == 0, started.err
    [url] = started.out.splitlines()
    assert str(home) in started.err
    assert lost("migrate", env=env | {"PGQUEUE_DATABASE_URL": url}).code == 0
    assert lost("stats", "--database-url", "embedded", env=env).code == 0

    assert ["running", "yes"] in lost("embedded", "status", env=env).rows
    [status] = lost("embedded", "--json", "status", env=env).objects
    assert (status["running"], status["keep"], status["url"], status["home"]) == (True, True, url, str(home))

    counted = lost.apart("embedded", "psql", "-At", "-c", "select count(*) from pgqueue.tasks", env=env)
    assert (counted.code, counted.out) == (0, "0\n"), counted.err
    assert lost.apart("embedded", "psql", "-c", "select nonsense", env=env).code == 1

    with embedded.acquire(home):
        in_use = lost("embedded", "stop", env=env)
        assert in_use.code == 3
        assert "processes still use the embedded server" in in_use.complaint
    stopped = lost("embedded", "stop", env=env)
    assert (stopped.code, stopped.err) == (0, "the embedded server is stopped\n")
    assert lost("embedded", "stop", "--json", env=env).objects == [{"stopped": False}]


def test_a_home_that_cannot_be(lost: Program, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    ran = lost("embedded", "start", env={"PGQUEUE_HOME": str(tmp_path / "file" / "home")})

    assert (ran.code, ran.out) == (3, "")
    assert "PGQUEUE_HOME" in ran.complaint
