"""Durations, times and errors as people read them."""

from datetime import UTC, datetime, timedelta

import pytest

from .running import room

NOW = datetime(2026, 3, 1, 14, 3, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (0.417, "0.42s"),
        (4.06, "4.1s"),
        (41.2, "41s"),
        (59.9, "1m"),
        (60, "1m"),
        (312, "5m12s"),
        (3600, "1h"),
        (12_000, "3h20m"),
        (86_400 + 40, "1d"),
        (187_200, "2d4h"),
    ],
)
def test_span_has_two_units_at_most(seconds: float, text: str) -> None:
    assert room("words").span(timedelta(seconds=seconds)) == text


def test_clock_names_the_day_only_when_it_is_another() -> None:
    clock = room("words").clock

    assert clock(NOW, now=NOW) == "14:03:09Z"
    assert clock(NOW - timedelta(days=1), now=NOW) == "2026-02-28 14:03:09Z"
    assert clock(NOW.astimezone(), now=NOW) == "14:03:09Z"


@pytest.mark.parametrize(("text", "line"), [(None, ""), ("", ""), ("\nboom\nTraceback …", "boom"), ("boom", "boom")])
def test_first_line_of_an_error(text: str | None, line: str) -> None:
    assert room("words").first_line(text) == line
