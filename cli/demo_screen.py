"""What the demo shows: how far it is, on stderr; what came of it, on stdout."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Final, Protocol

import click

from .common import wants_json
from .errors import tell

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from types import TracebackType

    from rich.console import Console
    from rich.progress import TaskID
    from rich.table import Table

    from .demo_report import Report

_EVERY: Final = 1.0
"""Seconds between two lines about progress where no terminal is."""
_SHOWN: Final = 20
"""Dead tasks that a terminal shows."""


class Teller(Protocol):
    """Says how far it is. A context manager, so that a terminal is left as it was found."""

    def __enter__(self) -> Teller: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...
    def say(self, text: str) -> None: ...
    def enqueued(self, count: int, total: int) -> None: ...
    def worked(self, counts: Mapping[str, int], total: int) -> None: ...


def teller() -> Teller:
    return OnTerminal() if sys.stderr.isatty() else Plain()


class Plain:
    """Lines, about one per second while something goes on."""

    def __init__(self) -> None:
        self._next = 0.0

    def __enter__(self) -> Plain:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def say(self, text: str) -> None:
        tell(text)

    def enqueued(self, count: int, total: int) -> None:
        self._now_and_then(f"enqueued {count:,} of {total:,}", last=count == total)

    def worked(self, counts: Mapping[str, int], total: int) -> None:
        self._now_and_then(counted(counts), last=_ended(counts) == total)

    def _now_and_then(self, text: str, *, last: bool) -> None:
        if last or time.monotonic() >= self._next:
            self._next = time.monotonic() + _EVERY
            tell(text)


class OnTerminal:
    """Two bars, with the counts as they stand."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        screen = Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._bars = Progress(
            TextColumn("{task.description}", style="bold"),
            BarColumn(24),
            TextColumn("{task.fields[text]}"),
            console=screen,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> OnTerminal:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def say(self, text: str) -> None:
        from rich.text import Text

        from pgqueue.sanitize import one_line

        self._bars.console.print(Text(one_line(text, 400), style="dim"), soft_wrap=True)

    def enqueued(self, count: int, total: int) -> None:
        self._move("enqueue", count, total, f"{count:,} of {total:,}")

    def worked(self, counts: Mapping[str, int], total: int) -> None:
        self._move("work", _ended(counts), total, counted(counts))

    def _move(self, name: str, count: int, total: int, text: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._bars.add_task(f"{name:<8}", total=total, text="")
        self._bars.update(self._tasks[name], completed=count, total=total, text=text)


def counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{counts[status]:,} {status}" for status in ("pending", "running", "completed", "dead"))


def _ended(counts: Mapping[str, int]) -> int:
    return counts["completed"] + counts["dead"] + counts["cancelled"]


# -- what came of it


def show(report: Report) -> None:
    """The report on stdout: one JSON object, a picture on a terminal, or the same as lines."""
    from .output import console, emit, on_terminal

    if wants_json():
        emit(report.record())
    elif on_terminal():
        draw(console(), report)
    else:
        for name, text in rows(report):
            click.echo(f"{name}\t{text}")
        for one in report.tree:
            words = (one.tail, one.name or "total", one.files, one.missing, one.bytes, one.lines)
            click.echo("\t".join(("sum", *map(str, words))))
        for dead in report.dead:
            click.echo(f"dead\t{dead.tail}\t{dead.file}\t{dead.error}")
        for line in report.commands:
            click.echo(f"  {line}")


def draw(screen: Console, report: Report) -> None:
    """The last screen. Also what docs/demo.svg is a picture of."""
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows(report):
        table.add_row(name, Text(text, style=_style(name, report)))
    screen.print()
    screen.print(table)
    if report.tree:
        screen.print()
        screen.print(_tree(report))
    if report.dead:
        screen.print()
        failures = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for header in ("DEAD", "FILE", "ERROR"):
            failures.add_column(header, no_wrap=header == "DEAD", overflow="fold")
        for dead in report.dead[:_SHOWN]:
            failures.add_row(dead.tail, Text(dead.file), Text(dead.error, style="red"))
        screen.print(failures)
        if len(report.dead) > _SHOWN:
            screen.print(f"… and {len(report.dead) - _SHOWN:,} more")
    screen.print()
    screen.print(Text("try next", style="bold"))
    for line in report.commands:
        screen.print(Text(f"  {line}", style="green"), soft_wrap=True)


def _tree(report: Report) -> Table:
    """The total, and under it the folders."""
    from rich.table import Table
    from rich.text import Text

    sums = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    sums.add_column("SUM", no_wrap=True)
    sums.add_column("OF", overflow="fold")
    for header in ("FILES", "MISSING", "BYTES", "LINES"):
        sums.add_column(header, justify="right", no_wrap=True)
    for one in report.tree:
        numbers = (one.files, one.missing, one.bytes, one.lines)
        style = "red" if one.missing else ""
        sums.add_row(
            one.tail, Text(f"└ {one.name}" if one.name else "total"), *(f"{n:,}" for n in numbers), style=style
        )
    more = report.summaries - len(report.tree)
    if more > 0:
        sums.add_row("", Text(f"└ and {more:,} more"))
    return sums


def _style(name: str, report: Report) -> str:
    return {"totals": "green" if report.matches else "red", "killed": "yellow"}.get(name, "")


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """What is worth saying, in the order in which it is asked."""
    yield "inventory", report.directory
    yield "files", f"{report.files:,} in {report.folders:,} folders"
    yield "size", f"{report.bytes:,} bytes, {report.lines:,} lines"
    yield (
        "tasks",
        f"{report.tasks:,} by {report.workers} workers in {report.seconds:.1f} s: {report.rate:,.0f} a second",
    )
    yield (
        "sums",
        f"{report.summaries:,}, each after the last of its files; the total misses {_many(report.missing, 'file')}",
    )
    again = f"{report.rerun:,} ran more than once" if report.rerun else "each ran once"
    yield "attempts", f"{report.attempts:,}: {again}"
    if report.killed is not None:
        yield "killed", report.killed
    yield "order", report.order
    if report.matches:
        yield "totals", f"the same as those of a direct walk; sha256 over all: {report.digest[:16]}…"
    else:
        yield "totals", f"NOT those of a direct walk: {len(report.differences):,} differences"
    yield (
        "dead",
        f"{_many(len(report.dead), 'task')}, {'the very ones that had to be' if report.matches else 'listed below'}",
    )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
