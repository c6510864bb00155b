"""docs/seeds.md: a row for every entry of both packages, and behind every row a test that there is."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

import pytest

from pgqueue.__main__ import command

from .pages import ROOT

PAGE = ROOT / "docs" / "seeds.md"

# As their documentation lists them, fields behind their type.
AGENTTASK = """
LeaseDuration
BackoffFor BootUpdateDedupeKey Cancel Claim Complete Enqueue EnsureIndexes Fail FindByDedupeKey FindPendingByAction Get
HasActiveAction InitAgentTaskService ListForAgent ReapExpiredLeases Release RenewLease ReplacePendingPayload
ReportProgress Retry SetGate ShutdownAgentTaskService StartDispatcher StopDispatcher WorkflowDedupeKey
Assignment EnqueueOpts EnqueueOpts.ID Registry GetRegistry Registry.Add
"""
TASK = """
DefaultMaxAttempts ErrNotFound ErrLeaseNotHeld ErrDuplicateID ErrInvalidTransition
CanTransitionTo StatusCountsMap StatusCountsView ID NewID
New New.Project New.Type New.Payload New.Deps New.Priority New.MaxAttempts New.NotBefore New.DedupKey New.Normalize
Status Pending Running Completed Dead Cancelled AllStatuses Status.Terminal Status.Valid
Task Task.ID Task.Project Task.Type Task.Payload Task.Deps Task.Priority Task.Attempts Task.MaxAttempts Task.NotBefore
Task.Status Task.LeaseOwner Task.LeaseExpires Task.LastError Task.DedupKey Task.CreatedAt Task.UpdatedAt
Task.CompletedAt
"""
ENTRIES = {"agenttask": AGENTTASK.split(), "task": TASK.split()}
ASSIGNMENT = ["TaskID", "Action", "Data", "LeaseToken", "Attempt", "MaxAttempts", "LeaseSeconds"]
NOT_YET = {
    *("InitAgentTaskService", "ShutdownAgentTaskService", "StartDispatcher", "StopDispatcher"),
    *("Assignment", "Registry", "GetRegistry", "Registry.Add"),
}
"""What belongs to the service for agents, which comes later."""

TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
WITHOUT_A_TEST = re.compile(r"(not yet|documented)\b")


class Row(NamedTuple):
    """A row of a table: under which heading, and its cells."""

    section: str
    cells: list[str]

    @property
    def name(self) -> str:
        return self.cells[0].strip("`")

    @property
    def tests(self) -> str:
        return self.cells[-1]


def rows() -> list[Row]:
    found = []
    section = ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            section = line.lstrip("# ")
        elif line.startswith("|") and not line.startswith("|---"):
            found.append(
                Row(section, [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
            )
    return [row for row in found if row.tests != "tests"]


@lru_cache
def names_in(path: str) -> frozenset[str]:
    file = ROOT / path
    text = file.read_text() if file.is_file() else ""
    return frozenset(re.findall(r"^(?:async )?def (test_\w+)", text, re.MULTILINE))


@pytest.mark.parametrize("package", ENTRIES)
def test_every_entry_has_one_row_in_the_order_of_its_package(package: str) -> None:
    assert [row.name for row in rows() if row.section == package] == ENTRIES[package]


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE.read_text())

    assert len(named) > 200
    assert [f"{path}::{test}" for path, test in named if test not in names_in(path)] == []


def test_name_of_no_test_is_noticed() -> None:
    assert "test_name_of_no_test_is_noticed" in names_in("tests/docs/test_seeds.py")
    assert "test_nobody_wrote" not in names_in("tests/docs/test_seeds.py")
    assert names_in("tests/docs/nobody_wrote.py") == frozenset()


@pytest.mark.parametrize("section", sorted({row.section for row in rows()}))
def test_no_row_is_without_a_test_or_a_word_about_it(section: str) -> None:
    here = [row for row in rows() if row.section == section]

    assert here
    assert [row.cells[0] for row in here if not TEST.search(row.tests) and not WITHOUT_A_TEST.match(row.tests)] == []
    # Nothing is said to be tested that the pattern above does not read.
    assert [row.cells[0] for row in here if "tests/" in TEST.sub("", row.tests)] == []


def test_only_what_is_the_agents_is_not_yet_there() -> None:
    unfinished = {row.name for row in rows() if row.section in ENTRIES and row.tests.startswith("not yet")}

    assert unfinished == NOT_YET


def test_every_field_of_an_assignment_is_named() -> None:
    [row] = [row for row in rows() if row.name == "Assignment"]

    assert [field for field in ASSIGNMENT if f"`{field}`" not in row.cells[2]] == []


def test_rows_of_a_table_have_its_columns() -> None:
    widths: dict[str, set[int]] = {}
    for row in rows():
        widths.setdefault(row.section, set()).add(len(row.cells))

    assert [section for section, found in widths.items() if len(found) > 1] == []


def test_every_command_that_is_named_exists() -> None:
    group = command()
    named = set(re.findall(r"`pgqueue (\w+)", PAGE.read_text()))

    assert len(named) > 8
    assert named <= set(getattr(group, "table", ()))


def test_page_links_to_nothing_outside() -> None:
    """Their pages are theirs: they are called by name."""
    assert "://" not in PAGE.read_text()
