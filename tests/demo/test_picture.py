"""docs/demo.svg, the picture of the demo in the README, shows what the demo shows.

To take it anew, from a run over the standard library (as an ordinary user: root can read the unreadable file):

    PGQUEUE_PICTURE=docs/demo.svg python -m pytest tests/demo/test_picture.py
"""

from __future__ import annotations

import html
import io
import itertools
import os
import re
import subprocess
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pgqueue.__main__ import command

from .conftest import PROGRAM, ROOT, Ran

WIDTH = 116
PICTURE = ROOT / "docs" / "demo.svg"


def drawn(ran: Ran) -> str:
    """The last screen of a run, as SVG. Of this machine it shows no place."""
    home = getattr(command().callback, "__module__", "")
    report, screen = import_module(f"{home}.demo_report"), import_module(f"{home}.demo_screen")
    known = ran.record
    fields = {field: known[field] for field in report.Report.__dataclass_fields__}
    fields["dead"] = [report.Dead(**dead) for dead in known["dead"]]
    fields["tree"] = [report.Branch(**one) for one in known["tree"]]
    fields["kill"] = report.Kill(**known["kill"])
    fields["directory"] = f"…/{'/'.join(known['directory'].split('/')[-2:])}"
    fields["commands"] = [re.sub(r"^.*? (?=list|show|retry|worker|stats)", "pgqueue ", c) for c in known["commands"]]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print("$ pgqueue demo --kill-one")
    screen.draw(console, report.Report(**fields))
    svg: str = console.export_svg(title="pgqueue demo", unique_id="demo")
    # No font from elsewhere: whoever looks at the page would tell a stranger so.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def shape(svg: str) -> list[str]:
    """The lines of the screen, each up to the first thing that differs from run to run."""
    pieces = re.findall(r'<text class="demo-r\d+" x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg)
    lines = []
    for _, pieces_of_line in itertools.groupby(pieces, key=lambda piece: piece[1]):
        same = list(pieces_of_line)
        line = html.unescape(" ".join(text for *_, text in same)).replace("\xa0", " ").rstrip()
        line = re.sub(r"└.*", "└", re.sub(r"^…\w{6} *", "", line))
        folded = float(same[0][0]) > 0
        if not folded and "scratch/unreadable" not in line:
            start = re.split(r"demo-|[\d/…]|(?<=show|etry) ", line)[0]
            lines.append(" ".join(start.split()))
    return lines


@pytest.mark.heavy
def test_picture_shows_what_the_demo_shows(killed: tuple[Path, Ran], environment: Mapping[str, str]) -> None:
    target = os.environ.get("PGQUEUE_PICTURE")
    if target:
        done: Any = subprocess.run(
            [*PROGRAM, "demo", "--kill-one", "--json"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        Path(target).write_text(drawn(Ran(done.returncode, done.stdout, done.stderr)))
    picture = Path(target) if target else PICTURE

    seen = shape(picture.read_text())

    assert seen == shape(drawn(killed[1])), "the demo's last screen has changed: take its picture anew"
    assert seen[0] == "$ pgqueue demo --kill-one"
    assert {
        "inventory",
        "sums",
        "total",
        "└",
        "killed worker-",
        "pgqueue list --status dead --queue",
        "pgqueue retry",
    } <= set(seen)
