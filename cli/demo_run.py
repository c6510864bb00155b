"""The demo from beginning to end: server, schema, tasks, workers, and the check of what they did."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import shutil
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import sqlalchemy as sa

import pgqueue
from pgqueue import demo, demo_sums, embedded, migrate
from pgqueue.client import Client
from pgqueue.database import EMBEDDED, Database, mask
from pgqueue.errors import InputError, PgqueueError
from pgqueue.ids import tail
from pgqueue.lifecycle import ACTIVE, Status
from pgqueue.task import Task

from .common import open_database, program
from .demo_plan import Plan
from .demo_report import Branch, Dead, Kill, Report, branches, tasks_of
from .demo_screen import Teller, teller
from .errors import tell

_CHUNK: Final = 250
"""Tasks per enqueue: small enough for a bar that moves."""
_LOOK_EVERY: Final = 0.15
_LOOK_CLOSELY: Final = 0.02
_PAGE: Final = 10_000
_LEASE: Final = "2s"
"""With --kill-one: short, because somebody waits for it to run out."""
_ON_ITS_WAY: Final = 0.1
"""How long the server may need for what the workers sent before they were stopped."""
_STALLED: Final = 60.0
_PATIENCE: Final = 15.0


class DemoFailed(PgqueueError):
    """The demo could not be brought to its end."""


@dataclasses.dataclass(frozen=True)
class Request:
    """What the command line said."""

    directory: str | None
    workers: int
    kill_one: bool
    database_url: str
    schema: str | None

    def place(self) -> str:
        """The options that lead a copied command to the same tables."""
        schema = f" --schema {shlex.quote(self.schema)}" if self.schema else ""
        return f" --database-url {shlex.quote(mask(self.database_url))}{schema}"


def run(request: Request) -> Report:
    """Run the demo. InputError for a directory that cannot be used; DemoFailed when it cannot go on."""
    root = tree(request.directory)
    with _ended_by_signals(), _workplace() as place, teller() as show:
        database = open_database(request.database_url, request.schema)
        try:
            return _Run(request, root, database, place, show).run()
        finally:
            database.dispose()


# -- the tree, and what must fail


def tree(directory: str | None) -> bytes:
    """The directory to walk, absolute; by default the running Python's library."""
    named = sysconfig.get_path("stdlib") if directory is None else directory
    root = os.path.abspath(os.fsencode(named))
    shown = demo.encoded(os.fsencode(named))
    if not named or not os.path.lexists(root):
        raise _unusable(f"{shown or 'the empty name'} does not exist")
    if not os.path.isdir(root):
        raise _unusable(f"{shown} is no directory")
    try:
        if not any(folder.names for folder in demo.folders(root)):
            raise _unusable(f"{shown} has no files in it")
    except OSError as error:
        raise _unusable(f"{shown} cannot be read ({error.strerror})") from None
    return root


def _unusable(text: str) -> InputError:
    return InputError(f"{text}: name a directory with files in it", field="DIR")


def make_scratch(folder: Path) -> None:
    """Files that will be no files when their tasks run, and one that was none from the beginning."""
    folder.mkdir()
    (folder / "dangling-link").symlink_to("nowhere")
    for name in ("now-a-directory", "removed", "unreadable"):
        (folder / name).write_text("here today\n")
    (folder / "unreadable").chmod(0)
    if os.access(folder / "unreadable", os.R_OK):  # root, or a file system without modes
        (folder / "unreadable").unlink()


def spoil_scratch(folder: Path) -> None:
    (folder / "removed").unlink()
    (folder / "now-a-directory").unlink()
    (folder / "now-a-directory").mkdir()


@contextlib.contextmanager
def _workplace() -> Iterator[Path]:
    """A folder for the scratch files and the workers' logs. The logs stay where something went wrong."""
    try:
        place = Path(tempfile.mkdtemp(prefix="pgqueue-demo-"))
    except OSError as error:
        raise DemoFailed(f"no temporary folder can be made ({error.strerror}): set TMPDIR to one that can") from None
    try:
        yield place
    except (KeyboardInterrupt, SystemExit, InputError):
        shutil.rmtree(place, ignore_errors=True)
        raise
    except BaseException:
        shutil.rmtree(place / "scratch", ignore_errors=True)
        with contextlib.suppress(OSError):
            place.rmdir()  # no worker was started yet
        raise


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP unwind like Ctrl-C, so that workers and server end with us."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: object) -> None:
        del frame
        sys.exit(128 + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


# -- the workers


@dataclasses.dataclass(frozen=True)
class Hand:
    """One worker process."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def last_words(self) -> str:
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"


class Crew:
    """The worker processes. A context manager: none outlives it."""

    def __init__(self, request: Request, queue: str, place: Path) -> None:
        self._queue = queue
        self._place = place
        self._argv = [sys.executable, "-P", "-m", "pgqueue", "worker", "--app", "pgqueue.demo:app", "-q", queue]
        # Nothing of the working directory may pass for a module of ours.
        self._argv += ["--app-dir", str(place), *(("--lease", _LEASE) if request.kill_one else ())]
        self._env = worker_environment(request)
        self.hands: list[Hand] = []
        self._started = 0

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def hire(self) -> Hand:
        self._started += 1
        name = f"{self._queue}/worker-{self._started}"
        log = self._place / f"worker-{self._started}.log"
        with log.open("wb") as out:
            # A session of its own: Ctrl-C reaches us alone, and we stop the workers in order.
            process = subprocess.Popen(
                [*self._argv, "--name", name],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.hands.append(Hand(name, process, log))
        return self.hands[-1]

    def check(self) -> None:
        """DemoFailed when a worker has ended by itself."""
        for hand in self.hands:
            status = hand.process.poll()
            if status is not None:
                raise DemoFailed(f"{hand.name} ended with {status}: {hand.last_words()} (its log: {hand.log})")

    def kill(self, hand: Hand) -> None:
        hand.process.kill()
        hand.process.wait()
        self.hands.remove(hand)

    def stop(self) -> None:
        """SIGTERM for all, SIGKILL for who does not go; a second Ctrl-C kills them now."""
        try:
            for hand in self.hands:
                hand.process.terminate()
                hand.process.send_signal(signal.SIGCONT)  # should it be stopped, about to be killed
            deadline = time.monotonic() + _PATIENCE
            for hand in self.hands:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    hand.process.wait(max(0.0, deadline - time.monotonic()))
        finally:
            for hand in list(self.hands):
                self.kill(hand)


def worker_environment(request: Request) -> dict[str, str]:
    """Ours, without what would change the workers; the URL stands here because anybody can read a command line."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PGQUEUE_WORKER_")}
    env |= {"PGQUEUE_DATABASE_URL": request.database_url, demo.PARENT: str(os.getpid())}
    if request.schema:
        env["PGQUEUE_SCHEMA"] = request.schema
    if request.database_url == EMBEDDED:
        # What a crash of the machine would cost is the end of a demo; it is not worth an fsync per task.
        env["PGOPTIONS"] = f"{env.get('PGOPTIONS', '')} -c synchronous_commit=off".strip()
    home = str(Path(pgqueue.__file__).resolve().parent.parent)
    if home not in map(os.path.realpath, (*site.getsitepackages(), site.getusersitepackages())):
        # A checkout: the workers do not look in the working directory for it.
        env["PYTHONPATH"] = os.pathsep.join(filter(None, (home, env.get("PYTHONPATH"))))
    return env


# -- one run


class _Run:
    """The steps, in order, over one database."""

    def __init__(self, request: Request, root: bytes, database: Database, place: Path, show: Teller) -> None:
        self._request = request
        self._root = root
        self._database = database
        self._client = Client(database)
        self._place = place
        self._show = show
        self._id = uuid.uuid4().hex[:6]
        self._queue = f"demo-{self._id}"
        self._plan = Plan(self._id, self._queue)
        self._scratch = place / "scratch"
        self._ids: list[UUID] = []
        self._kill: Kill | None = None
        self._without: Collection[tuple[int, int]] = ()

    def run(self) -> Report:
        self._bring_up()
        make_scratch(self._scratch)
        doomed = self._enqueue()
        try:
            with Crew(self._request, self._queue, self._place) as crew:
                for _ in range(self._request.workers):
                    crew.hire()
                self._drain(crew)
        except (KeyboardInterrupt, SystemExit):
            tell(f"stopped; what is not done waits in queue {self._queue}: {self._command(self._work())}")
            raise
        self._show.say("comparing with a direct walk")
        return self._report(doomed)

    def _bring_up(self) -> None:
        began = time.monotonic()
        if self._request.database_url == EMBEDDED:
            self._show.say("starting the embedded server")
        with self._database.autocommit() as connection:
            version = connection.exec_driver_sql("show server_version").scalar_one()
        self._show.say(f"PostgreSQL {version} ({self._database.masked}) answers after {time.monotonic() - began:.1f} s")
        began = time.monotonic()
        before, after = migrate.upgrade(self._database)
        done = "has nothing to migrate" if before == after else f"was migrated from {before or 'nothing'}"
        self._show.say(f"schema {self._database.schema}, revision {after}, {done}: {time.monotonic() - began:.1f} s")

    # -- enqueue

    def _enqueue(self) -> dict[str, demo.Measure | str]:
        """Enqueue tree and scratch; then spoil the scratch, and return what its files come to."""
        self._without = self._left_out()
        tree_, scratch = self._folders(self._root), self._folders(os.fsencode(self._scratch))
        closed = sum(folder.error is not None for folder in tree_)
        if closed:
            self._show.say(f"left out: {closed:,} folders that cannot be read")
        self._plan.add(tree_, self._root)
        self._plan.add(scratch, os.fsencode(self._place))
        self._plan.close()
        tasks = self._plan.tasks
        for start in range(0, len(tasks), _CHUNK):
            self._ids += [made.id for made in self._client.enqueue_many(tasks[start : start + _CHUNK])]
            self._show.enqueued(len(self._ids), len(tasks))
        spoil_scratch(self._scratch)
        listed = [os.path.join(folder.path, name) for folder in scratch for name in folder.names]
        return {demo.encoded(path): demo.measured(path) for path in listed}

    def _left_out(self) -> Collection[tuple[int, int]]:
        """What changes while we look: our own files, should the tree be around them."""
        places = [self._place]
        if self._request.database_url == EMBEDDED:
            places.append(embedded.default_home())
        return {found for place in places if (found := demo.identity(str(place))) is not None}

    def _folders(self, root: bytes) -> list[demo.Folder]:
        return list(demo.folders(root, without=self._without))

    # -- work

    def _drain(self, crew: Crew) -> None:
        total = len(self._ids)
        last: Mapping[str, int] = {}
        moved = time.monotonic()
        while True:
            counts = self._counts()
            self._show.worked(counts, total)
            if not any(counts[status] for status in ACTIVE):
                return
            crew.check()
            ended = total - counts["pending"] - counts["running"]
            if self._request.kill_one and self._kill is None and 3 * ended >= total:
                self._kill_one(crew)
            if counts != last or counts["running"]:
                last, moved = counts, time.monotonic()
            elif time.monotonic() - moved > _STALLED:
                raise DemoFailed(f"nothing has moved for {_STALLED:.0f} s; the workers' logs are in {self._place}")
            time.sleep(_LOOK_CLOSELY if self._request.kill_one and self._kill is None else _LOOK_EVERY)

    def _counts(self) -> dict[str, int]:
        # The range of ids keeps it to this run, however much else the table holds.
        tasks = self._client.store.sql.tasks.c
        query = (
            sa.select(tasks.status, sa.func.count())
            .where(tasks.id.between(self._ids[0], self._ids[-1]), tasks.queue == self._queue)
            .group_by(tasks.status)
        )
        with self._database.autocommit() as connection:
            found = {row.status: row[1] for row in connection.execute(query)}
        return {status.value: found.get(status.value, 0) for status in Status}

    def _kill_one(self, crew: Crew) -> None:
        """Kill the worker that holds the most; nothing happens in a moment in which none holds anything."""
        # First all are stopped, so that whoever dies still holds what it is seen to hold.
        for hand in crew.hands:
            hand.process.send_signal(signal.SIGSTOP)
        try:
            if not self._running():
                return
            time.sleep(_ON_ITS_WAY)
            held: dict[str, list[str]] = {hand.name: [] for hand in crew.hands}
            for task in self._running():
                held.setdefault(task.lease_owner or "", []).append(str(task.id))
            hand = max(crew.hands, key=lambda hand: len(held[hand.name]))
            if not held[hand.name]:
                return
            crew.kill(hand)
        finally:
            for other in crew.hands:
                other.process.send_signal(signal.SIGCONT)
        self._kill = Kill(hand.name, hand.process.pid, held[hand.name])
        crew.hire()
        count = tasks_of(len(self._kill.held))
        self._show.say(f"killed {hand.name} with SIGKILL, holding {count}; another takes its place")

    def _running(self) -> Sequence[Task]:
        return self._client.list_tasks(status=Status.RUNNING, queue=self._queue, limit=1000).tasks

    # -- check

    def _report(self, doomed: Mapping[str, demo.Measure | str]) -> Report:
        everything = self._read()
        tasks = [task for task in everything if task.id not in self._plan.parents]
        sums = [task for task in everything if task.id in self._plan.parents]
        expected = {**demo.walk(self._root, without=self._without), **doomed}
        wrong_order = demo.disorder(tasks) + demo_sums.early(everything, self._plan.parents)
        differences = demo.compare(expected, tasks)
        differences += demo_sums.compare(demo.by_folder(expected), sums) + wrong_order
        totals = demo.Totals.of(demo.results(tasks))
        dead = [task for task in tasks if task.status is Status.DEAD]
        tree_ = branches(map(self._branch, filter(demo_sums.is_whole, sums)))
        if differences:
            shutil.rmtree(self._scratch, ignore_errors=True)
        else:
            shutil.rmtree(self._place, ignore_errors=True)
        return Report(
            queue=self._queue,
            database=self._database.masked,
            directory=demo.encoded(self._root),
            workers=self._request.workers,
            files=totals.files,
            folders=totals.folders,
            bytes=totals.bytes,
            lines=totals.lines,
            digest=totals.digest,
            tasks=len(everything),
            completed=sum(task.status is Status.COMPLETED for task in everything),
            attempts=sum(task.attempts for task in everything),
            seconds=_seconds(everything),
            summaries=len(sums),
            missing=tree_[0].missing if tree_ else 0,
            tree=tree_,
            dead=[self._dead(task) for task in dead],
            kill_one=self._request.kill_one,
            kill=self._kill,
            rerun_ids=[str(task.id) for task in everything if task.attempts > 1],
            ordered=not wrong_order,
            differences=differences,
            commands=[self._command(words) for words in self._next(dead)],
            logs=str(self._place) if differences else None,
        )

    def _read(self) -> list[Task]:
        """All tasks of this run, in the order in which they were enqueued."""
        found: list[Task] = []
        before: UUID | None = None
        while len(found) < len(self._ids):
            page = self._client.list_tasks(queue=self._queue, limit=_PAGE, before=before)
            found += page.tasks
            before = page.next
            if before is None or before < self._ids[0]:
                break
        return found[::-1]

    def _shown(self, path: str) -> str:
        """A path of ours as people read it: from where we looked."""
        root = demo.encoded(self._root)
        if path == root:
            return "."
        return path.removeprefix(f"{demo.encoded(os.fsencode(self._place))}/").removeprefix(f"{root.rstrip('/')}/")

    def _branch(self, task: Task) -> Branch:
        folder, found = demo_sums.folder_of(task), demo_sums.Sum.of(task.result)
        name = self._shown(folder) if folder else ""
        return Branch(str(task.id), tail(task.id), name, found.files, found.missing, found.bytes, found.lines)

    def _dead(self, task: Task) -> Dead:
        path = demo.path_of(task)
        file = self._shown(path)
        error = demo.first_line(task.last_error).removesuffix(f" ({path})")
        return Dead(str(task.id), tail(task.id), file, error)

    def _next(self, dead: Sequence[Task]) -> Iterator[str]:
        yield f"list --status dead --queue {self._queue}"
        if dead:
            name = self._short(dead[0].id)
            yield f"show {name}"
            yield f"retry {name}"
            yield self._work()
        yield f"show {self._short(self._plan.total)} --payload"
        yield "stats"

    def _work(self) -> str:
        return f"worker --app pgqueue.demo:app --queues {self._queue} --burst"

    def _short(self, task_id: UUID) -> str:
        """As much of an id as a person would type, where that is enough."""
        short = tail(task_id).lstrip("…")
        try:
            return short if self._client.find(short) == task_id else str(task_id)
        except PgqueueError:
            return str(task_id)

    def _command(self, words: str) -> str:
        return f"{_program()} {words}{self._request.place()}"


def _seconds(tasks: Sequence[Task]) -> float:
    starts = [task.started_at for task in tasks if task.started_at is not None]
    ends = [task.finished_at for task in tasks if task.finished_at is not None]
    return round((max(ends) - min(starts)).total_seconds(), 3) if starts and ends else 0.0


def _program() -> str:
    """This very program by its whole path: what is copied must work in another directory, without its environment."""
    if Path(sys.argv[0]).name == "__main__.py":
        return program()
    return shlex.quote(os.path.abspath(sys.argv[0]))
