"""What the summaries add up, the plan of their tasks, and the comparison that must find every difference."""

from __future__ import annotations

import dataclasses
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pgqueue import demo
from pgqueue.__main__ import command
from pgqueue.demo_sums import Sum, compare, early, folder_of, groups, summed
from pgqueue.lifecycle import Status
from pgqueue.task import Parent, Task

from .test_files import NOON, ONE, SECOND, TWO, task

FILE, OTHER = (Sum.of(dataclasses.asdict(measure)) for measure in (ONE, TWO))
EXPECTED = demo.by_folder({"/d/one": ONE, "/d/gone": "no such file", "/d/e/two": TWO})


def parent(number: int, status: Status | None, result: object = None) -> Parent:
    return Parent(UUID(int=number), "inventory", status, json.dumps(result), None)


# -- adding up


def test_sum_counts_what_is_missing_through_all_levels() -> None:
    folder = Sum.over([FILE, None, OTHER])
    whole = Sum.over([folder, Sum.over([None])])

    assert (folder.files, folder.missing, folder.bytes, folder.lines) == (2, 1, 12, 3)
    assert (whole.files, whole.missing, whole.bytes, whole.lines) == (2, 2, 12, 3)


def test_sum_depends_on_every_digest_and_its_place() -> None:
    sums = [Sum.over(parts) for parts in ([FILE, OTHER], [OTHER, FILE], [FILE], [FILE, None], [None, FILE])]

    assert len({one.sha256 for one in sums}) == len(sums)


def test_sum_of_parents_takes_files_and_summaries_and_misses_the_rest() -> None:
    folder = Sum.over([FILE, None])
    found = summed(
        [
            parent(1, Status.COMPLETED, dataclasses.asdict(ONE)),
            parent(2, Status.DEAD),
            parent(3, Status.CANCELLED),
            parent(4, None),
            parent(5, Status.COMPLETED, dataclasses.asdict(folder)),
        ]
    )

    assert found == Sum.over([FILE, None, None, None, folder])
    assert (found.files, found.missing) == (2, 4)


def test_sum_of_more_than_a_task_may_depend_on_goes_by_groups() -> None:
    parts = [FILE, None, OTHER, FILE, OTHER]

    found = Sum.over(parts, limit=2)

    assert found == Sum.over([Sum.over([Sum.over(parts[:2]), Sum.over(parts[2:4])]), Sum.over([Sum.over(parts[4:])])])
    assert [list(group) for group in groups(parts, 2)] == [parts[:2], parts[2:4], parts[4:]]


# -- the plan


def plan(tree: Path, **options: Any) -> Any:
    module = import_module(f"{getattr(command().callback, '__module__', '')}.demo_plan")
    made = module.Plan("a1b2c3", "demo-a1b2c3", **options)
    made.add(list(demo.folders(os.fsencode(tree))), os.fsencode(tree))
    made.close()
    return made


def test_plan_has_a_summary_per_folder_and_a_total_after_them(tree: Path) -> None:
    made = plan(tree)

    payloads = {new.options["id"]: json.loads(new.payload) for new in made.tasks}
    folders = {
        payloads[child]["folder"]: [payloads[file]["path"] for file in above]
        for child, above in made.parents.items()
        if child != made.total
    }
    assert folders == {
        str(tree): [str(tree / "empty"), str(tree / "one.txt")],
        str(tree / "docs"): [str(tree / "docs" / "two.txt")],
        str(tree / "docs" / "deep"): [str(tree / "docs" / "deep" / "three.bin")],
    }
    assert set(made.parents[made.total]) == made.parents.keys() - {made.total}
    assert {new.options.get("on_parent_failure") for new in made.sums} == {"run", None}
    assert len({new.options.get("agent") for new in made.files}) == 3
    seen: set[UUID] = set()
    for new in made.tasks:
        assert seen.issuperset(made.parents.get(new.options["id"], ()))
        seen.add(new.options["id"])


def test_plan_of_more_than_a_task_may_depend_on_goes_by_parts(tmp_path: Path) -> None:
    for number in range(5):
        (tmp_path / str(number)).touch()

    made = plan(tmp_path, limit=2)

    by_id = {new.options["id"]: new for new in made.tasks}
    folder = [new for new in made.sums if new.action == "summary"]
    assert [json.loads(new.payload)["part"] for new in folder] == [1, 2, 3, 1, 2, 0]
    assert max(map(len, made.parents.values())) == 2
    # Files may be missing; a part that is missing would make a wrong sum.
    assert [new.options.get("on_parent_failure") for new in folder] == ["run"] * 3 + [None] * 3
    assert [by_id[one].action for one in made.parents[made.total]] == ["summary"]


# -- the comparison


def sums() -> list[Task]:
    deep, folder = Sum.over([OTHER]), Sum.over([FILE, None])
    return [
        summary(5, {"folder": "/d", "part": 0}, folder),
        summary(6, {"folder": "/d/e", "part": 0}, deep),
        summary(7, {"part": 0}, Sum.over([folder, deep]), action="total"),
    ]


def summary(number: int, payload: dict[str, Any], found: Sum, action: str = "summary", **changes: Any) -> Task:
    result = json.dumps(dataclasses.asdict(found))
    values: dict[str, Any] = {"action": action, "payload_text": json.dumps(payload), "result_text": result}
    return task(number, "", changes.pop("status", Status.COMPLETED), **values | changes)


def test_compare_accepts_what_is_right() -> None:
    assert compare(EXPECTED, sums()) == []


def without(**changes: Any) -> str:
    return json.dumps(dataclasses.asdict(dataclasses.replace(Sum.over([FILE, None]), **changes)))


@pytest.mark.parametrize(
    ("number", "changes", "told"),
    [
        (0, {"result_text": without(missing=0)}, "/d: the summary says missing 0, the walk 1"),
        (0, {"result_text": without(files=2)}, "/d: the summary says files 2, the walk 1"),
        (0, {"result_text": without(bytes=4)}, "/d: the summary says bytes 4, the walk 5"),
        (0, {"result_text": without(lines=1)}, "/d: the summary says lines 1, the walk 2"),
        (0, {"result_text": without(sha256="ab")}, "/d: the summary says sha256 ab, the walk "),
        (0, {"result_text": None}, "/d: the summary says bytes -1, the walk 5"),
        (1, {"status": Status.DEAD, "last_error": "KeyError: x"}, "/d/e: its summary is dead (KeyError: x)"),
        (1, {"payload_text": '{"folder": "/d", "part": 0}'}, "/d: 2 summaries instead of one"),
        (1, {"payload_text": '{"folder": "/d", "part": 0}'}, "/d/e: no summary"),
        (1, {"payload_text": '{"folder": "/else"}'}, "/else: a summary, though the walk found no such folder"),
        (2, {"status": Status.CANCELLED}, "total: its summary is cancelled (without an error)"),
        (2, {"result_text": without()}, "total: the summary says files 1, the walk 2"),
        (2, {"status": Status.DEAD, "payload_text": '{"part": 1}'}, "a part of a total is dead"),
    ],
)
def test_compare_finds_what_was_tampered_with(number: int, changes: dict[str, Any], told: str) -> None:
    tasks = sums()
    tasks[number] = dataclasses.replace(tasks[number], **changes)

    assert any(line.startswith(told) for line in compare(EXPECTED, tasks))


def test_files_are_no_summaries() -> None:
    assert [folder_of(one) for one in sums()] == ["/d", "/d/e", ""]
    assert folder_of(task(1, "/d/one", Status.COMPLETED, action="inventory")) is None


def test_early_finds_a_summary_that_did_not_wait() -> None:
    files = [task(number, f"/d/{number}", Status.COMPLETED) for number in (1, 2)]
    parents = {UUID(int=5): [UUID(int=1), UUID(int=2)]}

    def told(**changes: Any) -> list[str]:
        return early([*files, dataclasses.replace(sums()[0], **changes)], parents)

    assert told() == []
    assert told(started_at=NOON + 2.5 * SECOND) == ["/d: added up too early"]
    assert told(started_at=None) == ["/d: added up too early"]
    assert early(sums(), {UUID(int=5): [UUID(int=99)]}) == ["/d: added up too early"]
    assert early(files, parents) == ["a part: added up too early"]


def test_shown_are_the_total_the_incomplete_and_the_largest() -> None:
    report = import_module(f"{getattr(command().callback, '__module__', '')}.demo_report")

    def branch(name: str, missing: int, size: int) -> Any:
        return report.Branch("id", "tail", name, 1, missing, size, 1)

    folders = [branch(f"f{size}", 0, size) for size in range(9)]
    shown = report.branches([*folders, branch("holes", 2, 0), branch("hole", 1, 7), branch("", 3, 99)])

    assert [one.name for one in shown] == ["", "holes", "hole", "f8", "f7", "f6"]
