"""What the full journal costs: the same drain with the default journal and with the full one."""

from __future__ import annotations

import dataclasses
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pgqueue import Client
from pgqueue.database import Database

from .drain import Failed, Run, Settings, drain_once, spread
from .server import SCHEMA, Bench, bench

__all__ = ["MODES", "measure", "report"]

BASE, *_ = MODES = ("failures", "full")


def measure(url: str, settings: Settings, *, tell: Callable[[str], None]) -> dict[str, Any]:
    """All rounds, with the first of `settings.handlers`; in each the modes take turns at being first."""
    handler = settings.handlers[0]
    runs: list[tuple[str, Run]] = []
    with bench(url) as own:
        facts = own.facts()
        for number in range(settings.rounds):
            shift = number % len(MODES)
            for mode in MODES[shift:] + MODES[:shift]:
                with _journalling(own, mode):
                    run = drain_once(own, handler, number + 1, settings)
                events = own.one(f"select count(*) from {SCHEMA}.task_events")
                if events != (3 * settings.tasks if mode == "full" else 0):
                    raise Failed(f"{mode}: {events:,} events of {settings.tasks:,} tasks")
                tell(f"round {run.round}  {mode:8}  {run.rate:9,.0f} tasks/s, enqueued {run.enqueue_rate:9,.0f}/s")
                runs.append((mode, run))
    return {
        "benchmark": "journal",
        "settings": dataclasses.asdict(settings),
        "server": facts,
        "machine": {
            "cores": os.cpu_count(),
            "machine": platform.machine(),
            "python": platform.python_version(),
            "load": os.getloadavg()[0],
        },
        "summary": {mode: _summary(runs, mode) for mode in MODES},
        "runs": [{"mode": mode} | dataclasses.asdict(run) for mode, run in runs],
    }


@contextmanager
def _journalling(own: Bench, mode: str) -> Iterator[None]:
    """The journal in that mode; the default one afterwards."""
    with Client(Database(own.url, schema=SCHEMA)) as client:
        client.set_journal(mode)
        try:
            yield
        finally:
            client.set_journal(BASE)


_FIGURES = ("rate", "server_cpu", "enqueue_rate", "wal_bytes_per_task")


def _summary(runs: list[tuple[str, Run]], mode: str) -> dict[str, Any]:
    """Each figure, and its ratio to the run with the default journal of the same round."""
    mine, floors = ([run for of, run in runs if of == which] for which in (mode, BASE))
    figures: dict[str, Any] = {}
    for name in _FIGURES:
        pairs = [(getattr(one, name), getattr(floor, name)) for one, floor in zip(mine, floors, strict=True)]
        seen = all(None not in pair for pair in pairs)
        figures[name] = spread([value for value, _ in pairs]) if seen else None
        figures[f"{name}_of_base"] = spread([value / floor for value, floor in pairs]) if seen else None
    return figures


_COLUMNS = (
    ("tasks/s", "rate", "{:,.0f}"),
    ("server CPU", "server_cpu", "{:.1f}"),
    ("WAL B/task", "wal_bytes_per_task", "{:,.0f}"),
    ("enqueued/s", "enqueue_rate", "{:,.0f}"),
)


def report(result: dict[str, Any]) -> str:
    """The result for people."""
    settings, server = result["settings"], result["server"]
    cells = [["", *(cell for title, _, _ in _COLUMNS for cell in (title, "of failures"))]]
    for mode, figures in result["summary"].items():
        pairs = [(_middle(figures[name], form), _ratio(figures[f"{name}_of_base"])) for _, name, form in _COLUMNS]
        cells.append([mode, *(cell for pair in pairs for cell in pair)])
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
    head = f"""\
PostgreSQL {server["version"]}; {result["machine"]["cores"]} cores, load {result["machine"]["load"]:.1f}
{settings["tasks"]:,} no-op tasks, one worker process; median of {settings["rounds"]} rounds, CPU in ms per 1,000 tasks
"of failures": against the run with the default journal of the same round (lowest to highest)
"""
    table = ["   ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in cells]
    return "\n".join([head, *table])


def _middle(figure: dict[str, float] | None, form: str) -> str:
    return "-" if figure is None else form.format(figure["median"])


def _ratio(figure: dict[str, float] | None) -> str:
    return "-" if figure is None else "{median:.3f} ({min:.2f} to {max:.2f})".format(**figure)
