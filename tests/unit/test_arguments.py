"""A handler's arguments: its signature, its annotations, the way to JSON and back."""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import math
import threading
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Optional, TypedDict, TypeVar, Union
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.arguments import Arguments
from pgqueue.errors import ConfigError, PayloadError
from pgqueue.payload import JSON, decode

if TYPE_CHECKING:
    from somewhere import Elsewhere  # type: ignore[import-not-found]

ID = UUID("01998f3e-5d5c-7c07-8a2f-5b6fd3d8dd91")
NOON = datetime(2026, 3, 8, 12, tzinfo=UTC)
NAIVE = datetime(2026, 3, 8, 12)  # noqa: DTZ001
T = TypeVar("T")


class Context:
    pass


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1


@dataclasses.dataclass
class Line:
    sku: str
    n: int = 1


@dataclasses.dataclass
class WithGift(Line):
    gift: str = "card"


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Moment:
    at: datetime
    tags: Sequence[str] = ()


@dataclasses.dataclass(eq=False)
class NoEq:
    n: int


class Plain:
    def __init__(self, n: int) -> None:
        self.n = n


@dataclasses.dataclass
class Positive:
    n: int

    def __post_init__(self) -> None:
        if self.n == 0:
            raise KeyError("zero-secret")
        if self.n < 0:
            raise ValueError("negative-secret")


class Address(TypedDict):
    street: str
    zip: NotRequired[int]


class Point(NamedTuple):
    x: int
    y: int


class Money(msgspec.Struct):
    amount: Decimal
    currency: str = "EUR"


class Text(str):
    pass


def arguments(handler: Callable[..., object], **options: Any) -> Arguments:
    return Arguments.of(handler, context_type=Context, **options)


def taking(hint: object, default: object = ...) -> Arguments:
    """A handler with one parameter of this annotation."""

    def handler(value: Any) -> None: ...

    handler.__annotations__ = {"value": hint}
    if default is not ...:
        handler.__defaults__ = (default,)
    return arguments(handler)


def there_and_back(made: Arguments, *args: object, **kwargs: object) -> dict[str, object]:
    return made.decode(decode(made.encode(args, kwargs)))


def refused(
    function: Callable[..., object], *args: object, match: str, field: str | None, **kwargs: object
) -> PayloadError:
    with pytest.raises(PayloadError, match=match) as caught:
        function(*args, **kwargs)
    text = str(caught.value)
    assert caught.value.field == field
    assert text.startswith("handler: ")
    assert len(text.splitlines()) == 1
    assert "; " in text or ": " in text
    assert "secret" not in text
    assert len(text) < 400
    return caught.value


# -- values that go through


ROUND_TRIPS: list[tuple[object, object]] = [
    (int, 2**70),
    (float, 1.5),
    (float, 3),
    (bool, True),
    (str, "é日\n"),
    (type(None), None),
    (UUID, ID),
    (datetime, NOON),
    (datetime, NOON.replace(microsecond=123456)),
    (date, date(2026, 3, 8)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, seconds=2, microseconds=3)),
    (Decimal, Decimal("1.10")),
    (Decimal, 1),
    (Decimal, 0.1),
    (bytes, b"\x00\xff raw"),
    (Colour, Colour.RED),
    (Size, Size.SMALL),
    (Line, Line("x", 2)),
    (Node, Node("root", [Node("leaf")])),
    (Moment, Moment(NOON, ("a", "b"))),
    (Positive, Positive(1)),
    (Address, {"street": "s"}),
    (Address, {"street": "s", "zip": 1}),
    (Point, Point(1, 2)),
    (Money, Money(Decimal("2.50"))),
    (list[Line], [Line("x"), Line("y", 3)]),
    (list[int], (1, 2)),
    (tuple[int, str], (1, "x")),
    (tuple[datetime, ...], (NOON, NOON)),
    (set[int], {1, 2}),
    (frozenset[UUID], frozenset({ID})),
    (Sequence[str], ("a", "b")),
    (Mapping[str, Decimal], {"a": Decimal("1")}),
    (dict[int, str], {1: "x", 2: "y"}),
    (dict[UUID, list[date]], {ID: [date(2026, 1, 1)]}),
    (dict[str, datetime], {"a": NOON}),
    (dict[str, Any], {"a": [1, {"b": None}]}),
    (list, [1, "x", None]),
    (dict, {"a": 1}),
    (Optional[UUID], ID),  # noqa: UP045
    (Union[UUID, None], None),  # noqa: UP007
    (datetime | None, NOON),
    (list[datetime | None], [NOON, None]),
    (int | str, "3"),
    (int | list[int], [3]),
    (Line | None, None),
    (Literal["a", "b"], "b"),
    (Literal[1, None], None),
    (Annotated[int, msgspec.Meta(ge=0)], 0),
    (str, Text("x")),
    (Any, {"a": [1, 2.5, None, True, "x"]}),
    (object, {"a": 1}),
    (JSON, [{"a": None}]),
    ("list[JSON]", [1, "x"]),
    ("Colour | None", Colour.BLUE),
]


@pytest.mark.parametrize(("hint", "value"), ROUND_TRIPS, ids=lambda value: "case")
def test_a_value_arrives_as_it_was_passed(hint: object, value: object) -> None:
    back = there_and_back(taking(hint), value)["value"]
    expected = Decimal(repr(value)) if hint is Decimal and isinstance(value, float) else value
    if isinstance(expected, tuple) and not isinstance(back, tuple):
        expected = list(expected)
    if hint is Moment:
        expected = Moment(NOON, ["a", "b"])
    assert back == expected


@pytest.mark.parametrize(
    ("hint", "value", "stored"),
    [
        (UUID, ID, str(ID)),
        (datetime, NOON, "2026-03-08T12:00:00Z"),
        (date, date(2026, 3, 8), "2026-03-08"),
        (timedelta, timedelta(seconds=90), "PT90S"),
        (Decimal, Decimal("1.10"), "1.10"),
        (Colour, Colour.RED, "red"),
        (Size, Size.SMALL, 1),
        (bytes, b"raw", "cmF3"),
        (Line, Line("x"), {"sku": "x", "n": 1}),
        (Point, Point(1, 2), [1, 2]),
        (dict[int, str], {1: "x"}, {"1": "x"}),
        (set[int], {7}, [7]),
    ],
    ids=lambda value: "case",
)
def test_what_is_stored_is_plain_json(hint: object, value: object, stored: object) -> None:
    assert json.loads(taking(hint).encode((value,), {})) == {"value": stored}


def test_equal_instants_of_other_zones_arrive_equal() -> None:
    elsewhere = NOON.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert there_and_back(taking(datetime), elsewhere)["value"] == NOON


def test_objects_without_eq_go_through() -> None:
    back = there_and_back(taking(NoEq), NoEq(3))["value"]
    assert isinstance(back, NoEq)
    assert back.n == 3


@given(
    st.fixed_dictionaries(
        {
            "order": st.uuids(),
            "at": st.datetimes(timezones=st.just(UTC)),
            "total": st.decimals(allow_nan=False, allow_infinity=False),
            "wait": st.timedeltas(timedelta(days=-10_000), timedelta(days=10_000)),
            "lines": st.lists(
                st.builds(Line, st.text(st.characters(codec="utf-8", exclude_characters="\x00"))),
                max_size=3,
            ),
        },
        optional={"note": st.none() | st.just("x")},
    )
)
def test_any_call_arrives_as_it_was_made(values: dict[str, Any]) -> None:
    assert there_and_back(SHOP, **values) == values


def shop(
    ctx: Context, order: UUID, at: datetime, total: Decimal, wait: timedelta, lines: list[Line], note: str | None = "n"
) -> None: ...


SHOP = arguments(shop)


# -- values that do not


MISMATCHES: list[tuple[object, object, str, str]] = [
    (int, "3", "value", "expected `int`, got `str`"),
    (int, 1.0, "value", "expected `int`, got `float`"),
    (int, True, "value", "expected `int`, got `bool`"),
    (int, None, "value", "expected `int`, got `null`"),
    (str, 3, "value", "expected `str`, got `int`"),
    (bool, 1, "value", "expected `bool`, got `int`"),
    (float, "1.5", "value", "expected `float`, got `str`"),
    (float, 2**53 + 1, "value", "is int, but would reach the handler as float"),
    (UUID, str(ID), "value", "is str, but would reach the handler as UUID"),
    (UUID, "nope", "value", "invalid UUID"),
    (datetime, NAIVE, "value", "with a timezone"),
    (datetime, "2026-03-08T12:00:00Z", "value", "is str, but would reach the handler as datetime"),
    (datetime, 12, "value", "expected `datetime`, got `int`"),
    (datetime, NOON.replace(tzinfo=timezone(timedelta(seconds=3601))), "value", "would not arrive as it is"),
    (datetime | None, NAIVE, "value", "with a timezone"),
    (list[datetime], [NOON, NAIVE], "value[1]", "with a timezone"),
    (dict[str, datetime], {"a": NAIVE}, "value[...]", "with a timezone"),
    (Moment, Moment(NAIVE), "value.at", "without a time zone"),
    (list[Moment], [Moment(NOON), Moment(NAIVE)], "value[1].at", "without a time zone"),
    (dict[str, Moment], {"a b": Moment(NAIVE)}, "value[a b].at", "without a time zone"),
    (date, NOON, "value", "invalid"),
    (Decimal, "1.5", "value", "is str, but would reach the handler as Decimal"),
    (Decimal, Decimal("NaN"), "value", "would not arrive as it is"),
    (Decimal, Decimal("sNaN"), "value", "would not arrive as it is"),
    (bytes, "raw", "value", "invalid base64"),
    (Colour, "red", "value", "is str, but would reach the handler as Colour"),
    (Colour, "secret", "value", "invalid enum value"),
    (Literal["a"], "secret", "value", "invalid enum value"),
    (Line, {"sku": "x"}, "value", "is dict, but would reach the handler as Line"),
    (Line, WithGift("x"), "value", "is WithGift, but would reach the handler as Line"),
    (list[Line], [Line("x"), Line(3)], "value[1].sku", "expected `str`, got `int`"),  # type: ignore[arg-type]
    (Address, {"street": 3}, "value.street", "expected `str`, got `int`"),
    (Address, {"zip": 3}, "value.street", "missing required field"),
    (Address, {"street": "s", "extra": 1}, "value.extra", "has no such key"),
    (Point, Point("x", 2), "value[0]", "expected `int`, got `str`"),  # type: ignore[arg-type]
    (tuple[int, str], (1,), "value", "length 2"),
    (Sequence[str], "abc", "value", "expected `array`, got `str`"),
    (list[int], {"a": 1}, "value", "expected `array`, got `object`"),
    (Annotated[int, msgspec.Meta(ge=0)], -1, "value", "expected `int` >= 0"),
    (float, math.nan, "value", "is nan"),
    (float | None, math.nan, "value", "is nan"),
    (list[float], [1.0, math.inf], "value[1]", "is inf"),
    (str, "a\x00b", "value", "holds a NUL"),
    (list[str], ["x", "a\x00b"], "value[1]", "holds a NUL"),
    (Line, Line("\ud800"), "value.sku", "lone surrogate"),
    (dict[str, int], {"a\x00": 1}, "value", "a key that holds a NUL"),
    (int, 10**4300, "value", "more than 4,300 digits"),
    (dict[str, Any], {"id": ID}, "value.id", "is UUID, but would reach the handler as str"),
    (dict[str, Any], {"c": Colour.RED}, "value.c", "is Colour, but would reach the handler as str"),
    (dict[str, Any], {"l": [Line("x")]}, "value.l[0]", "is Line, but would reach the handler as dict"),
    (list, [NOON], "value[0]", "is datetime, but would reach the handler as str"),
    (dict, {1: "x"}, "value[1]", "has no such key"),
    (dict[str, dict[str, Any]], {"a": {"b": {1: "x"}}}, "value.a.b[1]", "has no such key"),
    (list[int], object(), "value", "no JSON form"),
    (list[int], [object()], "value", "no JSON form"),
    (list[Any], [Plain(1)], "value", "no JSON form"),
    (Any, ID, "value", "is a UUID, which is not JSON"),
    (Any, {"a": [{1: 2}]}, "value.a[0]", "a key of type int"),
    (Any, {"at": NOON}, "value.at", "is a datetime"),
    (object, {1, 2}, "value", "is a set"),
    (JSON, [b"raw"], "value[0]", "is a bytes"),
    (Positive, -1, "value", "expected `object`, got `int`"),
]


@pytest.mark.parametrize(("hint", "value", "place", "words"), MISMATCHES, ids=lambda value: "case")
def test_a_mismatch_is_refused_at_enqueue(hint: object, value: object, place: str, words: str) -> None:
    error = refused(taking(hint).encode, (value,), {}, match=words, field=place)
    assert place in str(error)


@pytest.mark.parametrize("hint", [Any, list, list[Any], list[list[int]], Node], ids=lambda value: "case")
def test_circles_and_depth_are_refused(hint: object) -> None:
    deep: Any = []
    for _ in range(100):
        deep = [deep]
    circle: Any = []
    circle.append(circle)
    node = Node("x")
    node.children.append(node)
    for value in (node,) if hint is Node else (deep, circle):
        with pytest.raises(PayloadError, match=r"^handler: value"):
            taking(hint).encode((value,), {})


def test_a_list_with_twins_is_no_set() -> None:
    assert there_and_back(taking(set[int]), [1, 1, 2]) == {"value": {1, 2}}
    refused(taking(set[int]).encode, (["x"],), {}, match="expected `int`", field="value[0]")


def test_size() -> None:
    made = taking(str)
    assert made.encode(("x" * 10,), {}, limit=22) == '{"value":"xxxxxxxxxx"}'
    error = refused(made.encode, ("x" * 11,), {}, limit=22, match="23 bytes as JSON; the limit is 22", field="payload")
    assert "reference" in str(error)
    refused(taking(Any).encode, ("x" * 11,), {}, limit=22, match="23 bytes", field="payload")


# -- rows that do not fit


@pytest.mark.parametrize(
    ("hint", "payload", "place", "words"),
    [
        (int, {"value": "3"}, "value", "expected `int`, got `str`"),
        (UUID, {"value": "x"}, "value", "invalid UUID"),
        (UUID, {"value": None}, "value", "expected `uuid`, got `null`"),
        (datetime, {"value": "2026-03-08T12:00:00"}, "value", "with a timezone"),
        (Moment, {"value": {"at": "2026-03-08T12:00:00"}}, "value.at", "without a time zone"),
        (list[Line], {"value": [{"sku": "x"}, {"n": 1}]}, "value[1].sku", "missing required field"),
        (Colour, {"value": "secret"}, "value", "invalid enum value"),
        (Positive, {"value": {"n": 0}}, "payload", "which raised KeyError"),
        (Positive, {"value": {"n": -1}}, "value", "its own class refuses"),
        (int, {}, "value", "missing required argument: 'value'"),
        (int, {"value": 1, "valve": 2}, "valve", "unexpected argument 'valve'; did you mean 'value'?"),
        (Any, {"value": 1, "other": 2}, "other", "unexpected argument 'other'; its arguments are: value"),
        (Any, {}, "value", "missing required argument"),
        (int, None, None, "a JSON object, not null"),
        (int, [1], None, "a JSON object, not an array"),
        (int, "x", None, "a JSON object, not a string"),
        (int, 1, None, "a JSON object, not a number"),
        (Any, True, None, "a JSON object, not true or false"),
    ],
    ids=lambda value: "case",
)
def test_a_row_that_no_longer_fits(hint: object, payload: JSON, place: str | None, words: str) -> None:
    refused(taking(hint).decode, payload, match=words.replace("?", r"\?"), field=place)


def test_decode_does_not_share_the_payload() -> None:
    payload: dict[str, JSON] = {"value": 1}
    assert taking(Any).decode(payload) is not payload


# -- calls


def many(ctx: Context, a: int, b: str = "b", *, c: float, d: bool = False) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs", "values"),
    [
        ((1,), {"c": 1.5}, {"a": 1, "c": 1.5}),
        ((1, "x"), {"c": 1.5, "d": True}, {"a": 1, "b": "x", "c": 1.5, "d": True}),
        ((), {"c": 1.5, "a": 1}, {"a": 1, "c": 1.5}),
    ],
)
def test_bind(args: tuple[object, ...], kwargs: dict[str, object], values: dict[str, object]) -> None:
    made = arguments(many)
    assert made.bind(args, kwargs) == values
    assert there_and_back(made, *args, **kwargs) == values
    assert json.loads(made.encode((), values)) == json.loads(made.encode(args, kwargs))
    before = dict(kwargs)
    made.bind(args, kwargs)["new"] = 1
    assert kwargs == before


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "words"),
    [
        ((), {"c": 1.5}, "a", "missing required argument: 'a'; pass it"),
        ((), {}, "a", "missing required arguments: 'a', 'c'"),
        ((1,), {}, "c", "missing required argument: 'c'"),
        ((1, "x", 1.5), {}, None, "takes 2 positional arguments but 3 were given; its arguments are: a, b, c, d"),
        ((1,), {"a": 2, "c": 1.5}, "a", "multiple values for argument 'a'"),
        ((1,), {"c": 1.5, "dd": True}, "dd", "unexpected argument 'dd'; did you mean 'd'"),
        ((1,), {"c": 1.5, "z\n": True}, r"'z\n'", "unexpected argument"),
        ((1,), {"c": 1.5, "z" * 999: True}, "'" + "z" * 44 + "...", "unexpected argument"),
        ((1,), {"c": 1.5, "ctx": Context()}, "ctx", "fills 'ctx' itself"),
    ],
    ids=lambda value: "case",
)
def test_calls_that_do_not_fit(
    args: tuple[object, ...], kwargs: dict[str, object], field: str | None, words: str
) -> None:
    made = arguments(many, name="handler")
    refused(made.bind, args, kwargs, match=words, field=field)
    refused(made.encode, args, kwargs, match=words, field=field)


def test_defaults_stay_the_handlers() -> None:
    def handler(a: int = 1, at: datetime = NAIVE, lines: Sequence[Line] = (), odd: Any = Plain) -> None: ...

    made = arguments(handler)
    assert made.encode((), {}) == "{}"
    assert made.decode({}) == {}
    assert made.decode({"lines": [{"sku": "x"}]}) == {"lines": [Line("x")]}


def test_no_parameters() -> None:
    def handler() -> None: ...

    made = arguments(handler)
    assert (made.encode((), {}), made.decode({}), made.injected) == ("{}", {}, None)
    refused(made.decode, {"x": 1}, match="unexpected argument 'x'; its arguments are: none", field="x")


def test_names_that_are_words_elsewhere() -> None:
    def handler(self: int, items: list[int], type: str, fields: int = 0, values: int = 0, keys: int = 0) -> None: ...

    values = {"self": 1, "items": [2], "type": "t", "values": 3}
    assert there_and_back(arguments(handler), **values) == values


def test_extra_keyword_arguments_are_typed() -> None:
    def handler(ctx: Context, a: int, **rest: UUID) -> None: ...

    made = arguments(handler)
    values = {"a": 1, "x": ID, "y y": ID}
    assert there_and_back(made, **values) == values
    assert there_and_back(made, a=1) == {"a": 1}
    refused(made.encode, (1,), {"x": "no"}, match="invalid UUID", field="x")
    refused(made.encode, (1,), {"x": str(ID)}, match="is str, but would", field="x")
    refused(made.decode, {"a": 1, "x": 3}, match="expected `uuid`", field="x")
    refused(made.encode, (1,), {"ctx": ID}, match="fills 'ctx' itself", field="ctx")
    refused(made.decode, {"a": 1, "ctx": str(ID)}, match="fills 'ctx' itself", field="ctx")


def test_extra_keyword_arguments_of_any_kind() -> None:
    def handler(**rest: Any) -> None: ...

    made = arguments(handler)
    assert there_and_back(made, a=1, b=[None]) == {"a": 1, "b": [None]}
    refused(made.encode, (), {"x": ID}, match="is a UUID", field="x")


def test_extra_moments_must_be_aware() -> None:
    def handler(**rest: Moment) -> None: ...

    made = arguments(handler)
    assert there_and_back(made, x=Moment(NOON, [])) == {"x": Moment(NOON, [])}
    refused(made.encode, (), {"x": Moment(NAIVE, [])}, match="without a time zone", field="x.at")
    refused(made.decode, {"x": {"at": "2026-03-08T12:00:00"}}, match="without a time zone", field="x.at")


# -- the context


def first(ctx: Context, a: int) -> tuple[object, int]:
    return ctx, a


def only_positional(ctx: Context, /, a: int) -> tuple[object, int]:
    return ctx, a


def keyword(a: int, *, task: Context) -> tuple[object, int]:
    return task, a


def with_default(ctx: Context = None, a: int = 0) -> tuple[object, int]:  # type: ignore[assignment]
    return ctx, a


async def coroutine(ctx: Context, a: int) -> tuple[object, int]:
    return ctx, a


class Service:
    def method(self, ctx: Context, a: int) -> tuple[object, int]:
        return ctx, a

    def __call__(self, ctx: Context, a: int) -> tuple[object, int]:
        return ctx, a


def twice(function: Callable[..., T]) -> Callable[..., T]:
    @functools.wraps(function)
    def inner(*args: object, **kwargs: object) -> T:
        return function(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    ("handler", "injected"),
    [
        (first, "ctx"),
        (only_positional, "ctx"),
        (keyword, "task"),
        (with_default, "ctx"),
        (Service().method, "ctx"),
        (Service(), "ctx"),
        (twice(first), "ctx"),
        (twice(twice(keyword)), "task"),
        (functools.partial(keyword), "task"),
        (functools.partial(twice(first)), "ctx"),
    ],
    ids=lambda value: "case",
)
def test_the_context_is_injected(handler: Callable[..., object], injected: str) -> None:
    made = arguments(handler)
    context = Context()
    assert made.injected == injected
    args, kwargs = made.inject(context, there_and_back(made, a=7))
    assert handler(*args, **kwargs) == (context, 7)


def test_a_handler_need_not_take_the_context() -> None:
    def handler(a: int) -> int:
        return a

    made = arguments(handler)
    assert made.injected is None
    args, kwargs = made.inject(Context(), made.decode({"a": 3}))
    assert handler(*args, **kwargs) == 3  # type: ignore[arg-type]


def test_coroutines_are_read_like_functions() -> None:
    assert arguments(coroutine).injected == "ctx"


def test_a_bound_keyword_of_a_partial_has_a_default() -> None:
    made = arguments(functools.partial(many, c=1.5))
    assert there_and_back(made, a=1) == {"a": 1}


def test_the_name_is_the_actions_or_the_handlers() -> None:
    assert arguments(first).name == "first"
    assert arguments(first, name="shop.first").name == "shop.first"
    assert arguments(Service()).name == "Service"
    assert arguments(functools.partial(first)).name == "partial"


# -- annotations


def test_annotations_of_what_stands_around_the_handler() -> None:
    @dataclasses.dataclass
    class Local:
        n: int

    def handler(value: Local) -> Local:
        return Local(value.n)  # used here, so the closure knows it

    assert there_and_back(arguments(handler), Local(3)) == {"value": Local(3)}

    def unused(value: Local) -> None: ...

    with pytest.raises(ConfigError, match=r"'value' cannot be resolved.*'Local' is not known"):
        arguments(unused)
    assert there_and_back(arguments(unused, namespace=locals()), Local(3)) == {"value": Local(3)}


def test_the_context_may_be_imported_for_type_checkers_only() -> None:
    handler: dict[str, Any] = {}
    exec("def handler(ctx: 'Context', a: int): ...", handler)  # noqa: S102
    assert arguments(handler["handler"]).injected == "ctx"


def test_another_class_of_the_same_name_is_not_the_context() -> None:
    handler: dict[str, Any] = {"Context": int}
    exec("def handler(a: 'Context'): ...", handler)  # noqa: S102
    made = arguments(handler["handler"])
    assert made.injected is None
    assert made.decode({"a": 1}) == {"a": 1}


def test_an_unknown_return_annotation_does_not_matter() -> None:
    def handler(a: int) -> Elsewhere: ...

    assert there_and_back(arguments(handler), 1) == {"a": 1}


def positional_only(a: int, /) -> None: ...
def star(*items: int) -> None: ...
def second(a: int, ctx: Context) -> None: ...
def both(ctx: Context, *, other: Context) -> None: ...
def maybe(ctx: Context | None = None) -> None: ...
def starred(*ctx: Context) -> None: ...
def double_starred(**ctx: Context) -> None: ...
def elsewhere(a: int, b: Elsewhere) -> None: ...
def nonsense(a: int, b: 1 / 0) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("handler", "field", "words"),
    [
        (positional_only, "a", "'a' is positional-only.*remove the /"),
        (star, "items", r"\*items has no names.*take a list"),
        (second, "ctx", "'ctx' is annotated Context; put it first, or make it keyword-only"),
        (both, "other", "both 'ctx' and 'other' are annotated Context; keep one"),
        (maybe, "ctx", "annotate it exactly Context"),
        (starred, "ctx", "takes many values"),
        (double_starred, "ctx", "takes many values"),
        (elsewhere, "b", "'b' cannot be resolved.*'Elsewhere' is not known.*TYPE_CHECKING"),
        (nonsense, "b", "'b' cannot be resolved.*division by zero"),
    ],
    ids=lambda value: "case",
)
def test_signatures_that_cannot_work(handler: Callable[..., object], field: str, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^shop.x: .*{words}") as caught:
        arguments(handler, name="shop.x")
    assert caught.value.field == field
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (Plain, "annotated .*Plain, which has no JSON form; annotate it with"),
        (list[Plain], "annotated .*Plain"),
        (Plain | None, "annotated .*Plain"),
        (dict[str, tuple[int, Plain]], "annotated .*Plain"),
        (Path, "annotated Path"),
        (complex, "annotated complex"),
        (Callable[[int], int], "annotated .*Callable"),
        (Iterable[int], "annotated .*Iterable"),
        (type[int], "annotated type"),
        (threading.Thread, "annotated Thread"),
        (msgspec.Raw, "no JSON form"),
        (UUID | str, "cannot be used"),
        (Union[Line, Money], "cannot be used"),  # noqa: UP007
        (list[Annotated[datetime, msgspec.Meta(tz=False)]], "naive datetime; take an aware one"),
        ("list[", "cannot be resolved"),
        ("Nowhere", "'Nowhere' is not known"),
        (typing.ForwardRef("Nowhere"), "'Nowhere' is not known"),
    ],
    ids=lambda value: "case",
)
def test_annotations_that_cannot_work(hint: object, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^handler: .*{words}") as caught:
        taking(hint)
    assert caught.value.field == "value"
    assert "'value'" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_handler_without_a_signature() -> None:
    with pytest.raises(ConfigError, match="signature cannot be read"):
        arguments(dict)


def test_threads_may_share_one() -> None:
    made = arguments(shop)
    call = {"order": ID, "at": NOON, "total": Decimal(1), "wait": timedelta(1), "lines": [Line("x")]}
    wrong: list[object] = []

    def work() -> None:
        wrong.extend(back for _ in range(200) if (back := there_and_back(made, **call)) != call)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
