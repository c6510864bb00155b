"""What `pgqueue demo` runs: an inventory of a tree of files, one task per file, one lane per folder, and their sums.

Beside the App stands the direct walk, which counts the same files without any queue, and the comparison of the two.
Paths are bytes here and `encoded` where they travel: a file's name may be no text at all.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import hashlib
import itertools
import os
import signal
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote_to_bytes

from .app import App
from .context import Context
from .demo_sums import Sum, summed
from .keys import NAME_LIMIT
from .lifecycle import Status
from .outcome import Permanent

if TYPE_CHECKING:
    from .task import Task

__all__ = [
    "Folder",
    "Measure",
    "Totals",
    "agent_of",
    "app",
    "compare",
    "decoded",
    "encoded",
    "folders",
    "inventory",
    "summary",
    "total",
]

PARENT: Final = "PGQUEUE_DEMO_PARENT"
"""In the environment of a demo's workers: the pid of the demo, without which they have nothing to do."""

SKIPPED: Final = frozenset(
    (b"__pycache__", b"site-packages", b"dist-packages", b".cache", b".mypy_cache", b".pytest_cache", b".ruff_cache")
)
"""Folders that are not walked: what others install, and what the running Python itself may write meanwhile."""

_CHUNK: Final = 1 << 20
# Shortages of this machine at this moment; anything else that the system says of a file it will say again.
_PASSING: Final = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR, errno.ESTALE))


# -- paths that travel


def encoded(path: bytes) -> str:
    """A path as readable text: what is no printable UTF-8, and the percent sign, becomes %XX. `decoded` undoes it."""
    return "".join(
        char if char.isprintable() and char != "%" else _percent(char)
        for char in path.decode("utf-8", "surrogateescape")
    )


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "surrogateescape"))


def decoded(text: str) -> bytes:
    """The path that `encoded` was given."""
    return unquote_to_bytes(text)


def agent_of(run: str, root: bytes, folder: bytes) -> str:
    """The lane of a folder. It begins with the run: agents are one at a time over all queues, and runs are apart."""
    name = f"{run}/{encoded(os.path.relpath(folder, root))}"
    if len(name.encode()) <= NAME_LIMIT:
        return name
    end = "~" + hashlib.sha256(folder).hexdigest()[:32]
    return name.encode()[: NAME_LIMIT - len(end)].decode("utf-8", "ignore") + end


# -- one file


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """What the inventory says of one file. Lines are counted as `wc -l` does."""

    bytes: int
    lines: int
    sha256: str


def measure(path: bytes, between: Callable[[], None] = lambda: None) -> Measure:
    """Read a file to its end; `between` is called after each piece of it. OSError where it is none, or is closed."""
    # Not blocking: a pipe may have taken the file's place, and would never be opened.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        digest, size, lines = hashlib.sha256(), 0, 0
        while piece := os.read(descriptor, _CHUNK):
            digest.update(piece)
            size += len(piece)
            lines += piece.count(b"\n")
            between()
        return Measure(size, lines, digest.hexdigest())
    finally:
        os.close(descriptor)


def reason(path: bytes, error: OSError) -> str:
    """Why a file cannot be read, in a person's words."""
    match error.errno:
        case errno.ENOENT if os.path.islink(path):
            return f"a link that leads nowhere, to {encoded(os.readlink(path))}"
        case errno.ENOENT | errno.ENOTDIR:
            return "no such file: it was removed after it was listed"
        case errno.EISDIR:
            return "a directory stands where the file was"
        case errno.EACCES | errno.EPERM:
            return "permission denied: this user may not read it"
    return error.strerror or type(error).__name__


# -- the actions

app: Final = App()


@app.task
def inventory(ctx: Context, path: str) -> dict[str, Any]:
    """Hash and measure one file."""
    _end_with_the_demo(os.environ.get(PARENT))
    place = decoded(path)
    try:
        return dataclasses.asdict(measure(place, ctx.check))
    except OSError as error:
        if error.errno in _PASSING:
            raise
        raise Permanent(f"{reason(place, error)} ({path})") from error


@app.task
def summary(ctx: Context, folder: str, part: int) -> dict[str, Any]:
    """Add up the files of a folder, when the last of them has ended; part: of a folder with very many, from 1."""
    del folder, part
    _end_with_the_demo(os.environ.get(PARENT))
    return dataclasses.asdict(summed(ctx.parents()))


@app.task
def total(ctx: Context, part: int) -> dict[str, Any]:
    """Add up the summaries; part: of very many folders, from 1."""
    del part
    _end_with_the_demo(os.environ.get(PARENT))
    return dataclasses.asdict(summed(ctx.parents()))


@functools.cache
def _end_with_the_demo(pid: str | None) -> None:
    """Stop this worker when the demo that started it is gone, even by SIGKILL: nobody else would."""
    if pid is None:
        return

    def watch() -> None:
        while os.getppid() == int(pid):
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="demo-watch", daemon=True).start()


# -- the direct walk


@dataclasses.dataclass(frozen=True, slots=True)
class Folder:
    """A folder with files in it, both in the order of their names. `names` is empty where it cannot be read."""

    path: bytes
    names: tuple[bytes, ...]
    error: str | None = None


def folders(root: bytes, *, without: Collection[tuple[int, int]] = ()) -> Iterator[Folder]:
    """The folders of a tree that hold files, parents first.

    Links to files count as files, also those that lead nowhere; links to directories are not followed. Pipes, sockets
    and devices are no files. without: (device, inode) of folders that are left out. OSError when `root` itself cannot
    be read; a folder below it is given with its error.
    """
    waiting = [root]
    while waiting:
        path = waiting.pop()
        try:
            with os.scandir(path) as entries:
                found = sorted(entries, key=lambda entry: entry.name)
        except OSError as error:
            if path == root:
                raise
            yield Folder(path, (), reason(path, error))
            continue
        names = tuple(entry.name for entry in found if _counts(entry))
        if names:
            yield Folder(path, names)
        below = [entry.path for entry in found if _is_below(entry, without)]
        waiting += reversed(below)


def _counts(entry: os.DirEntry[bytes]) -> bool:
    try:
        return entry.is_file() or (entry.is_symlink() and not os.path.exists(entry.path))
    except OSError:  # a circle of links
        return True


def _is_below(entry: os.DirEntry[bytes], without: Collection[tuple[int, int]]) -> bool:
    if not entry.is_dir(follow_symlinks=False) or entry.name in SKIPPED:
        return False
    return not without or identity(entry.path) not in without


def identity(path: bytes | str) -> tuple[int, int] | None:
    """What a folder is under whatever name; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def walk(root: bytes, *, without: Collection[tuple[int, int]] = ()) -> dict[str, Measure | str]:
    """Every file of the tree, under its encoded path: what it measures, or why it cannot be read."""
    return {
        encoded(path): measured(path)
        for folder in folders(root, without=without)
        for path in (os.path.join(folder.path, name) for name in folder.names)
    }


def measured(path: bytes) -> Measure | str:
    try:
        return measure(path)
    except OSError as error:
        return reason(path, error)


# -- the two compared


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
    """What a whole tree comes to. `digest` is over every path with its file's digest, in order."""

    files: int
    folders: int
    bytes: int
    lines: int
    digest: str

    @classmethod
    def of(cls, files: Mapping[str, Measure]) -> Totals:
        digest = hashlib.sha256()
        for path in sorted(files):
            digest.update(f"{files[path].sha256}  {path}\n".encode())
        found = files.values()
        return cls(
            files=len(files),
            folders=len({os.path.dirname(path) for path in files}),
            bytes=sum(one.bytes for one in found),
            lines=sum(one.lines for one in found),
            digest=digest.hexdigest(),
        )


def results(tasks: Iterable[Task]) -> dict[str, Measure]:
    """What the completed tasks say, by path."""
    return {path_of(task): _result(task) for task in tasks if task.status is Status.COMPLETED}


def path_of(task: Task) -> str:
    payload = task.payload
    return str(payload["path"]) if isinstance(payload, dict) else ""


def _result(task: Task) -> Measure:
    found: Mapping[str, Any] = task.result if isinstance(task.result, dict) else {}
    return Measure(found.get("bytes", -1), found.get("lines", -1), found.get("sha256", "none"))


def compare(expected: Mapping[str, Measure | str], tasks: Iterable[Task]) -> list[str]:
    """Where the tasks differ from what was expected, totals first, a line each; empty when all is as it should be.

    expected: by path, what a file measures (its task must have completed with just that), or why it cannot be read
    (its task must be dead).
    """
    by_path: dict[str, list[Task]] = {}
    for task in tasks:
        by_path.setdefault(path_of(task), []).append(task)
    counted = Totals.of(results(task for found in by_path.values() for task in found))
    walked = Totals.of({path: found for path, found in expected.items() if isinstance(found, Measure)})
    wrong = [
        f"{field.name}: {getattr(counted, field.name)} by the tasks, {getattr(walked, field.name)} by the walk"
        for field in dataclasses.fields(Totals)
        if getattr(counted, field.name) != getattr(walked, field.name)
    ]
    wrong += [f"{path}: no task" for path in expected if path not in by_path]
    for path, found in by_path.items():
        if len(found) > 1:
            wrong.append(f"{path}: {len(found)} tasks instead of one")
        elif path not in expected:
            wrong.append(f"{path}: the walk found no such file, its task is {found[0].status}")
        else:
            wrong += _differs(path, expected[path], found[0])
    return wrong


def _differs(path: str, expected: Measure | str, task: Task) -> list[str]:
    if isinstance(expected, str):
        right = task.status is Status.DEAD
        return [] if right else [f"{path}: its task is {task.status}, though it cannot be read ({expected})"]
    if task.status is not Status.COMPLETED:
        return [f"{path}: its task is {task.status} ({first_line(task.last_error) or 'without an error'})"]
    found = _result(task)
    return [
        f"{path}: the task says {name} {getattr(found, name)}, the walk {getattr(expected, name)}"
        for name in ("bytes", "lines", "sha256")
        if getattr(found, name) != getattr(expected, name)
    ]


def by_folder(expected: Mapping[str, Measure | str]) -> dict[str, list[Sum | None]]:
    """What was expected of each file, as the parts of its folder's summary."""
    found: dict[str, list[Sum | None]] = {}
    for path, one in expected.items():
        part = Sum.of(dataclasses.asdict(one)) if isinstance(one, Measure) else None
        found.setdefault(os.path.dirname(path), []).append(part)
    return found


def first_line(error: str | None) -> str:
    """The words of an error, without the class that carried them and without its traceback."""
    line = (error or "").strip().partition("\n")[0]
    return line.removeprefix(f"{Permanent.__module__}.{Permanent.__qualname__}: ")


def disorder(tasks: Iterable[Task]) -> list[str]:
    """Where two tasks of one folder ran at once, or out of their order, by the server's clock; a line each.

    Sees the last run of each task: what an earlier one, cut off by a kill, has overlapped is not on the row.
    """
    wrong = []
    for agent, found in itertools.groupby(sorted(tasks, key=_place), key=lambda task: task.agent):
        for one, other in itertools.pairwise(found):
            if one.finished_at is None or other.started_at is None:
                wrong.append(f"{agent}: a task never ended")
            elif other.started_at < one.finished_at:
                wrong.append(f"{agent}: {path_of(other)} began before {path_of(one)} had ended")
    return wrong


def _place(task: Task) -> tuple[str, Any, Any]:
    """A task's place in the line of its agent."""
    return task.agent or "", task.not_before, task.id
