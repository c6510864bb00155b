"""A handler's arguments on their way through JSON: bound by its signature, converted by its annotations.

At enqueue: call → values by name → JSON, and back again to see that they arrive as they were passed. In the
worker: JSON → values by name → call. Conversions are strict: "3" is no int at either end. Defaults stay the
handler's: what was not passed is not stored.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Final, Literal, NotRequired, TypedDict, Union

import msgspec
from msgspec import inspect as shapes

from . import payload as json_payload
from .errors import ConfigError, PayloadError
from .payload import JSON, PAYLOAD_LIMIT

__all__ = ["Arguments"]

_Kind: Final = inspect.Parameter
_UNSUPPORTED: Final = (shapes.CustomType, shapes.RawType, shapes.ExtType)
_ANNOTATE: Final = (
    "annotate it with JSON types, UUID, an aware datetime, date, time, timedelta, Decimal, bytes, an Enum, "
    "a dataclass, TypedDict, NamedTuple or msgspec.Struct, or containers of them; unannotated it takes plain JSON"
)
_MISSING: Final = object()
_PLACE: Final = re.compile(r" - at `(?:key` in `)?\$?([^`]*)`$")
_NAMED: Final = re.compile(r"Object (?:missing required|contains unknown) field `([^`]*)`$")
_OUR_WORDS: Final = ("Expected ", "Invalid ", "Object ", "Integer ", "Number ", "Timestamp ", "Duration ")


class Arguments:
    """What one handler takes. Made once, when the action is declared; safe to share between threads.

    name: what error texts call the action.
    injected: the parameter that receives the context, or None.
    """

    __slots__ = (
        "_by_position",
        "_extra",
        "_hints",
        "_naive",
        "_names",
        "_plain",
        "_positional",
        "_read",
        "_required",
        "_shape",
        "injected",
        "name",
    )

    def __init__(
        self,
        name: str,
        *,
        hints: dict[str, Any],
        required: frozenset[str],
        positional: tuple[str, ...],
        extra: Any,
        naive: bool,
        injected: str | None,
        by_position: bool,
    ) -> None:
        self.name = name
        self.injected = injected
        self._by_position = by_position
        self._hints = hints
        self._names = frozenset(hints)
        self._required = required
        self._positional = positional
        self._extra = extra
        self._naive = naive
        self._plain = all(hint is Any for hint in (*hints.values(), extra or Any))
        self._read = msgspec.json.Decoder(Any if self._plain else _dict_shape(hints, required)).decode
        self._shape = _struct_shape(hints, required)

    @classmethod
    def of(
        cls,
        handler: Callable[..., object],
        *,
        context_type: type,
        name: str | None = None,
        namespace: Mapping[str, object] | None = None,
    ) -> Arguments:
        """Read a handler's signature and annotations.

        The parameter annotated exactly `context_type` is the worker's to fill; it stands first or is
        keyword-only. `name` is the action's (default: the handler's). `namespace` helps to resolve annotations
        of handlers made inside a function. ConfigError, naming handler and parameter, for what cannot work.
        """
        name = name or getattr(handler, "__name__", None) or type(handler).__name__
        parameters = _parameters(handler, name)
        hints = {parameter.name: _hint(handler, parameter, context_type, namespace, name) for parameter in parameters}
        injected = _injected(parameters, hints, context_type, name)
        taken = [parameter for parameter in parameters if parameter.name != injected]
        naive = [_check_parameter(parameter, hints[parameter.name], context_type, name) for parameter in taken]
        extra = [_aware(hints[parameter.name]) for parameter in taken if parameter.kind is _Kind.VAR_KEYWORD]
        named = [parameter for parameter in taken if parameter.kind is not _Kind.VAR_KEYWORD]
        return cls(
            name,
            hints={parameter.name: _aware(hints[parameter.name]) for parameter in named},
            required=frozenset(parameter.name for parameter in named if parameter.default is _Kind.empty),
            positional=tuple(parameter.name for parameter in named if parameter.kind is not _Kind.KEYWORD_ONLY),
            extra=extra[0] if extra else None,
            naive=any(naive),
            injected=injected,
            by_position=bool(parameters)
            and parameters[0].name == injected
            and parameters[0].kind is not _Kind.KEYWORD_ONLY,
        )

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """A call as the user writes it, without the context → values by name. Fills no defaults in."""
        if not args:
            values = dict(kwargs)
        elif len(args) > len(self._positional):
            raise self._error(
                f"takes {len(self._positional)} positional arguments but {len(args)} were given; {self._usage()}", None
            )
        else:
            values = dict(zip(self._positional, args, strict=False))
            twice = values.keys() & kwargs.keys()
            if twice:
                first = min(twice)
                raise self._error(f"got multiple values for argument '{first}'; pass it once", first)
            values.update(kwargs)
        self._check_names(values)
        return values

    def encode(self, args: tuple[object, ...], kwargs: Mapping[str, object], *, limit: int = PAYLOAD_LIMIT) -> str:
        """A call → the payload as JSON text, at most `limit` bytes.

        PayloadError where an argument is missing or unknown, is not what the annotation says, would arrive
        as something else, or is not JSON; its `field` is the place, such as `lines[0].sku`.
        """
        return self._encode(self.bind(args, kwargs), limit)

    def decode(self, payload: JSON) -> dict[str, object]:
        """A payload as it was read from the row → values by name. PayloadError where it does not fit the handler."""
        if type(payload) is not dict:
            raise self._error(f"takes its arguments as a JSON object, not {_json_name(payload)}; {self._usage()}", None)
        self._check_names(payload)
        if self._plain:
            return dict(payload)
        read = self._convert(payload, self._shape, "")
        values = {key: getattr(read, key) for key in self._hints if key in payload}
        if self._extra is not None:
            for key in payload.keys() - self._names:
                values[key] = self._convert(payload[key], self._extra, _short(key))
        if self._naive:
            self._check_naive(values, "")
        return values

    def inject(self, context: object, values: dict[str, object]) -> tuple[tuple[object, ...], dict[str, object]]:
        """What to call the handler with: `handler(*args, **kwargs)`, the context in its place."""
        if self.injected is None:
            return (), values
        if self._by_position:
            return (context,), values
        return (), {self.injected: context, **values}

    def _encode(self, values: dict[str, object], limit: int) -> str:
        # What comes back equal is right; everything else, and every refusal, is looked at in detail.
        data = json_payload.written(values)
        back = self._read_back(data)
        if data is None or back is None or len(data) > limit:
            built = {key: self._built(key, value) for key, value in values.items()}
            return json_payload.encode(built, limit=limit, action=self.name)
        if not _equal(back, values):
            for key, value in values.items():
                if key not in back or not _equal(back[key], value):
                    self._built(key, value)
        if self._naive:
            self._check_naive(values, "")
        return data.decode()

    def _read_back(self, data: bytes | None) -> dict[str, object] | None:
        try:
            return None if data is None else self._read(data)
        except Exception:  # noqa: BLE001  the detailed look finds it again, and says where
            return None

    def _built(self, key: str, value: object) -> object:
        hint = self._hints.get(key, self._extra)
        if hint is Any:
            json_payload.check(value, place=key, depth=1, action=self.name)
            return value
        try:
            built = msgspec.to_builtins(value, str_keys=True, enc_hook=json_payload.exact)
        except RecursionError:
            raise self._error(f"{key} contains itself or is nested too deep; flatten it", key) from None
        except Exception as error:  # noqa: BLE001  a class of the caller's own is being read
            cause = None if isinstance(error, TypeError | msgspec.MsgspecError) else error
            raise self._error(f"{key} holds something with no JSON form; {_what(value, hint)}", key) from cause
        json_payload.check(built, place=key, depth=1, action=self.name)
        back = self._convert(built, hint, key)
        if self._naive:
            self._check_naive(back, key)
        lost = _difference(value, back, key)
        if lost is not None:
            place, passed, arrives = lost
            raise self._error(_changed(place, passed, arrives), place)
        return built

    def _convert(self, value: object, hint: Any, place: str) -> Any:
        try:
            return msgspec.convert(value, hint, str_keys=True)
        except msgspec.ValidationError as error:
            reason, where = _reading(str(error), place)
            raise self._error(f"{where}: {reason}; pass what the handler's annotation says", where) from None
        except RecursionError:
            raise self._error(f"{place or 'payload'} is nested too deep; flatten it", place or None) from None
        except Exception as error:
            where, kind = place or "payload", type(error).__name__
            raise self._error(
                f"{where} was refused by its own class, which raised {kind}; mend it",
                where,
            ) from error

    def _check_naive(self, value: object, place: str) -> None:
        plain = msgspec.to_builtins(value, builtin_types=(datetime,), str_keys=True, enc_hook=json_payload.exact)
        for where, found in _leaves(plain, place):
            if isinstance(found, datetime) and found.utcoffset() is None:
                raise self._error(f"{where} is a datetime without a time zone; pass an aware one", where)

    def _check_names(self, values: Mapping[str, object]) -> None:
        names = values.keys()
        if self._required <= names and (names <= self._names or self._extra is not None) and self.injected not in names:
            return
        if self.injected in names:
            raise self._error(f"fills '{self.injected}' itself; do not pass it", self.injected)
        if self._extra is None:
            for key in values:
                if key not in self._names:
                    raise self._error(f"got an unexpected argument '{_short(key)}'; {self._usage(key)}", _short(key))
        missing = [key for key in self._hints if key in self._required and key not in names]
        listed = ", ".join(f"'{key}'" for key in missing)
        raise self._error(f"missing required {_plural('argument', len(missing))}: {listed}; pass it", missing[0])

    def _usage(self, wrong: str | None = None) -> str:
        close = difflib.get_close_matches(str(wrong), self._names, 1) if wrong is not None else []
        if close:
            return f"did you mean '{close[0]}'?"
        return f"its arguments are: {', '.join(self._hints) or 'none'}"

    def _error(self, text: str, field: str | None) -> PayloadError:
        return PayloadError(f"{self.name}: {text}", field=field)


# -- the signature, read once


def _parameters(handler: Callable[..., object], name: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(handler).parameters.values())
    except (TypeError, ValueError, NameError) as error:
        raise ConfigError(f"{name}: its signature cannot be read ({_line(error)}); use def or async def") from None


def _injected(
    parameters: list[inspect.Parameter], hints: Mapping[str, Any], context_type: type, name: str
) -> str | None:
    found = [parameter for parameter in parameters if hints[parameter.name] is context_type]
    if not found:
        return None
    if len(found) > 1:
        raise ConfigError(
            f"{name}: both '{found[0].name}' and '{found[1].name}' are annotated {context_type.__name__}; keep one",
            field=found[1].name,
        )
    context = found[0]
    if context is not parameters[0] and context.kind is not _Kind.KEYWORD_ONLY:
        raise ConfigError(
            f"{name}: '{context.name}' is annotated {context_type.__name__}; put it first, or make it keyword-only",
            field=context.name,
        )
    if context.kind in (_Kind.VAR_POSITIONAL, _Kind.VAR_KEYWORD):
        raise ConfigError(
            f"{name}: '{context.name}' takes many values, the {context_type.__name__} is one; remove the asterisk",
            field=context.name,
        )
    return context.name


def _dict_shape(hints: dict[str, Any], required: frozenset[str]) -> Any:
    """For reading back: straight into a dict, without what is missing. Names that it does not know are dropped."""
    make: Any = TypedDict  # mypy reads only literal ones
    return make("Arguments", {key: hint if key in required else NotRequired[hint] for key, hint in hints.items()})


def _struct_shape(hints: dict[str, Any], required: frozenset[str]) -> Any:
    """For conversion in the worker: msgspec converts to a Struct faster than to a TypedDict."""
    fields = [(key, hint) if key in required else (key, hint, None) for key, hint in hints.items()]
    return msgspec.defstruct("Arguments", fields, kw_only=True)


_REFUSED_KINDS: Final[Mapping[object, str]] = {
    _Kind.VAR_POSITIONAL: "*{name} has no names for its values, and a payload is by name; take a list instead",
    _Kind.POSITIONAL_ONLY: "'{name}' is positional-only, and a payload is by name; remove the / from the signature",
}


def _check_parameter(parameter: inspect.Parameter, hint: Any, context_type: type, name: str) -> bool:
    """Refuse what cannot work; else say whether a datetime is hidden in a class, where `_aware` does not reach."""
    refused = _REFUSED_KINDS.get(parameter.kind)
    if refused is not None:
        raise ConfigError(f"{name}: {refused.format(name=parameter.name)}", field=parameter.name)
    if context_type in typing.get_args(hint):
        raise ConfigError(
            f"{name}: '{parameter.name}' is the {context_type.__name__} or something else; "
            f"annotate it exactly {context_type.__name__}",
            field=parameter.name,
        )
    try:
        found = list(_inside(shapes.type_info(_aware(hint))))
        msgspec.json.Decoder(_aware(hint))
    except Exception as error:  # noqa: BLE001  msgspec raises what a class's own annotations raise
        raise ConfigError(
            f"{name}: the annotation of '{parameter.name}' cannot be used ({_line(error)}); {_ANNOTATE}",
            field=parameter.name,
        ) from None
    for shape in found:
        if isinstance(shape, _UNSUPPORTED):
            kind = getattr(shape, "cls", type(shape))
            raise ConfigError(
                f"{name}: '{parameter.name}' is annotated {kind.__qualname__}, which has no JSON form; {_ANNOTATE}",
                field=parameter.name,
            )
        if isinstance(shape, shapes.DateTimeType) and shape.tz is False:
            raise ConfigError(
                f"{name}: '{parameter.name}' asks for a naive datetime; take an aware one", field=parameter.name
            )
    return any(isinstance(shape, shapes.DateTimeType) and shape.tz is None for shape in found)


def _hint(
    handler: Callable[..., object],
    parameter: inspect.Parameter,
    context_type: type,
    namespace: Mapping[str, object] | None,
    name: str,
) -> Any:
    if parameter.annotation is _Kind.empty:
        return Any
    function = _function(handler)
    known = getattr(function, "__globals__", {})
    local = {**_closure(function), **(namespace or {})}
    # Tools move imports that only annotations use under TYPE_CHECKING; ours is known anyway.
    local.setdefault(context_type.__name__, known.get(context_type.__name__, context_type))

    def carrier() -> None: ...

    carrier.__annotations__ = {parameter.name: parameter.annotation}
    try:
        return typing.get_type_hints(carrier, known, local, include_extras=True)[parameter.name]
    except NameError as error:
        what = f"{error.name!r} is not known when the module runs"
        do = "import it outside TYPE_CHECKING, or define it at module level"
    except Exception as error:  # noqa: BLE001  an annotation is code: it may raise anything
        what, do = _line(error), "write one that can be evaluated"
    raise ConfigError(
        f"{name}: the annotation of '{parameter.name}' cannot be resolved ({what}); {do}", field=parameter.name
    )


def _function(handler: Callable[..., object]) -> Callable[..., object]:
    """Where the annotations were written: below partial(), wraps(), methods and callable objects."""
    function: Any = handler
    while isinstance(function, functools.partial) or hasattr(function, "__wrapped__"):
        function = function.func if isinstance(function, functools.partial) else function.__wrapped__
    if not hasattr(function, "__globals__"):
        function = inspect.unwrap(type(function).__call__)
    return function  # type: ignore[no-any-return]


def _closure(function: Any) -> dict[str, object]:
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    found = {}
    for name, cell in zip(names, getattr(function, "__closure__", None) or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _aware(hint: Any) -> Any:
    """The same annotation with every datetime in it required to have a time zone; `object` reads as Any."""
    if hint is datetime:
        return Annotated[datetime, msgspec.Meta(tz=True)]
    if hint is object:
        return Any
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (None, Annotated, Literal):
        return hint
    inner = tuple(_aware(arg) for arg in args)
    if inner == args:
        return hint
    return Union[inner] if origin is types.UnionType else origin[inner]  # noqa: UP007  built at run time


def _inside(shape: shapes.Type, seen: set[int] | None = None) -> Iterator[shapes.Type]:
    """A type and all types in it, each once: classes may contain themselves."""
    seen = set() if seen is None else seen
    if id(shape) in seen:
        return
    seen.add(id(shape))
    yield shape
    for name in shape.__struct_fields__:
        value = getattr(shape, name)
        for part in value if isinstance(value, tuple) else (value,):
            inner = part.type if isinstance(part, shapes.Field) else part
            if isinstance(inner, shapes.Type):
                yield from _inside(inner, seen)


# -- one call


def _difference(passed: object, arrives: object, place: str) -> tuple[str, object, object] | None:
    """The first place where the handler would get something else than what was passed."""
    if _equal(passed, arrives):
        return None
    parts = _parts(passed, arrives)
    if parts is None:
        return None if _same_without_eq(passed, arrives) else (place, passed, arrives)
    for step, one, other in parts:
        found = _difference(one, other, place + step)
        if found is not None:
            return found
    return None


def _parts(passed: Any, arrives: Any) -> list[tuple[str, object, object]] | None:
    """What two values of one shape are made of, pairwise; None where the shapes differ or nothing is inside."""
    if isinstance(arrives, dict):
        if not isinstance(passed, Mapping):
            return None
        return [(_key(key), passed[key], arrives.get(key, _MISSING)) for key in passed]
    if isinstance(arrives, set | frozenset) or isinstance(passed, set | frozenset):
        return [] if _equal(_as_set(passed), _as_set(arrives)) else None
    if isinstance(arrives, list | tuple):
        if not isinstance(passed, list | tuple) or len(passed) != len(arrives):
            return None
        return [(f"[{index}]", *pair) for index, pair in enumerate(zip(passed, arrives, strict=True))]
    names = _fields(arrives)
    if type(passed) is not type(arrives) or not names:
        return None
    return [(f".{name}", getattr(passed, name, None), getattr(arrives, name, None)) for name in names]


def _fields(value: object) -> tuple[str, ...]:
    if dataclasses.is_dataclass(value):
        return tuple(field.name for field in dataclasses.fields(value))
    attrs = getattr(type(value), "__attrs_attrs__", ())
    return tuple(getattr(type(value), "__struct_fields__", ())) or tuple(field.name for field in attrs)


def _equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # noqa: BLE001  somebody's __eq__; Decimal("sNaN")
        return False


def _same_without_eq(passed: object, arrives: object) -> bool:
    if isinstance(arrives, Decimal) and type(passed) in (int, float):
        return _equal(Decimal(repr(passed)), arrives)
    return type(passed) is type(arrives) and type(arrives).__eq__ is object.__eq__


def _as_set(value: Any) -> object:
    try:
        return frozenset(value)
    except TypeError:
        return value


def _leaves(value: object, place: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, place + _key(key) if place else str(key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{place}[{index}]")
    else:
        yield place, value


def _key(key: object) -> str:
    if isinstance(key, str) and key.isidentifier():
        return f".{_short(key)}"
    return f"[{_short(key)}]"


def _short(key: object) -> str:
    text = key if isinstance(key, str) and key.isprintable() and len(key) <= 40 else ascii(key)
    return text if len(text) <= 48 else text[:45] + "..."


def _changed(place: str, passed: object, arrives: object) -> str:
    if arrives is _MISSING:
        return f"{place} would not reach the handler, whose annotation has no such key; remove it, or annotate it"
    one, other = type(passed).__name__, type(arrives).__name__
    if one == other:
        return f"{place} would not arrive as it is, though as {other}; pass it in a form that JSON keeps exactly"
    return f"{place} is {one}, but would reach the handler as {other}; pass {other}, or annotate it as {one}"


def _what(value: object, hint: Any) -> str:
    wanted = getattr(hint, "__name__", None) or str(hint)
    return f"it is {type(value).__name__}, the handler takes {wanted}: pass that"


def _reading(text: str, place: str) -> tuple[str, str]:
    """msgspec's message → a reason without any value in it, and the place it speaks of."""
    match = _PLACE.search(text)
    inner = match[1] if match else ""
    reason = text[: match.start()] if match else text
    where = (place + inner) if place else inner.lstrip(".")
    named = _NAMED.match(reason)
    if named:
        where = f"{where}.{named[1]}" if where else named[1]
    if not reason.startswith(_OUR_WORDS):
        # A ValueError of a class's own, which may quote the payload.
        return "its own class refuses the value", where or "payload"
    reason = re.sub(r" '.*'$", "", reason, flags=re.DOTALL)
    return reason[0].lower() + reason[1:], where or "payload"


def _json_name(value: object) -> str:
    names = {type(None): "null", bool: "true or false", str: "a string", list: "an array"}
    return names.get(type(value), "a number")


def _plural(word: str, count: int) -> str:
    return word if count == 1 else word + "s"


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text[:157] + "..." if len(text) > 160 else text or type(error).__name__
