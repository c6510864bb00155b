"""Patches: unified diffs under a few lines that say what they plant and who is expected to find it.

    Plants: a settle is not fenced by its token.
    Found by: tests/integration/test_settle.py::test_settle_with_a_wrong_token_is_refused

    --- a/pgqueue/statements/hold.py
    +++ b/pgqueue/statements/hold.py
    @@ … @@
    …

There may be several lines "Found by". A hunk is found by its text, which must stand in the file exactly once, not by
its line numbers: what moves a line does not make a patch fail, what changes it does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

__all__ = ["FOLDER", "Hunk", "Mutant", "Stale", "mutants", "plant"]

FOLDER = Path(__file__).resolve().parent


class Stale(Exception):
    """A patch that does not apply to the tree any more."""


@dataclasses.dataclass(frozen=True)
class Hunk:
    """A change of one place: in `file`, `before` becomes `after`."""

    file: str
    before: str
    after: str


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A planted bug. found_by: what pytest is given: files, or ids of tests."""

    name: str
    plants: str
    found_by: Sequence[str]
    hunks: Sequence[Hunk]


def mutants(names: Sequence[str] = ()) -> list[Mutant]:
    """All of them, or those whose names begin with one of `names`, in the order of their files."""
    found = [_read(path) for path in sorted(FOLDER.glob("*.patch"))]
    unknown = [name for name in names if not any(mutant.name.startswith(name) for mutant in found)]
    if unknown:
        raise LookupError(f"no mutant {unknown[0]!r}; there are: {', '.join(mutant.name for mutant in found)}")
    return [mutant for mutant in found if not names or mutant.name.startswith(tuple(names))]


def plant(mutant: Mutant, tree: Path) -> None:
    """Change the files of `tree`. Stale, and nothing changed, where a hunk's text is not there exactly once."""
    texts: dict[str, str] = {}
    for hunk in mutant.hunks:
        path = tree / hunk.file
        text = texts.get(hunk.file) or (path.read_text() if path.exists() else "")
        places = [found.start() for found in re.finditer(f"(?m)^{re.escape(hunk.before)}", text)]
        if len(places) != 1:
            raise Stale(
                f"{mutant.name}.patch: what it changes in {hunk.file} is there {len(places)} times instead of once:"
                f" write the patch anew, beginning with {hunk.before.splitlines()[0].strip()!r}"
            )
        texts[hunk.file] = text[: places[0]] + hunk.after + text[places[0] + len(hunk.before) :]
    for file, text in texts.items():
        (tree / file).write_text(text)


def _read(path: Path) -> Mutant:
    text = path.read_text()
    plants = re.search(r"^Plants: (.+)$", text, re.MULTILINE)
    found_by = re.findall(r"^Found by: (.+)$", text, re.MULTILINE)
    hunks = list(_hunks(text))
    if not plants or not found_by or not hunks:
        raise ValueError(f"{path.name} is no mutant: it needs a line Plants:, a line Found by:, and a unified diff")
    return Mutant(path.stem, plants[1], found_by, hunks)


def _hunks(text: str) -> Iterator[Hunk]:
    file = ""
    for part in re.split(r"(?m)^(?=@@ |--- )", text):
        head, _, body = part.partition("\n")
        if head.startswith("--- "):
            file = re.sub(r"^\+\+\+ b/", "", body.splitlines()[0])
        elif head.startswith("@@ "):
            # Editors and people take the blank off a blank line.
            lines = [" \n" if line == "\n" else line for line in body.splitlines(keepends=True)]
            before = "".join(line[1:] for line in lines if line[0] in " -")
            after = "".join(line[1:] for line in lines if line[0] in " +")
            yield Hunk(file, before, after)
