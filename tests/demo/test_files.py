"""The walk, what one file measures, and the comparison that must find every difference."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import demo, keys
from pgqueue.demo import Measure
from pgqueue.lifecycle import Status
from pgqueue.outcome import Permanent
from pgqueue.task import Task

from .conftest import ROOT

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)

# -- paths


@given(st.binary())
def test_encoded_path_comes_back(path: bytes) -> None:
    text = demo.encoded(path)

    assert demo.decoded(text) == path
    assert text.isprintable()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"/usr/lib/a b.py", "/usr/lib/a b.py"),
        ("/über/文".encode(), "/über/文"),
        (b"100%", "100%25"),
        (b"a\nb\x7f", "a%0Ab%7F"),
        (b"\xff\xc3", "%FF%C3"),
    ],
)
def test_encoded_path_is_as_readable_as_it_can_be(path: bytes, text: str) -> None:
    assert demo.encoded(path) == text


@given(st.lists(st.binary(min_size=1, max_size=300).filter(lambda name: b"/" not in name and b"\0" not in name)))
def test_agent_is_a_lawful_name(names: list[bytes]) -> None:
    agent = demo.agent_of("a1b2c3", b"/top", b"/top/" + b"/".join(names))

    assert keys.check_name(agent, field="agent") == agent


def test_agents_of_two_folders_differ_however_long() -> None:
    long = b"/top/" + b"x" * 5000
    folders = [long, long + b"y", long + b"\xff", b"/top", b"/top/a", b"/top/a%", b"/top/a\n"]

    assert len({demo.agent_of("run", b"/top", folder) for folder in folders}) == len(folders)


# -- one file


def test_measure_counts_as_other_tools_do(tree: Path) -> None:
    for path in (tree / "empty", tree / "one.txt", tree / "docs/deep/three.bin"):
        content = path.read_bytes()
        assert demo.measure(os.fsencode(path)) == Measure(
            len(content), content.count(b"\n"), hashlib.sha256(content).hexdigest()
        )


def unlawful(room: Path) -> Iterator[tuple[Path, str]]:
    (room / "link").symlink_to("nowhere")
    yield room / "link", "a link that leads nowhere, to nowhere"
    yield room / "gone", "no such file: it was removed after it was listed"
    (room / "folder").mkdir()
    yield room / "folder", "a directory stands where the file was"
    os.mkfifo(room / "pipe")
    yield room / "pipe", "not a regular file"
    (room / "circle").symlink_to("circle")
    yield room / "circle", os.strerror(errno.ELOOP)


def test_what_is_no_file_is_dead_at_once_with_its_reason(tmp_path: Path) -> None:
    for path, reason in unlawful(tmp_path):
        assert demo.measured(os.fsencode(path)) == reason
        with pytest.raises(Permanent) as caught:
            demo.inventory(path=demo.encoded(os.fsencode(path)))
        assert str(caught.value) == f"{reason} ({path})"


def test_shortage_of_the_machine_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(path: bytes, between: Callable[[], None]) -> Measure:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(demo, "measure", short)

    with pytest.raises(OSError, match="too many"):
        demo.inventory(path=str(tmp_path))


# -- the walk


def names(root: Path, **options: Any) -> list[str]:
    found = demo.folders(os.fsencode(root), **options)
    return [
        os.fsdecode(os.path.relpath(os.path.join(f.path, name), os.fsencode(root))) for f in found for name in f.names
    ]


def test_walk_is_in_order_parents_first(tree: Path) -> None:
    assert names(tree) == ["empty", "one.txt", "docs/two.txt", "docs/deep/three.bin"]


def test_walk_leaves_out_caches_and_what_it_is_told(tree: Path) -> None:
    for name in ("__pycache__", "site-packages", "docs/.mypy_cache"):
        (tree / name).mkdir()
        (tree / name / "file").touch()
    docs = demo.identity(str(tree / "docs"))
    assert docs is not None

    assert names(tree) == ["empty", "one.txt", "docs/two.txt", "docs/deep/three.bin"]
    assert names(tree, without={docs}) == ["empty", "one.txt"]


def test_walk_takes_links_to_files_and_follows_none_to_folders(tree: Path) -> None:
    (tree / "to-file").symlink_to("one.txt")
    (tree / "to-nowhere").symlink_to("nowhere")
    (tree / "to-folder").symlink_to("docs")
    (tree / "to-itself").symlink_to("to-itself")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        directory = os.open(tree, os.O_RDONLY)  # the whole path may be too long for a socket
        try:
            bound.bind(f"/proc/self/fd/{directory}/socket" if Path("/proc/self/fd").exists() else str(tree / "socket"))
        finally:
            os.close(directory)

        found = demo.walk(os.fsencode(tree))

    assert set(map(Path, found)) == {
        tree / name
        for name in ("empty", "one.txt", "docs/two.txt", "docs/deep/three.bin", "to-file", "to-nowhere", "to-itself")
    }
    assert found[str(tree / "to-file")] == found[str(tree / "one.txt")]
    assert [path for path, measure in found.items() if isinstance(measure, str)] == [
        str(tree / "to-itself"),
        str(tree / "to-nowhere"),
    ]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_walk_tells_of_a_folder_that_is_closed(tree: Path) -> None:
    (tree / "docs").chmod(0)
    try:
        found = list(demo.folders(os.fsencode(tree)))
    finally:
        (tree / "docs").chmod(0o755)

    assert [folder.error for folder in found] == [None, "permission denied: this user may not read it"]


def test_walk_of_what_is_no_folder_raises(tree: Path) -> None:
    with pytest.raises(NotADirectoryError):
        list(demo.folders(os.fsencode(tree / "empty")))


# -- the comparison


def task(number: int, path: str, status: Status, **changes: Any) -> Task:
    values: dict[str, Any] = {field.name: None for field in dataclasses.fields(Task)}
    values |= {"id": UUID(int=number), "status": status, "agent": "lane", "attempts": 1, "not_before": NOON}
    values |= {"started_at": NOON + number * SECOND, "finished_at": NOON + number * SECOND + SECOND}
    values |= {"payload_text": json.dumps({"path": path})}
    return Task(**values | changes)


def result(measure: Measure) -> str:
    return json.dumps(dataclasses.asdict(measure))


ONE = Measure(5, 2, "aa")
TWO = Measure(7, 1, "bb")
EXPECTED: dict[str, Measure | str] = {"/d/one": ONE, "/d/two": TWO, "/d/gone": "no such file"}


def right() -> list[Task]:
    return [
        task(1, "/d/one", Status.COMPLETED, result_text=result(ONE)),
        task(2, "/d/two", Status.COMPLETED, result_text=result(TWO)),
        task(3, "/d/gone", Status.DEAD, last_error="pgqueue.outcome.Permanent: no such file (/d/gone)\n\nTraceback"),
    ]


def test_compare_accepts_what_is_right() -> None:
    assert demo.compare(EXPECTED, right()) == []
    assert demo.disorder(right()) == []


@pytest.mark.parametrize(
    ("number", "changes", "told"),
    [
        (0, {"result_text": result(Measure(6, 2, "aa"))}, "bytes: 13 by the tasks, 12 by the walk"),
        (0, {"result_text": result(Measure(6, 2, "aa"))}, "/d/one: the task says bytes 6, the walk 5"),
        (0, {"result_text": result(Measure(5, 3, "aa"))}, "/d/one: the task says lines 3, the walk 2"),
        (0, {"result_text": result(Measure(5, 2, "ab"))}, "/d/one: the task says sha256 ab, the walk aa"),
        (0, {"result_text": None}, "/d/one: the task says sha256 none, the walk aa"),
        (1, {"status": Status.DEAD, "last_error": "OSError: x"}, "/d/two: its task is dead (OSError: x)"),
        (1, {"status": Status.RUNNING}, "files: 1 by the tasks, 2 by the walk"),
        (1, {"status": Status.CANCELLED}, "/d/two: its task is cancelled (without an error)"),
        (2, {"status": Status.COMPLETED}, "/d/gone: its task is completed, though it cannot be read (no such file)"),
        (1, {"payload_text": '{"path": "/d/one"}'}, "/d/one: 2 tasks instead of one"),
        (1, {"payload_text": '{"path": "/d/else"}'}, "/d/else: the walk found no such file, its task is completed"),
        (1, {"payload_text": '{"path": "/d/else"}'}, "/d/two: no task"),
    ],
)
def test_compare_finds_what_was_tampered_with(number: int, changes: dict[str, Any], told: str) -> None:
    tasks = right()
    tasks[number] = dataclasses.replace(tasks[number], **changes)

    assert told in demo.compare(EXPECTED, tasks)


def test_compare_finds_a_lost_task() -> None:
    assert "/d/gone: no task" in demo.compare(EXPECTED, right()[:2])


def test_disorder_finds_an_overlap_and_a_task_out_of_turn() -> None:
    one, two, three = right()
    overlapping = dataclasses.replace(two, started_at=NOON + 1.5 * SECOND)
    early = dataclasses.replace(three, started_at=NOON, finished_at=NOON + 0.5 * SECOND)
    elsewhere = dataclasses.replace(overlapping, agent="other lane")
    endless = dataclasses.replace(one, finished_at=None)

    assert demo.disorder([one, overlapping, three]) == ["lane: /d/two began before /d/one had ended"]
    assert demo.disorder([one, two, early]) == ["lane: /d/gone began before /d/two had ended"]
    assert demo.disorder([one, elsewhere, three]) == []
    assert demo.disorder([endless, two]) == ["lane: a task never ended"]


def test_totals_depend_on_every_path_and_content() -> None:
    one = demo.Totals.of({"/d/one": ONE, "/e/two": TWO})

    assert (one.files, one.folders, one.bytes, one.lines) == (2, 2, 12, 3)
    assert one == demo.Totals.of({"/e/two": TWO, "/d/one": ONE})
    assert one.digest != demo.Totals.of({"/d/one": TWO, "/e/two": ONE}).digest
    assert one.digest != demo.Totals.of({"/d/one": ONE, "/e/three": TWO}).digest


# -- what it costs to look


def test_help_of_the_demo_imports_no_machinery() -> None:
    code = (
        "import runpy, sys\nsys.argv = ['pgqueue', 'demo', '--help']\n"
        "try:\n    runpy.run_module('pgqueue', run_name='__main__')\n"
        "except SystemExit:\n    pass\n"
        "print([name for name in ('sqlalchemy', 'psycopg', 'alembic', 'rich', 'asyncio') if name in sys.modules])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.startswith("Usage: pgqueue demo")
    assert done.stdout.splitlines()[-1] == "[]"
