"""How fast one worker process drains no-op tasks, beside the floor of the same run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .server import SCHEMA, Bench, bench, cpu_of
from .worker import HANDLERS, app_over

__all__ = ["Failed", "Run", "Settings", "drain_once", "measure", "report", "spread"]

FLOOR = "floor"
_ROOT = Path(__file__).resolve().parent.parent
_LOOK_EVERY = 0.005
_GIVE_UP = 300.0


class Failed(Exception):
    """The work was not done, or not as it should be: there is no figure."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What to measure. `batch` and `concurrency` are the worker's; `floor_batch` is the floor's."""

    tasks: int = 50_000
    rounds: int = 3
    handlers: Sequence[str] = HANDLERS
    batch: int = 200
    concurrency: int = 1_000
    floor_batch: int = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One drain. CPU in milliseconds per 1,000 tasks, None where it cannot be seen."""

    round: int
    who: str
    seconds: float
    rate: float
    enqueue_rate: float
    worker_cpu: float | None
    server_cpu: float | None
    wal_bytes_per_task: float
    commits_per_task: float


def measure(url: str, settings: Settings, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """All rounds; in each the floor and the worker take turns at being first."""
    contestants = (FLOOR, *settings.handlers)
    runs: list[Run] = []
    with bench(url) as own:
        facts = own.facts()
        for number in range(settings.rounds):
            shift = number % len(contestants)
            for who in contestants[shift:] + contestants[:shift]:
                run = drain_once(own, who, number + 1, settings)
                tell(f"round {run.round}  {run.who:5}  {run.rate:9,.0f} tasks/s")
                runs.append(run)
    return {
        "benchmark": "drain",
        "settings": dataclasses.asdict(settings),
        "server": facts,
        "machine": {"cores": os.cpu_count(), "machine": platform.machine(), "python": platform.python_version()},
        "summary": {who: _summary(runs, who) for who in contestants},
        "runs": [dataclasses.asdict(run) for run in runs],
    }


def drain_once(own: Bench, who: str, number: int, settings: Settings) -> Run:
    """Load, and let one process drain it: the floor, or a worker with handlers of that kind."""
    enqueue_rate, last = _load(own, who, settings.tasks)
    own.settle_down()
    if who == FLOOR:
        command = ["benchmarks.floor", own.url, SCHEMA, str(settings.floor_batch)]
    else:
        command = ["benchmarks.worker", own.url, SCHEMA, str(settings.concurrency), str(settings.batch)]
    used_before = _children_cpu()
    with _started(command) as process:
        with own.held_back():
            _until(own.waiting, process)
            used_by_start = cpu_of(process.pid)
            before = own.spent()
            began = time.perf_counter()
        ended = _finished(own, last, process)
        process.wait()
    # Only now: a backend tells its last figures when it ends.
    after = own.spent()
    completed = own.one(f"select count(*) from {SCHEMA}.tasks where status = 'completed' and attempts = 1")
    if completed != settings.tasks:
        raise Failed(f"{who}: {completed:,} of {settings.tasks:,} tasks were completed at their first attempt")

    def per_1000(seconds: float | None, less: float | None) -> float | None:
        return None if seconds is None or less is None else 1e6 * (seconds - less) / settings.tasks

    return Run(
        round=number,
        who=who,
        seconds=ended - began,
        rate=settings.tasks / (ended - began),
        enqueue_rate=enqueue_rate,
        worker_cpu=per_1000(_children_cpu() - used_before, used_by_start),
        server_cpu=per_1000(after.cpu_seconds, before.cpu_seconds),
        wal_bytes_per_task=(after.wal_bytes - before.wal_bytes) / settings.tasks,
        commits_per_task=(after.commits - before.commits) / settings.tasks,
    )


@contextlib.contextmanager
def _started(command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-m", *command], cwd=_ROOT)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _load(own: Bench, who: str, tasks: int) -> tuple[float, Any]:
    """Enqueue through the library; returns the rate and the id of the last task in the line."""
    own.empty()
    app = app_over(own.url, SCHEMA)
    action = app.action(HANDLERS[0] if who == FLOOR else who)
    began = time.perf_counter()
    with app.client as client:
        enqueued = client.enqueue_many(action.new(i=i) for i in range(tasks))
    return tasks / (time.perf_counter() - began), enqueued[-1].id


def _finished(own: Bench, last: Any, process: subprocess.Popen[bytes]) -> float:
    """When nothing was unfinished any more. Until the last in the line has ended, only that one is looked at."""

    def ended() -> bool:
        return bool(own.one(f"select finished_at is not null from {SCHEMA}.tasks where id = %s", last))

    looked_at = 0.0

    def all_ended() -> bool:
        nonlocal looked_at
        looked_at = time.perf_counter()
        return bool(own.one(f"select count(*) from {SCHEMA}.tasks where active") == 0)

    _until(ended, process)
    _until(all_ended, process)
    return looked_at


def _until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    give_up = time.monotonic() + _GIVE_UP
    while not true():
        if process.poll() or time.monotonic() > give_up:
            raise Failed(f"the work was not done within {_GIVE_UP:.0f} s, or its process failed: {process.args!r}")
        time.sleep(_LOOK_EVERY)


def _children_cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _summary(runs: Sequence[Run], who: str) -> dict[str, Any]:
    mine = [run for run in runs if run.who == who]
    floors = [run for run in runs if run.who == FLOOR]
    ratios = [one.rate / floor.rate for one, floor in zip(mine, floors, strict=True)]
    figures: dict[str, Any] = {"rate": spread([run.rate for run in mine])}
    if who != FLOOR:
        figures["ratio_to_floor"] = spread(ratios)
    for name in ("enqueue_rate", "worker_cpu", "server_cpu", "wal_bytes_per_task", "commits_per_task"):
        values = [getattr(run, name) for run in mine]
        figures[name] = None if None in values else spread(values)
    return figures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    server, machine, settings = result["server"], result["machine"], result["settings"]
    named = ", ".join(f"{name} {value}" for name, value in server["settings"].items())
    worker = f"concurrency {settings['concurrency']:,}, batch {settings['batch']:,}"
    head = f"""\
PostgreSQL {server["version"]}: {named}
{machine["cores"]} cores ({machine["machine"]}), Python {machine["python"]}
{settings["tasks"]:,} no-op tasks, one worker process ({worker}); the floor: batch {settings["floor_batch"]}
median (lowest to highest) of {settings["rounds"]} rounds; CPU in ms per 1,000 tasks; CPU and WAL are the whole server's
"""
    cells = [["", *(title for title, _, _ in _COLUMNS)]]
    for who, figures in result["summary"].items():
        cells.append([who, *(_cell(figures.get(name), form) for _, name, form in _COLUMNS)])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    table = ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([head, *table])


_COLUMNS = (
    ("tasks/s", "rate", "{:,.0f}"),
    ("of floor", "ratio_to_floor", "{:.2f}"),
    ("worker CPU", "worker_cpu", "{:.1f}"),
    ("server CPU", "server_cpu", "{:.1f}"),
    ("WAL B/task", "wal_bytes_per_task", "{:,.0f}"),
    ("commits/task", "commits_per_task", "{:.4f}"),
    ("enqueued/s", "enqueue_rate", "{:,.0f}"),
)


def _cell(figure: dict[str, float] | None, form: str) -> str:
    if figure is None:
        return "-"
    middle, low, high = (form.format(figure[name]) for name in ("median", "min", "max"))
    return middle if low == high else f"{middle} ({low} to {high})"
