"""What becomes of an edge, and which edges close a circle."""

from __future__ import annotations

import random

import pytest

from pgqueue.edges import Fate, circle, fate, knotted
from pgqueue.lifecycle import Status


@pytest.mark.parametrize(
    ("parent", "locked", "expected"),
    [
        (None, False, Fate.LET_GO),
        (Status.PENDING, True, Fate.WAIT),
        (Status.RUNNING, True, Fate.WAIT),
        # Somebody may be ending it at this moment, and did not see the edge.
        (Status.PENDING, False, Fate.LATER),
        (Status.RUNNING, False, Fate.LATER),
        (Status.COMPLETED, True, Fate.LIFT),
        (Status.CANCELLED, True, Fate.FAIL),
        (Status.DEAD, True, Fate.FAIL),
        # Nothing leads out of these two, whoever has the row; a dead task may be retried.
        (Status.COMPLETED, False, Fate.LIFT),
        (Status.CANCELLED, False, Fate.FAIL),
        (Status.DEAD, False, Fate.LATER),
    ],
)
def test_fate(parent: Status | None, locked: bool, expected: Fate) -> None:
    assert fate(parent, locked=locked) is expected


@pytest.mark.parametrize(
    ("parents", "expected"),
    [
        ({}, []),
        ({"a": []}, []),
        ({"a": ["b"], "b": ["c"]}, []),
        ({"a": ["a"]}, ["a", "a"]),
        ({"a": ["b"], "b": ["a"]}, ["a", "b", "a"]),
        ({"a": ["b"], "b": ["c"], "c": ["a"]}, ["a", "b", "c", "a"]),
        # The shortest of two ways round.
        ({"a": ["b", "x"], "b": ["c"], "c": ["a"], "x": ["a"]}, ["a", "x", "a"]),
        # A diamond is none.
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"]}, []),
        # Nor is one further up, of which it is no part.
        ({"a": ["b"], "b": ["c"], "c": ["b"]}, []),
    ],
)
def test_circle_is_the_shortest_way_back(parents: dict[str, list[str]], expected: list[str]) -> None:
    assert circle("a", parents) == expected


def test_circle_of_a_chain_of_thousands_needs_no_recursion() -> None:
    chain = {n: [n + 1] for n in range(5000)}
    assert circle(0, chain) == []
    assert circle(0, {**chain, 5000: [0]}) == [*range(5001), 0]


def test_knotted_are_those_in_and_below_a_circle() -> None:
    assert knotted({}) == set()
    assert knotted({"a": ["b", "c"], "b": ["d"], "c": ["d"]}) == set()
    # `above` waits for nobody in the circle; `below` does.
    graph = {"a": ["b"], "b": ["a", "above"], "below": ["a"], "above": ["root"]}
    assert knotted(graph) == {"a", "b", "below"}


@pytest.mark.parametrize("seed", range(50))
def test_nobody_on_a_circle_is_missing_from_knotted(seed: int) -> None:
    rng = random.Random(seed)
    graph = {child: rng.sample(range(12), rng.randint(0, 2)) for child in range(12)}
    on_a_circle = {child for child in graph if circle(child, graph)}
    assert on_a_circle <= knotted(graph)
    assert bool(on_a_circle) == bool(knotted(graph))
