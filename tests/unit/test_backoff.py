"""Delays between attempts."""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.backoff import CAP, FIRST, JITTER, backoff_for, with_jitter

YEARS = timedelta(days=3652)


@pytest.mark.parametrize(
    ("n", "seconds"),
    [(1, 5), (2, 10), (3, 20), (4, 40), (5, 80), (6, 160), (7, 300), (8, 300), (1000, 300), (10**400, 300)],
)
def test_doubles_up_to_five_minutes(n: int, seconds: int) -> None:
    assert backoff_for(n) == timedelta(seconds=seconds)


@pytest.mark.parametrize("n", [0, -1, -(10**400)])
def test_below_one_counts_as_one(n: int) -> None:
    assert backoff_for(n) == FIRST == timedelta(seconds=5)


@given(st.integers())
def test_never_shrinks_and_stays_in_range(n: int) -> None:
    assert FIRST <= backoff_for(n) <= backoff_for(n + 1) <= CAP


@given(st.timedeltas(timedelta(0), YEARS), st.randoms(use_true_random=False))
def test_jitter_adds_up_to_a_quarter(delay: timedelta, random: Random) -> None:
    assert delay <= with_jitter(delay, random) <= delay * (1 + JITTER) + timedelta(microseconds=1)


def test_jitter_spreads_over_the_whole_quarter() -> None:
    random = Random(7)
    drawn = [with_jitter(timedelta(seconds=100), random).total_seconds() for _ in range(2000)]
    assert min(drawn) < 101
    assert max(drawn) > 124
    assert 112 < sum(drawn) / len(drawn) < 113


def test_jitter_comes_from_the_given_random_only() -> None:
    assert with_jitter(CAP, Random(1)) == with_jitter(CAP, Random(1)) != with_jitter(CAP, Random(2))


def test_jitter_without_a_random_differs_from_call_to_call() -> None:
    drawn = {with_jitter(CAP) for _ in range(50)}
    assert len(drawn) > 40
    assert all(CAP <= delay <= CAP * (1 + JITTER) for delay in drawn)


@pytest.mark.parametrize(
    ("delay", "low", "high"),
    [
        (timedelta(seconds=-5), timedelta(0), timedelta(0)),
        (timedelta.min, timedelta(0), timedelta(0)),
        (timedelta.max, YEARS, YEARS * 1.25),
    ],
)
def test_jitter_takes_what_a_wrong_policy_gives(delay: timedelta, low: timedelta, high: timedelta) -> None:
    assert low <= with_jitter(delay, Random(3)) <= high
