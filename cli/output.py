"""Data on stdout: a table on a terminal; the same columns tab-separated elsewhere; JSON when asked for.

Whatever was written by a task or a worker passes `one_line` first: a name or an error must not move the cursor.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

import click

from pgqueue.sanitize import one_line

from .common import wants_json

if TYPE_CHECKING:
    from rich.console import Console

Row = TypeVar("Row")

WHOLE: Final = 1 << 30
"""Columns that cut nothing off."""

_GAP: Final = 2

STYLES: Final[Mapping[str, str]] = {
    "pending": "yellow",
    "running": "cyan",
    "completed": "green",
    "dead": "red",
    "cancelled": "bright_black",
}


class Column(NamedTuple, Generic[Row]):
    """One column of a list.

    least: how many columns of a terminal it needs to be of use. leave: on a narrow terminal the column with the
    highest number is left out first; 0 stays. short: what a terminal shows instead of `text`.
    """

    header: str
    text: Callable[[Row], object]
    least: int
    leave: int = 0
    short: Callable[[Row], object] | None = None


def on_terminal() -> bool:
    return sys.stdout.isatty()


def listing(rows: Iterable[Row], columns: Sequence[Column[Row]], record: Callable[[Row], Mapping[str, Any]]) -> None:
    """Print a list; `record` gives a row's JSON object."""
    if wants_json():
        for row in rows:
            emit(record(row))
    elif on_terminal():
        _table(list(rows), columns)
    else:
        for row in rows:
            click.echo("\t".join(cell(column.text(row)) for column in columns))


def one(record: Mapping[str, Any]) -> None:
    """Print one thing: its JSON object, or name and value per line."""
    if wants_json():
        emit(record)
        return
    width = max(len(name) for name in record) if on_terminal() else 0
    for name, value in record.items():
        click.echo(f"{name:<{width}}  {cell(value)}" if on_terminal() else f"{name}\t{cell(value)}")


def emit(record: Mapping[str, Any]) -> None:
    """Print a JSON object on a line of its own, in ASCII: no terminal can be moved by it."""
    click.echo(json.dumps(record, default=_plain, separators=(",", ":")))


def cell(value: object, width: int = WHOLE) -> str:
    """A value as one cell: nothing for None, instants in ISO form, text on one line."""
    if value is None:
        return ""
    return one_line(value if isinstance(value, str) else _words(value), width)


def console() -> Console:
    """A terminal that obeys its width and NO_COLOR, and takes no text for markup."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False)


def _table(rows: Sequence[Row], columns: Sequence[Column[Row]]) -> None:
    from rich.cells import cell_len
    from rich.table import Table
    from rich.text import Text

    screen = console()
    shown = _that_fit(columns, screen.width)
    lines = [[cell((column.short or column.text)(row), screen.width) for column in shown] for row in rows]
    natural = [max([len(column.header), *(cell_len(texts[i]) for texts in lines)]) for i, column in enumerate(shown)]
    widths = _widths(natural, [column.least for column in shown], screen.width)
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for column, width in zip(shown, widths, strict=True):
        table.add_column(column.header.upper(), no_wrap=True, overflow="ellipsis", width=width)
    for texts in lines:
        table.add_row(*(Text(text, style=STYLES.get(text, "")) for text in texts))
    screen.print(table)


def _that_fit(columns: Sequence[Column[Row]], width: int) -> list[Column[Row]]:
    shown = list(columns)
    while sum(column.least + _GAP for column in shown) - _GAP > width:
        last = max(shown, key=lambda column: column.leave)
        if not last.leave:
            break
        shown.remove(last)
    return shown


def _widths(natural: Sequence[int], least: Sequence[int], width: int) -> list[int]:
    """What each column gets: what it wants, taken from the widest first until all fit. (rich takes from all alike.)"""
    widths = list(natural)
    while sum(widths) + _GAP * (len(widths) - 1) > width:
        spare = [(size - floor, i) for i, (size, floor) in enumerate(zip(widths, least, strict=True)) if size > floor]
        if not spare:
            break
        widths[max(spare, key=lambda found: (widths[found[1]], found[0]))[1]] -= 1
    return widths


def _plain(value: object) -> object:
    from datetime import datetime, timedelta

    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID():
            return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _words(value: object) -> str:
    from datetime import datetime, timedelta

    from pgqueue.keys import format_duration

    match value:
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat()
        case timedelta():
            return format_duration(value)
    return str(value)
