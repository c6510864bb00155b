"""`pgqueue demo` as people run it: what it counts, what it prints, and what it leaves behind."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pgqueue import embedded

from ..support import eventually
from .conftest import PROGRAM, ROOT, Demo, Ran, grow

MUST_FAIL = {
    "scratch/dangling-link": "a link that leads nowhere, to nowhere",
    "scratch/now-a-directory": "a directory stands where the file was",
    "scratch/removed": "no such file: it was removed after it was listed",
}
CLOSED = {"scratch/unreadable": "permission denied: this user may not read it"}
EXPECTED_DEAD = MUST_FAIL if os.geteuid() == 0 else MUST_FAIL | CLOSED

Left = Callable[[], list[str]]


def reasons(record: Mapping[str, Any]) -> dict[str, str]:
    return {dead["file"]: dead["error"] for dead in record["dead"]}


def contents(root: Path) -> list[bytes]:
    return [Path(folder, name).read_bytes() for folder, _, names in os.walk(root) for name in names]


# -- what it counts


@pytest.mark.heavy
def test_inventory_of_a_small_tree(demo: Demo, tree: Path, temporary: Left) -> None:
    before = temporary()
    # The database that people work with is none for a demo.
    ran = demo(tree, "--json", PGQUEUE_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none")

    assert ran.code == 0, ran.err
    found, files = ran.record, contents(tree)
    assert found["database"] == "embedded"
    assert found["matches"] is True
    assert found["ordered"] is True
    assert found["files"] == len(files) == 4
    assert found["folders"] == 3
    # A summary for each of these and for the scratch files, and the total.
    assert found["summaries"] == 5
    assert found["completed"] == 4 + 5
    assert found["bytes"] == sum(map(len, files))
    assert found["lines"] == sum(content.count(b"\n") for content in files)
    lines = sorted((str(path), path.read_bytes()) for path in tree.rglob("*") if path.is_file())
    whole = "".join(f"{hashlib.sha256(content).hexdigest()}  {path}\n" for path, content in lines)
    assert found["digest"] == hashlib.sha256(whole.encode()).hexdigest()
    assert reasons(found) == EXPECTED_DEAD
    assert found["tasks"] == found["attempts"] == 4 + len(EXPECTED_DEAD) + 5
    assert found["missing"] == len(EXPECTED_DEAD)
    total, *folders = found["tree"]
    assert (total["name"], total["files"], total["missing"]) == ("", 4, len(EXPECTED_DEAD))
    assert (total["bytes"], total["lines"]) == (found["bytes"], found["lines"])
    assert [(one["name"], one["files"], one["missing"]) for one in folders] == [
        ("scratch", 0, len(EXPECTED_DEAD)),
        ("docs/deep", 1, 0),
        ("docs", 1, 0),
        (".", 2, 0),
    ]
    assert (found["workers"], found["kill"], found["rerun_ids"], found["logs"]) == (2, None, [], None)
    assert "comparing with a direct walk" in ran.err
    assert temporary() == before


@pytest.mark.heavy
def test_files_of_any_name(demo: Demo, tmp_path: Path) -> None:
    root = os.fsencode(tmp_path / "odd")
    folders = [b"", b"new\nline", b"\xff\xfe", "über 文".encode(), b"100%", b"'\"$(x)\\", b"/".join([b"l" * 200] * 8)]
    names = [b"\xc3", b"a\tb", b"-rf", b"%41", "é".encode(), b"e\xcc\x81", b" ", b"x" * 255]
    for folder in folders:
        os.makedirs(os.path.join(root, folder), exist_ok=True)
        for name in names:
            with open(os.path.join(root, folder, name), "wb") as file:
                file.write(folder + name)
    os.symlink(b"\xc3", root + b"/to-file")
    os.symlink(b"new\nline", root + b"/to-folder")
    os.symlink(b"/no/such/place", root + b"/to-nowhere\xff")
    os.mkfifo(root + b"/pipe")

    ran = demo(os.fsdecode(root), "--json")

    assert ran.code == 0, ran.err
    assert (ran.record["files"], ran.record["folders"]) == (len(folders) * len(names) + 1, len(folders))
    assert reasons(ran.record) == EXPECTED_DEAD | {"to-nowhere%FF": "a link that leads nowhere, to /no/such/place"}
    assert ran.record["missing"] == len(EXPECTED_DEAD) + 1
    holes = {one["name"]: (one["files"], one["missing"]) for one in ran.record["tree"] if one["missing"]}
    assert holes == {
        "": (ran.record["files"], len(EXPECTED_DEAD) + 1),
        "scratch": (0, len(EXPECTED_DEAD)),
        ".": (len(names) + 1, 1),
    }


@pytest.mark.heavy
def test_kill_one_ends_in_the_same_totals(killed: tuple[Path, Ran]) -> None:
    root, ran = killed

    assert ran.code == 0, ran.err
    found, files = ran.record, contents(root)
    assert (found["files"], found["bytes"]) == (len(files), sum(map(len, files)))
    assert reasons(found) == EXPECTED_DEAD
    assert found["ordered"] is True
    assert (found["summaries"], found["missing"]) == (30 + 2, len(EXPECTED_DEAD))
    assert (found["tree"][0]["files"], found["tree"][0]["bytes"]) == (len(files), found["bytes"])
    held, again = set(found["kill"]["held"]), set(found["rerun_ids"])
    assert again
    # What it had settled in the moment of its death may be seen as still held.
    assert again <= held
    assert found["attempts"] == found["tasks"] + len(again)
    assert f"killed {found['kill']['worker']} with SIGKILL" in ran.err


@pytest.mark.heavy
def test_two_demos_at_once_do_not_disturb_each_other(environment: Mapping[str, str], tree: Path, demo: Demo) -> None:
    command = [*PROGRAM, "demo", str(tree), "--json", "--workers", "1"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as other:
        ran = demo(tree, "--json", "--workers", "1")
        out, err = other.communicate(timeout=60)

    assert (ran.code, other.returncode) == (0, 0), ran.err + err
    first, second = ran.record, json.loads(out)
    assert first["queue"] != second["queue"]
    assert [first[name] for name in ("files", "digest", "attempts")] == [
        second[name] for name in ("files", "digest", "attempts")
    ]


# -- what it prints


@pytest.mark.heavy
def test_printed_lines_can_be_pasted(demo: Demo, tree: Path, environment: Mapping[str, str], tmp_path: Path) -> None:
    ran = demo(tree)
    assert ran.code == 0, ran.err
    assert ran.out.startswith(f"inventory\t{tree}\n")
    lines = [line.strip() for line in ran.out.splitlines() if line.startswith("  ")]
    verbs = [re.findall(r"pgqueue (\w+)", line)[0] for line in lines]
    assert verbs == ["list", "show", "retry", "worker", "show", "stats"]

    # Another directory, to which only the module itself is missing where it was not installed.
    said = [
        subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for line in lines
    ]

    assert [done.returncode for done in said] == [0] * len(lines), [done.stderr for done in said]
    listed, shown, retried, worked, total, counted = said
    assert len(listed.stdout.splitlines()) == len(EXPECTED_DEAD)
    assert "inventory\tdead" in shown.stdout
    assert "a link that leads nowhere, to nowhere" in shown.stdout
    assert retried.stdout.endswith("\tpending\n")
    assert "stopped" in worked.stderr
    assert "\ttotal\tcompleted\n" in total.stdout
    assert f'"missing": {len(EXPECTED_DEAD)}' in total.stdout
    assert total.stdout.count("\tcompleted\tsummary\t") == 4
    assert "dead" in counted.stdout
    task_id = UUID(retried.stdout.split("\t")[0])
    events = demo_events(task_id, environment)
    assert [event["event"] for event in events if event["event"] in ("bury", "revive")] == ["bury", "revive", "bury"]


def demo_events(task_id: UUID, environment: Mapping[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        [*PROGRAM, "events", str(task_id), "--json", "--database-url", "embedded"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.heavy
def test_database_that_is_named_is_migrated_and_used(demo: Demo, tree: Path, empty_database_url: str) -> None:
    ran = demo(tree, "--json", "--database-url", empty_database_url)

    assert ran.code == 0, ran.err
    assert "was migrated from nothing" in ran.err
    assert ran.record["database"] == empty_database_url
    assert [shlex.split(line)[-1] for line in ran.record["commands"]] == [empty_database_url] * 6


@pytest.mark.heavy
def test_difference_is_told_and_the_logs_are_kept(demo: Demo, tree: Path, environment: Mapping[str, str]) -> None:
    """A file that grows all the time is never the same for its task and for the walk."""
    ended = threading.Event()

    def grow_on() -> None:
        with (tree / "growing").open("ab", buffering=0) as file:
            while not ended.wait(0.002):
                file.write(b"more\n")

    thread = threading.Thread(target=grow_on)
    thread.start()
    try:
        ran = demo(tree, "--json")
    finally:
        ended.set()
        thread.join()

    assert ran.code == 1
    assert ran.record["matches"] is False
    assert any(line.startswith("bytes: ") for line in ran.record["differences"])
    assert any("growing: the task says sha256" in line for line in ran.record["differences"])
    assert any("total: the summary says sha256" in line for line in ran.record["differences"])
    assert ran.err.splitlines()[-1].startswith("Error: tasks and direct walk differ: bytes: ")
    logs = Path(ran.record["logs"])
    assert sorted(os.listdir(logs)) == ["worker-1.log", "worker-2.log"]
    shutil.rmtree(logs)


# -- what it refuses


def refused(room: Path) -> Iterator[tuple[str, str]]:
    (room / "file").touch()
    (room / "bare" / "below").mkdir(parents=True)
    (room / "closed").mkdir()
    (room / "closed" / "file").touch()
    (room / "closed").chmod(0)
    yield str(room / "nothing"), "does not exist"
    yield str(room / "new\nline"), "does not exist"
    yield str(room / "\udcff"), "does not exist"
    yield str(room / "file"), "is no directory"
    yield str(room / "bare"), "has no files in it"
    yield "", "the empty name does not exist"
    if os.geteuid() != 0:
        yield str(room / "closed"), "cannot be read (Permission denied)"


def test_directory_that_cannot_be_used_is_one_line_and_exit_2(demo: Demo, tmp_path: Path) -> None:
    for directory, told in refused(tmp_path):
        ran = demo(directory)
        assert (ran.code, ran.out) == (2, ""), ran.err
        assert ran.err.count("\n") == 1
        assert f"{told}: name a directory with files in it" in ran.err
    (tmp_path / "closed").chmod(0o700)


@pytest.mark.parametrize("options", [["--workers", "0"], ["--workers", "x"], ["--wrong"], ["a", "b"]])
def test_misuse_is_one_line_and_exit_2(demo: Demo, options: list[str]) -> None:
    ran = demo(*options)

    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_unreachable_database_is_exit_3_and_leaves_nothing(demo: Demo, tree: Path, temporary: Left) -> None:
    before = temporary()
    ran = demo(tree, "--database-url", "postgresql://ada:secret@127.0.0.1:1/none")

    assert (ran.code, ran.out) == (3, "")
    assert "secret" not in ran.err
    assert temporary() == before


# -- how it ends before its end


class Going:
    """A demo over a folder that takes seconds, since its files are one at a time. A context manager: it ends."""

    def __init__(self, room: Path, environment: Mapping[str, str]) -> None:
        grow(room / "tree", folders=1, files=800)
        self.home = Path(environment["PGQUEUE_HOME"])
        self._out, self._err = room / "out", room / "err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [*PROGRAM, "demo", str(room / "tree")],
                cwd=ROOT,
                env=environment,
                stdout=out,
                stderr=err,
                # Ignored where this run stands in the background, and what is ignored stays ignored over exec.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.workers: list[int] = []

    def __enter__(self) -> Going:
        eventually(lambda: re.search(r"pending, \d+ running, \d*[1-9]\d* completed", self._err.read_text()))
        self.workers = [pid for pid in children(self.process.pid) if b"worker" in command_line(pid)]
        assert len(self.workers) == 2, self._err.read_text()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> Ran:
        return Ran(self.process.wait(60), self._out.read_text(), self._err.read_text())


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue  # it has just ended
    return found


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes in /proc")


@pytest.mark.heavy
@needs_proc
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -9)])
def test_workers_and_server_end_with_the_demo(
    environment: Mapping[str, str], tmp_path: Path, temporary: Left, number: signal.Signals, code: int
) -> None:
    before = temporary()
    with Going(tmp_path, environment) as going:
        going.process.send_signal(number)
        ran = going.end()

    assert ran.code == code, ran.err
    eventually(lambda: all(gone(pid) for pid in going.workers))
    eventually(lambda: not embedded.status(going.home).running)
    if number is signal.SIGKILL:
        return
    assert temporary() == before
    last = ran.err.strip().splitlines()[-1]  # Click ends the line that ^C stands on
    assert last.startswith("stopped; what is not done waits in queue demo-")
    assert ran.out == ""


@pytest.mark.heavy
@needs_proc
def test_worker_that_ends_by_itself_ends_the_demo(environment: Mapping[str, str], tmp_path: Path) -> None:
    with Going(tmp_path, environment) as going:
        os.kill(going.workers[0], signal.SIGKILL)
        ran = going.end()

    assert ran.code == 1
    last = ran.err.splitlines()[-1]
    assert re.match(r"Error: demo-\w{6}/worker-\d ended with -9: .*\(its log: ", last)
    log = Path(last.rpartition("(its log: ")[2].rstrip(")"))
    assert log.is_file()
    shutil.rmtree(log.parent)
    eventually(lambda: all(gone(pid) for pid in going.workers))


# -- another user


@pytest.mark.heavy
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a choice of users; the others run as one of them anyway")
def test_user_whose_home_cannot_be_written(tree: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="pgqueue-nobody-", dir="/tmp") as room:
        shutil.copytree(tree, Path(room) / "tree")
        for path in (room, *map(str, Path(room).rglob("*"))):
            os.chown(path, 65534, 65534)
        env = {name: value for name, value in os.environ.items() if name != "PGQUEUE_HOME"}
        # Dependencies by path: a system Python may be all that this user can run.
        paths = [str(ROOT), sysconfig.get_path("purelib")]
        env |= {"HOME": "/nonexistent", "TMPDIR": room, "PYTHONPATH": os.pathsep.join(paths)}

        def run(*arguments: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [python, "-m", "pgqueue", *arguments],
                cwd=room,
                env=env,
                user=65534,
                group=65534,
                extra_groups=[],
                capture_output=True,
                text=True,
                timeout=100,
                check=False,
            )

        python = next(filter(None, (path for path in pythons() if can_run(path, env))), "")
        if not python:
            pytest.skip("this Python and this checkout are closed to other users")
        ran = run("demo", str(Path(room) / "tree"), "--json")

        assert ran.returncode == 0, ran.stderr
        assert reasons(json.loads(ran.stdout)) == MUST_FAIL | CLOSED
        assert (Path(room) / "pgqueue-65534").is_dir()
        eventually(lambda: "running\tno" in run("embedded", "status").stdout)


def pythons() -> list[str]:
    return [sys.executable, f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"]


def can_run(python: str, env: Mapping[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import pgqueue.client"],
            env=env,
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return done.returncode == 0
