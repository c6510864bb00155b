"""JSON for jsonb: what is taken, what is refused and how the place is named."""

from __future__ import annotations

import contextlib
import enum
import json
import math
import sys
from collections import OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.errors import InputError, PayloadError
from pgqueue.payload import DEPTH_LIMIT, JSON, PAYLOAD_LIMIT, check, decode, encode

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\x00"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)


class Color(enum.Enum):
    RED = "red"


class Name(enum.StrEnum):
    ADA = "ada"


class Number(enum.IntEnum):
    TWO = 2


class Text(str):
    def __str__(self) -> str:
        raise RuntimeError


class Float(float):
    def __repr__(self) -> str:
        return "not a number"


class Pair(NamedTuple):
    a: int
    b: str


class Opaque:
    def __repr__(self) -> str:
        raise RuntimeError

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class BrokenMapping(Mapping[str, int]):
    def __getitem__(self, key: str) -> int:
        raise RuntimeError("secret")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("secret")

    def __len__(self) -> int:
        return 1


def nested(depth: int, inner: object = None) -> object:
    for _ in range(depth):
        inner = [inner]
    return inner


def refused(value: object, **options: Any) -> PayloadError:
    with pytest.raises(PayloadError) as caught:
        encode(value, **options)
    text = str(caught.value)
    assert "; " in text or ": " in text
    assert text.isprintable()
    assert len(text) < 300
    return caught.value


# -- what is taken


@given(VALUES)
def test_what_is_written_is_read_back(value: JSON) -> None:
    text = encode(value)
    assert json.loads(text) == value
    assert decode(text) == value


@pytest.mark.parametrize(
    ("value", "back"),
    [
        (None, None),
        (True, True),
        (0, 0),
        (-1, -1),
        (2**63, 2**63),
        (-(2**200), -(2**200)),
        (1.5, 1.5),
        (1e308, 1e308),
        (5e-324, 5e-324),
        ("", ""),
        ('é日😀\n\t"\\/\x7f\x1f', 'é日😀\n\t"\\/\x7f\x1f'),
        ("\\u0000 written out", "\\u0000 written out"),
        ("\\ud800 written out", "\\ud800 written out"),
        ({"\\u0000": 1}, {"\\u0000": 1}),
        ((1, (2, ())), [1, [2, []]]),
        (Pair(1, "x"), [1, "x"]),
        ({"": {"a b": 1}}, {"": {"a b": 1}}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (UserDict(a=UserDict(b=(1,))), {"a": {"b": [1]}}),
        (deque([1, 2]), [1, 2]),
        (range(3), [0, 1, 2]),
        (Name.ADA, "ada"),
        (Number.TWO, 2),
        ({Name.ADA: Number.TWO}, {"ada": 2}),
        (Text("x"), "x"),
        ({Text("k"): [Text("v")]}, {"k": ["v"]}),
        (Float(1.5), 1.5),
        ([[1]] * 60, [[1]] * 60),  # shared, not circular
        ([(1,)] * 3, [[1]] * 3),
    ],
    ids=lambda value: "case",
)
def test_what_is_taken(value: object, back: object) -> None:
    text = encode(value)
    assert json.loads(text) == back
    assert decode(text) == back


def test_many_brackets_are_not_depth() -> None:
    value = {"rows": [{"tags": ["[", "{", "]"]} for _ in range(500)]}
    assert decode(encode(value)) == value


@pytest.mark.parametrize("digits", [19, 20, 309, 4300])
def test_long_integers_come_back_exactly(digits: int) -> None:
    for value in (10**digits - 1, -(10**digits) + 1):
        assert decode(encode([value])) == [value]


def test_text_is_compact() -> None:
    assert encode({"a": [1, 2], "b": "é"}) == '{"a":[1,2],"b":"é"}'


# -- what is refused


@pytest.mark.parametrize(
    ("value", "place", "words"),
    [
        ("a\x00b", "payload", "payload holds a NUL"),
        ({"orders": [1, 2, {"name": "a\x00b"}]}, "$.orders[2].name", r"payload \$\.orders\[2\]\.name holds a NUL"),
        ({"a\x00b": 1}, "payload", "has a key that holds a NUL"),
        ({"x": {"a\x00b": 1}}, "$.x", "has a key that holds a NUL"),
        ("\ud800", "payload", "lone surrogate"),
        (["\udfff"], "$[0]", "lone surrogate"),
        ({"x": {"\ud800": 1}}, "$.x", "has a key that holds a lone surrogate"),
        (math.nan, "payload", "is nan"),
        ({"x": [math.inf]}, "$.x[0]", "is inf"),
        ((1, -math.inf), "$[1]", "is -inf"),
        ({"x": Float("nan")}, "$.x", "is nan"),
        ({"x": 10**4300}, "$.x", "more than 4,300 digits"),
        ({"x": -(10**4300)}, "$.x", "more than 4,300 digits"),
        ({"x": 1 << 100_000}, "$.x", "more than 4,300 digits"),
        ({1: "x"}, "payload", "a key of type int"),
        ({None: "x"}, "payload", "a key of type NoneType"),
        ({True: "x"}, "payload", "a key of type bool"),
        ({"a": [{1.5: "x"}]}, "$.a[0]", "a key of type float"),
        ({"1": "x", 1: "y"}, "payload", "a key of type int"),
        ({(1, 2): "x"}, "payload", "a key of type tuple"),
        ({Color.RED: "x"}, "payload", "a key of type Color"),
        ({"x": b"raw"}, "$.x", "is a bytes, which is not JSON; send base64"),
        ({"x": bytearray(b"raw")}, "$.x", "is a bytearray"),
        ({"x": memoryview(b"raw")}, "$.x", "is a memoryview"),
        ({"x": {1, 2}}, "$.x", "is a set, which is not JSON; send a sorted list"),
        ({"x": frozenset()}, "$.x", "is a frozenset"),
        ({"x": UUID(int=1)}, "$.x", "is a UUID, which is not JSON; send it as a string, or annotate"),
        ({"x": datetime(2026, 1, 1)}, "$.x", "is a datetime.*with a time zone"),  # noqa: DTZ001
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "$.x", "is a datetime"),
        ({"x": date(2026, 1, 1)}, "$.x", "is a date"),
        ({"x": time(1)}, "$.x", "is a time"),
        ({"x": timedelta(1)}, "$.x", "is a timedelta"),
        ({"x": Decimal("1.5")}, "$.x", "is a Decimal"),
        ({"x": Color.RED}, "$.x", "is a Color"),
        ({"x": 1j}, "$.x", "is a complex"),
        ({"x": (n for n in [1])}, "$.x", "is a generator.*send a list"),
        ({"x": Opaque()}, "$.x", "is a Opaque, which is not JSON; convert it"),
        ({"x": object}, "$.x", "is a type"),
        ({"x": Ellipsis}, "$.x", "is a ellipsis"),
        (BrokenMapping(), "payload", "cannot be read: it raised RuntimeError"),
        ({"a b": {"é": {"": math.nan}}}, '$["a b"]["\\u00e9"][""]', "is nan"),
    ],
    ids=lambda value: "case",
)
def test_what_is_refused_is_named(value: object, place: str, words: str) -> None:
    error = refused(value)
    assert error.field == place
    assert place in str(error)
    with pytest.raises(PayloadError, match=words):
        encode(value)


def test_a_refusal_tells_nothing_of_the_payload() -> None:
    for value in ("hunter2\x00", ["hunter2\ud800"], BrokenMapping(), {"x": Decimal("42424242")}):
        assert not {"hunter2", "secret", "42424242"} & set(str(refused(value)).replace("\x00", " ").split())


@pytest.mark.parametrize("make", [list, dict])
def test_circles(make: type) -> None:
    value: Any = make()
    inner = {"up": value}
    if make is list:
        value.append(inner)
    else:
        value["down"] = inner
    error = refused(value)
    assert error.field in ("$[0].up", "$.down.up")
    assert "contains itself" in str(error)


def test_depth() -> None:
    assert DEPTH_LIMIT == 100
    assert decode(encode(nested(100))) == nested(100)
    assert decode(encode({"a": nested(99, 1)})) == {"a": nested(99, 1)}
    place = refused(nested(101)).field
    assert place is not None
    assert (place[:4], place[-3:], len(place)) == ("$[0]", "[0]", 121)
    assert "deeper than 100" in str(refused({"a": nested(100)}))
    assert "deeper than 100" in str(refused(nested(100_000)))
    assert "deeper than 100" in str(refused([nested(101)] * 3))


def test_an_almost_full_stack_is_a_payload_error_or_none() -> None:
    outcomes = set()

    def descend() -> None:
        try:
            descend()
        except RecursionError:
            return
        try:
            encode(nested(90, math.nan))
        except (PayloadError, RecursionError) as error:
            outcomes.add(type(error))

    descend()
    assert PayloadError in outcomes


@pytest.mark.parametrize(
    ("value", "size"), [("x", 3), ("é", 4), ({"a": 1}, 7), ([1] * 10, 21), ("x" * 5000, 5002), ("\x01", 8)]
)
def test_size_is_counted_in_bytes_of_compact_json(value: object, size: int) -> None:
    assert len(encode(value, limit=size).encode()) == size
    error = refused(value, limit=size - 1)
    assert f"{size:,} bytes as JSON; the limit is {size - 1:,}" in str(error)
    assert error.field == "payload"


def test_the_limit_is_a_mebibyte() -> None:
    assert PAYLOAD_LIMIT == 1024 * 1024
    encode("x" * (PAYLOAD_LIMIT - 2))
    refused("x" * (PAYLOAD_LIMIT - 1))


def test_field_and_action_stand_in_the_text() -> None:
    assert str(refused(math.nan, field="result", action="charge")).startswith("charge: result is nan")
    assert str(refused([math.nan], field="result", action="charge")).startswith("charge: result $[0] is nan")
    assert refused(math.nan, field="result").field == "result"
    assert str(refused("xx", limit=1, action="charge")).startswith("charge: payload has 4 bytes")
    assert isinstance(refused(math.nan), InputError | ValueError)


def test_a_lower_limit_of_this_process_is_a_payload_error() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        assert "integers as strings" in str(refused({"x": 10**2000}))
    finally:
        sys.set_int_max_str_digits(before)


def test_a_higher_limit_of_this_process_changes_nothing() -> None:
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        assert "4,300 digits" in str(refused({"x": 10**5000}))
        assert decode(encode(10**4299)) == 10**4299
    finally:
        sys.set_int_max_str_digits(before)


def test_check_names_places_under_a_name_of_the_caller() -> None:
    check({"a": [1]}, place="order", depth=1)
    with pytest.raises(PayloadError, match=r"^charge: order\.a\[0\] is nan") as caught:
        check({"a": [math.nan]}, place="order", action="charge")
    assert caught.value.field == "order.a[0]"
    check(nested(99), place="order", depth=1)
    with pytest.raises(PayloadError, match="deeper"):
        check(nested(100), place="order", depth=1)


# -- rows that others wrote


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 1001 + "]" * 1001, "deeper than 100"),
        ("[" * 101 + "]" * 101, "deeper than 100"),
        ('{"a":' * 5000 + "1" + "}" * 5000, "deeper than 100"),
        ("[" * 200_000 + "]" * 200_000, "deeper than 100"),
        ("1" + "0" * 4300, "a number that Python cannot read"),
        ('{"x":[' + "9" * 131_072 + "]}", "a number that Python cannot read"),
        ("1" + "0" * 400 + ".5", "a number that Python cannot read"),
        ("-1e400", "a number that Python cannot read"),
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("NaN", "is not JSON"),
        ("Infinity", "is not JSON"),
        ("{'a': 1}", "is not JSON"),
        ("[1] x", "is not JSON"),
        ('"\\ud800"', "is not JSON"),
        ("\ud800", "is not JSON"),
        ('"a\nb"', "is not JSON"),
        (b"\xff", "is not JSON"),
        (b'"\xff"', "is not JSON"),
    ],
    ids=lambda value: "case",
)
def test_a_row_that_cannot_be_read(text: str | bytes, words: str) -> None:
    with pytest.raises(PayloadError, match=f"^charge: result .*{words}.*; ") as caught:
        decode(text, field="result", action="charge")
    assert caught.value.field == "result"
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("prefix", ["", "action: "])
def test_decode_names_the_field_alone_without_an_action(prefix: str) -> None:
    with pytest.raises(PayloadError, match=f"^{prefix}payload is not JSON"):
        decode("{", action=prefix.removesuffix(": ") or None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("null", None),
        (b'{"a":[1,2.5,"\\u00e9"]}', {"a": [1, 2.5, "é"]}),
        ("[" * 100 + "]" * 100, nested(99, [])),
        ('["' + "[{" * 400 + '"]', ["[{" * 400]),
        ("1" + "0" * 4299, 10**4299),
        ("1180591620717411303424", 2**70),
        ("0.1000000000000000055511151231257827", 0.1),
        (' { "a" : 1 } ', {"a": 1}),
    ],
    ids=lambda value: "case",
)
def test_a_row_that_can_be_read(text: str | bytes, value: object) -> None:
    assert decode(text) == value


@given(st.text(max_size=40) | st.binary(max_size=40))
def test_decode_raises_nothing_else(text: str | bytes) -> None:
    with contextlib.suppress(PayloadError):
        assert decode(encode(decode(text))) == decode(text)
