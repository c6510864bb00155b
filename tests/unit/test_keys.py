"""Names, keys, numbers, durations and instants at the edge."""

from __future__ import annotations

import enum
import math
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue import keys
from pgqueue.errors import InputError

HUGE = pytest.param(10**5000, id="huge")
LOW = pytest.param(-(10**5000), id="low")
LONG = pytest.param("9" * 5000, id="long")


def refused(caught: pytest.ExceptionInfo[InputError], field: str) -> None:
    text = str(caught.value)
    assert caught.value.field == field
    assert text.startswith(field)
    assert "; " in text  # what to do
    assert len(text.splitlines()) == 1
    assert text.isprintable()
    assert len(text) < 300


# -- names


@pytest.mark.parametrize(
    "value",
    [
        "a",
        "mail",
        "host-7",
        "a b",
        "é",
        "e\u0301",
        "日本",
        "😀",
        "x" * 512,
        "é" * 256,
        "'; drop table tasks; --",
        "\u202ex",
    ],
)
def test_names_and_keys_come_back_as_they_are(value: str) -> None:
    assert keys.check_name(value, field="queue") is value
    assert keys.check_key(value) is value


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "empty"),
        ("a\x00b", "control"),
        ("a\nb", "control"),
        ("\t", "control"),
        ("\x1b[31m", "control"),
        ("\x7f", "control"),
        ("\x85", "control"),
        ("\x9b", "control"),
        ("\ud800", "surrogate"),
        ("a\udfff", "surrogate"),
        ("x" * 513, "513 bytes"),
        ("é" * 257, "514 bytes"),
        pytest.param("x" * 10_000_000, "10,000,000 bytes", id="huge"),
        (None, "None"),
        (7, "not 7"),
        (True, "True"),
        (b"mail", "a bytes"),
        (["mail"], "a list"),
    ],
)
def test_what_is_no_name(value: object, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        keys.check_name(value, field="queue")
    refused(caught, "queue")
    with pytest.raises(InputError, match=word) as caught:
        keys.check_key(value)
    refused(caught, "dedupe_key")


def test_a_name_may_have_a_limit_of_its_own() -> None:
    assert keys.check_name("x" * 20, field="host", limit=20)
    with pytest.raises(InputError, match="21 bytes; the limit is 20"):
        keys.check_name("x" * 21, field="host", limit=20)


@given(st.text())
def test_a_name_is_accepted_exactly_when_it_can_be_stored_and_printed(value: str) -> None:
    fine = 0 < len(value.encode()) <= 512 and not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in value)
    try:
        keys.check_name(value, field="queue")
    except InputError:
        assert not fine
    else:
        assert fine


@pytest.mark.parametrize("value", ["pgqueue", "_", "a1", "x" * 63, "pg", "pgq", "public"])
def test_schemas(value: str) -> None:
    assert keys.check_schema(value) == value


@pytest.mark.parametrize(
    "value",
    ["", "Queue", "1a", "a-b", "a.b", "a b", 'x"; drop', "é", "x" * 64, "pg_", "pg_catalog", "information_schema",
     "a\n", None, 1, b"a"],
)  # fmt: skip
def test_what_is_no_schema(value: object) -> None:
    with pytest.raises(InputError) as caught:
        keys.check_schema(value)
    refused(caught, "schema")


# -- numbers


class Level(enum.IntEnum):
    HIGH = 9


@pytest.mark.parametrize("value", [-9, 0, 9, Level.HIGH])
def test_ints_in_range(value: int) -> None:
    checked = keys.check_int(value, field="priority", low=-9, high=9)
    assert checked == value
    assert type(checked) is int


@pytest.mark.parametrize(
    "value", [-10, 10, 2**63, HUGE, LOW, True, False, 1.0, math.nan, "3", "\u0661", None, Decimal(1), [1]]
)
def test_what_is_no_int_in_range(value: object) -> None:
    with pytest.raises(InputError, match="from -9 to 9") as caught:
        keys.check_int(value, field="priority", low=-9, high=9)
    refused(caught, "priority")


# -- durations


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (0, 0),
        (1, 1),
        (1.5, 1.5),
        (0.000001, 0.000001),
        (timedelta(minutes=5), 300),
        (keys.TEN_YEARS, keys.TEN_YEARS.total_seconds()),
        (keys.TEN_YEARS.total_seconds(), keys.TEN_YEARS.total_seconds()),
    ],
)
def test_durations(value: float | timedelta, seconds: float) -> None:
    assert keys.check_duration(value, field="delay") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [-1, -0.1, timedelta(microseconds=-1), math.nan, math.inf, -math.inf, 1e18, 1e308, HUGE, timedelta.max,
     timedelta.min, keys.TEN_YEARS + timedelta(microseconds=1), True, False, "30s", None, Decimal(3), [3]],
)  # fmt: skip
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(InputError, match="give 0s to 3652d") as caught:
        keys.check_duration(value, field="delay")
    refused(caught, "delay")


@pytest.mark.parametrize(
    ("value", "fits"), [(0.5, True), (60, True), (0.4, False), (61, False), (0, False), (timedelta(seconds=61), False)]
)
def test_durations_between_bounds(value: float | timedelta, fits: bool) -> None:
    if fits:
        assert keys.check_duration(value, field="poll", low=0.5, high=timedelta(minutes=1)) == timedelta(seconds=value)  # type: ignore[arg-type]
        return
    with pytest.raises(InputError, match="give 500ms to 1m"):
        keys.check_duration(value, field="poll", low=0.5, high=timedelta(minutes=1))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1d", 86400),
        ("1h30m", 5400),
        ("1d2h3m4s5ms", 93784.005),
        ("500ms", 0.5),
        ("0.5s", 0.5),
        ("1.5h", 5400),
        ("0.1s", 0.1),
        ("0.001ms", 0.000001),
        ("45", 45),
        ("0", 0),
        ("0.25", 0.25),
        ("90m", 5400),
        (" 5m ", 300),
        ("3652d", 3652 * 86400),
    ],
)
def test_parse_durations(text: str, seconds: float) -> None:
    assert keys.parse_duration(text, field="--lease") == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", " ", "s", "5x", "5 m", "-5s", "+5s", "5M", "1m1h", "5s5s", "1h-30m", "1e3", "nan", "inf", "\u0661s", "1_000",
     "1,5s", ".5s", "5.", "1:30", "3653d", "99999999999d", "9" * 13, LONG, "5s\n5s", "5m\x00", None, 5],
)  # fmt: skip
def test_what_cannot_be_parsed_as_a_duration(text: object) -> None:
    with pytest.raises(InputError) as caught:
        keys.parse_duration(text, field="--lease")  # type: ignore[arg-type]
    refused(caught, "--lease")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (timedelta(0), "0s"),
        (timedelta(seconds=30), "30s"),
        (timedelta(minutes=90), "1h30m"),
        (timedelta(seconds=0.5), "500ms"),
        (timedelta(seconds=1.5), "1.5s"),
        (timedelta(microseconds=500), "0.5ms"),
        (timedelta(days=1, microseconds=1), "1d0.000001s"),
        (timedelta(seconds=-5), "-5s"),
        (timedelta(days=7), "7d"),
    ],
)
def test_format_durations(value: timedelta, text: str) -> None:
    assert keys.format_duration(value) == text


@given(st.timedeltas(timedelta(0), keys.TEN_YEARS))
def test_a_formatted_duration_is_read_back_exactly(value: timedelta) -> None:
    assert keys.parse_duration(keys.format_duration(value), field="x") == value


@given(st.timedeltas())
def test_format_takes_every_duration(value: timedelta) -> None:
    assert keys.format_duration(value).startswith("-") == (value < timedelta(0))


# -- instants


class Vague(tzinfo):
    """A zone that does not know its offset: the datetime counts as naive."""

    def utcoffset(self, when: datetime | None, /) -> None:
        return None

    def dst(self, when: datetime | None, /) -> None:
        return None

    def tzname(self, when: datetime | None, /) -> str:
        return "?"


@pytest.mark.parametrize(
    "value",
    [
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(9998, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        datetime(2026, 3, 8, 2, 30, tzinfo=timezone(timedelta(hours=-5))),
        datetime(1969, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))),  # 1970 in UTC
    ],
)
def test_instants_come_back_in_utc(value: datetime) -> None:
    checked = keys.check_instant(value, field="not_before")
    assert checked == value
    assert checked.tzinfo is UTC


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (datetime(2026, 1, 1), "no time zone"),  # noqa: DTZ001
        (datetime(2026, 1, 1, tzinfo=Vague()), "no time zone"),
        (datetime(1969, 12, 31, 23, 59, tzinfo=UTC), "year 1969"),
        (datetime(1970, 1, 1, 1, tzinfo=timezone(timedelta(hours=2))), "year 1970"),  # 1969 in UTC
        (datetime(9999, 1, 1, tzinfo=UTC), "year 9999"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-12))), "year 9999"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=12))), "year 1"),
        (date(2026, 1, 1), "a date"),
        ("2026-01-01T00:00:00Z", "must be a datetime"),
        (0, "not 0"),
        (None, "not None"),
    ],
)
def test_what_is_no_instant(value: object, word: str) -> None:
    with pytest.raises(InputError, match=word) as caught:
        keys.check_instant(value, field="not_before")
    refused(caught, "not_before")


# -- quoting


@given(st.one_of(st.text(), st.integers(), st.floats(), st.binary(), st.none(), st.lists(st.integers())))
def test_shown_is_short_and_printable(value: object) -> None:
    text = keys.shown(value)
    assert len(text) <= 40
    assert text.isascii()
    assert text.isprintable()


def test_shown_asks_no_object_for_its_text() -> None:
    class Hostile:
        def __repr__(self) -> str:
            raise RuntimeError

    assert keys.shown(Hostile()) == "a Hostile"
    assert keys.shown(10**5000) == "a very large number"
