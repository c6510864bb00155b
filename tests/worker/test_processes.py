"""Handlers in processes: what they find there, how they are stopped, and what is left of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, Client, ConfigError, Status, Task
from pgqueue.database import Database

from ..support import Sql, eventually
from . import process_app
from .conftest import InThread, became

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def app(database_url: str) -> Iterator[App]:
    """The module's App over this test's database."""
    app = process_app.app
    app.database = Database(database_url, schema="pgqueue")
    app._client = None
    yield app
    app.client.close()


def result_of(task: Task) -> Any:
    assert task.status is Status.COMPLETED, task.last_error
    return json.loads(task.result_text or "null")


def run_all(app: App, *ids: Any) -> list[Any]:
    return [result_of(became(app, one.id, Status.COMPLETED)) for one in ids]


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def open_sockets() -> set[str]:
    return {os.readlink(one.path) for one in os.scandir("/proc/self/fd") if os.path.lexists(one.path)}


pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


def test_process_is_a_clean_one_of_its_own_and_is_used_again(app: App, start: Any) -> None:
    start(concurrency=1)
    first, second, third = run_all(
        app, process_app.whoami.enqueue(), process_app.whoami.enqueue(), process_app.awhoami.enqueue()
    )
    assert first["pid"] == second["pid"] == third["pid"] != os.getpid()
    assert first["parent"] == os.getpid()
    assert first["session"] == first["group"] == first["pid"]
    assert first["main"]
    assert first["directory"] == os.getcwd()
    assert (first["path"], first["arguments"]) == (sys.path, sys.argv)
    assert first["signals"] == {"SIGTERM": True, "SIGINT": True, "blocked": 0}
    sockets = {name for name in first["descriptors"].values() if name.startswith("socket:")}
    assert sockets
    assert not sockets & open_sockets(), "no connection of the worker's is open there"
    assert first["state"] == third["state"] == {"opened": 1, "pid": first["pid"]}, "its own lifespan, entered once"
    for one, action in ((first, "whoami"), (third, "awhoami")):
        assert (one["log"]["action"], one["log"]["attempt"]) == (action, "1")


def test_memory_limit_holds_for_its_own_action_only(app: App, start: Any) -> None:
    start(concurrency=1)
    before, limit, after = run_all(
        app, process_app.whoami.enqueue(), process_app.limited.enqueue(), process_app.whoami.enqueue()
    )
    assert limit == 300 * 1024 * 1024
    assert before["memory"] == after["memory"] != limit
    assert before["pid"] == after["pid"]


def test_process_is_replaced_after_so_many_tasks_and_leaves_its_lifespan(
    app: App, start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = tmp_path / "left"
    monkeypatch.setenv("LEFT", str(left))
    worker = start(concurrency=1, process_tasks=2)
    pids = [one["pid"] for one in run_all(app, *(process_app.whoami.enqueue() for _ in range(5)))]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4]
    worker.stop()
    assert worker.join() == 0
    assert {int(line) for line in left.read_text().split()} == {pids[0], pids[2], pids[4], os.getpid()}


def test_progress_and_completion_in_the_handlers_transaction_travel(
    app: App, start: Any, sql: Sql, caplog: pytest.LogCaptureFixture
) -> None:
    start()
    made = process_app.reports.enqueue()
    kept, forgotten = process_app.completes.enqueue(commit=True), process_app.completes.enqueue(commit=False)
    became(app, made.id, Status.COMPLETED)
    assert result_of(became(app, kept.id, Status.COMPLETED)) == "by hand"
    assert "never committed" in str(became(app, forgotten.id, Status.DEAD).last_error)
    assert sql("select id from effects") == [(kept.id,)]
    assert str(kept.id) not in caplog.text, "its completion was refused as it should be, and that is no news"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("half_a_message", "timed out after 500ms; it did not stop, and its process was killed"),
        ("garbage", "its process died: killed by the worker, as it said what is no message"),
        # By itself; a busy machine may take so long over it that it is killed first.
        ("closes_all", ("its process died: exited with 1", "its process died: killed by the worker, as it closed its")),
    ],
)
def test_process_that_says_nothing_of_use_hangs_nobody(app: App, start: Any, name: str, error: Any) -> None:
    start(cancel_grace=0.1)
    broken, other = app.action(name).enqueue(), process_app.whoami.enqueue()
    assert str(became(app, broken.id, Status.DEAD).last_error).startswith(error)
    run_all(app, other)


def family_of(app: App, task_id: Any) -> list[int]:
    """The numbers of the handler's process, its child and its grandchild, once they are there."""
    pids = [int(pid) for pid in eventually(lambda: app.client.get(task_id).message or "").split()]
    assert len(pids) == 3
    assert all(map(is_alive, pids))
    return pids


def test_cancel_that_is_ignored_kills_the_whole_family(app: App, start: Any) -> None:
    start(cancel_grace=0.1, lease=0.6)
    made = process_app.family.enqueue()
    pids = family_of(app, made.id)
    app.client.cancel(made.id)
    became(app, made.id, Status.CANCELLED)
    eventually(lambda: not any(map(is_alive, pids)))


def test_second_signal_kills_at_once_and_gives_the_task_back(app: App, start: Any) -> None:
    worker = start(cancel_grace=3600, drain=3600)
    made = process_app.family.enqueue()
    pids = family_of(app, made.id)
    worker.stop()
    worker.stop()
    assert worker.join() == 0
    task = app.client.get(made.id)
    assert (task.status, task.attempts, task.last_error) == (Status.PENDING, 0, None)
    eventually(lambda: not any(map(is_alive, pids)))


def test_lost_lease_kills_and_says_nothing(app: App, start: Any) -> None:
    start(cancel_grace=0.1, lease=0.6)
    made = process_app.family.enqueue()
    pids = family_of(app, made.id)
    with app.database.begin() as connection:
        app.client.on(connection).evict(made.id)
        app.client.on(connection).claim_batch(limit=1, owner="somebody-else", lease=3600)
    eventually(lambda: not any(map(is_alive, pids)))
    task = app.client.get(made.id)
    assert (task.status, task.lease_owner, task.last_error) == (Status.RUNNING, "somebody-else", None)


def test_killed_worker_takes_its_processes_with_it(app: App, database_url: str) -> None:
    made = process_app.family.enqueue()
    command = [sys.executable, "-m", "pgqueue", "worker", "--app", "tests.worker.process_app:app"]
    with subprocess.Popen([*command, "--database-url", database_url], cwd=ROOT) as worker:
        pid = family_of(app, made.id)[0]
        os.kill(worker.pid, signal.SIGKILL)
        worker.wait()
    eventually(lambda: not is_alive(pid))
    os.killpg(pid, signal.SIGKILL)


# -- finding the app


def test_import_that_fails_in_the_process_fails_a_task_and_is_tried_again_later(
    app: App, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "1")
    start(concurrency=5)
    made = process_app.whoami.using(max_attempts=1).enqueue()
    error = became(app, made.id, Status.DEAD).last_error or ""
    assert error.startswith("its process could not import the app: ImportError: no such library on this machine\n")
    assert "process_app.py" in error
    monkeypatch.delenv("BROKEN")
    run_all(app, process_app.whoami.enqueue(), process_app.whoami.enqueue())


def run_script(folder: Path, *arguments: str, text: str) -> str:
    """What a script prints, which finds the package on a path that its processes have to be told of."""
    script = folder / "shop.py"
    script.write_text(f"import sys\nsys.path.append({str(ROOT)!r})\n{textwrap.dedent(text)}")
    command = [sys.executable, str(script), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=45, check=True, cwd=folder)
    return done.stdout


def test_handlers_of_a_script_run_in_processes_that_make_its_main_again(database_url: str, tmp_path: Path) -> None:
    printed = run_script(
        tmp_path,
        database_url,
        text="""
            import os
            from pgqueue import App

            app = App(sys.argv[1])

            @app.task(isolation="process")
            def work(n: int) -> list[object]:
                return [n, __name__, os.getpid()]

            if __name__ == "__main__":
                made = work.enqueue(n=7)
                app.run_worker(burst=True)
                print(os.getpid(), app.client.get(made.id).result_text)
            """,
    )
    pid, _, result = printed.partition(" ")
    n, name, process = json.loads(result)
    assert (n, name) == (7, "__mp_main__")
    assert process != int(pid)


def test_script_without_its_guard_fails_the_task_and_says_so(client: Client, database_url: str, tmp_path: Path) -> None:
    made = client.enqueue("work", {}, max_attempts=1)
    printed = run_script(
        tmp_path,
        database_url,
        text="""
            from pgqueue import App

            app = App(sys.argv[1])

            @app.task(isolation="process", max_attempts=1)
            def work() -> None: ...

            app.run_worker(burst=True)
            """,
    )
    assert printed == ""
    task = client.get(made.id)
    assert task.status is Status.DEAD
    error = task.last_error or ""
    assert "its process could not import the app: pgqueue.errors.ConfigError: a worker was to start" in error
    assert 'if __name__ == "__main__":' in error


def test_app_that_no_module_names_is_refused_at_the_start(database_url: str) -> None:
    app = App(database_url)

    @app.task(isolation="process")
    def work() -> None: ...

    with pytest.raises(ConfigError, match="declare both at the top level") as refused:
        InThread(app, {}).join()
    assert refused.value.field == "isolation"


@pytest.mark.parametrize("isolation", ["threads", "fork", 1, "thread"])
def test_isolation_that_there_is_not_is_refused(isolation: Any) -> None:
    app = App("postgresql://nowhere/")

    async def work() -> None: ...

    with pytest.raises(ConfigError, match="isolation cannot be") as refused:
        app.task(isolation=isolation)(work)
    assert refused.value.field == "isolation"


@pytest.mark.parametrize("memory", [0, 1024, "1G", True])
def test_memory_limit_that_no_interpreter_fits_in_is_refused(memory: Any) -> None:
    app = App("postgresql://nowhere/")

    def work() -> None: ...

    with pytest.raises(ConfigError) as refused:
        app.task(isolation="process", memory=memory)(work)
    assert refused.value.field == "memory"
