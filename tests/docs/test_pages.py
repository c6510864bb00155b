"""Tables, diagrams, links and words of the pages."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import pgqueue
from pgqueue.config import DEFAULTS
from pgqueue.lifecycle import MOVES, diagram

from . import generate
from .pages import PAGES, ROOT, blocks, name, prose

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=name)


@EVERY_PAGE
def test_generated_regions_equal_the_code(page: Path) -> None:
    text = page.read_text()

    assert generate.rewritten(text) == text, "run `python -m tests.docs.generate`"


def test_every_generated_region_is_on_a_page() -> None:
    named = [found[1] for page in PAGES for found in generate.REGION.finditer(page.read_text())]

    assert sorted(named) == sorted(generate.REGIONS)


def test_lifecycle_page_holds_the_diagram_and_every_move() -> None:
    page = ROOT / "docs" / "lifecycle.md"
    rows = re.findall(r"^\| `?(.*?)`? \| (.*) \| (.*?) ?\| (.*) \|$", page.read_text(), re.MULTILINE)
    moves = [(str(m.event), str(m.source), "" if m.guard == "always" else str(m.guard), str(m.target)) for m in MOVES]

    assert [block.text for block in blocks(page, "mermaid")] == [diagram()]
    assert rows[2:] == moves


def test_every_setting_is_documented() -> None:
    assert {f.name for f in dataclasses.fields(DEFAULTS)} == set(generate._DEFAULTS)
    assert set(generate.limits()) == set(generate._LIMITS)


INTERNAL = {"PGQUEUE_DEMO_PARENT"}
"""Between processes of ours; nobody sets them."""


def test_every_variable_is_documented() -> None:
    sources = [path.read_text() for folder in ("pgqueue", "cli", "alembic") for path in (ROOT / folder).rglob("*.py")]
    used = {found for text in sources for found in re.findall(r"\bPGQUEUE_[A-Z_]*[A-Z]\b", text)}
    documented = set(re.findall(r"`(PGQUEUE_[A-Z_]*[A-Z])`", (ROOT / "docs" / "configuration.md").read_text()))
    of_workers = {variable for variable in documented if variable.startswith("PGQUEUE_WORKER_")}

    assert len(of_workers) > 5
    assert {v for v in used - INTERNAL if not v.startswith("PGQUEUE_WORKER")} == documented - of_workers


def test_every_export_is_on_a_page() -> None:
    text = "".join(page.read_text() for page in PAGES)

    assert [found for found in pgqueue.__all__ if found != "__version__" and not re.search(rf"\b{found}\b", text)] == []


# -- links


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them."""
    heads = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@EVERY_PAGE
def test_links_lead_somewhere(page: Path) -> None:
    dead = []
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            dead.append(link)

    assert dead == []


def test_every_page_of_docs_is_linked() -> None:
    linked = {(page.parent / link.partition("#")[0]).resolve() for page in PAGES for link in LINK.findall(prose(page))}

    assert [name(page) for page in PAGES if page.parent != ROOT and page not in linked] == []


# -- words

# Put together here, or this file would hold them.
NEVER = [
    " ".join(words)
    for words in (
        ("pip", "install", "pgqueue"),
        ("exactly-once", "delivery"),
        ("exactly", "once", "delivery"),
    )
]


@EVERY_PAGE
@pytest.mark.parametrize("words", NEVER)
def test_page_never_says(page: Path, words: str) -> None:
    assert words not in " ".join(page.read_text().lower().split())


def test_promise_stands_where_people_look() -> None:
    promise = "*at-least-once execution, exactly-once state transitions, for as long as PostgreSQL keeps its commits.*"
    for page in (ROOT / "README.md", ROOT / "docs" / "delivery.md"):
        assert promise.lower() in page.read_text().lower()


# -- decisions

DECISIONS = sorted(path for path in (ROOT / "docs" / "decisions").glob("*.md") if path.name != "README.md")


def test_decisions_are_numbered_without_gaps_and_listed_in_order() -> None:
    index = LINK.findall((ROOT / "docs" / "decisions" / "README.md").read_text())
    numbers = [int(path.name[:4]) for path in DECISIONS]

    assert numbers == list(range(len(numbers)))
    assert [link for link in index if link.startswith("0")] == [path.name for path in DECISIONS]


@pytest.mark.parametrize("page", DECISIONS, ids=name)
def test_decision_has_the_parts_of_the_template(page: Path) -> None:
    text = page.read_text()

    assert re.match(rf"# {int(page.name[:4])}\. \S", text)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Question", "Decision", "Also considered", "Consequences"]
