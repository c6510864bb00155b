"""Which pages there are, and the fenced blocks in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: where its text starts, and the text."""

    page: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{name(self.page)}:{self.line}"


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str) -> list[Block]:
    """The page's blocks of that language, in their order."""
    text = page.read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 2, found[2])
        for found in _FENCE.finditer(text)
        if found[1] == language
    ]


def prose(page: Path) -> str:
    """The page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def all_blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        yield from blocks(page, language)
