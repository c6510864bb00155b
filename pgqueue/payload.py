"""JSON in and out: what a `jsonb` column takes, and what Python can read back.

`encode` refuses before anything is sent, and names the place; `decode` meets rows that any SQL client may
have written. Nothing here pickles, imports by name or falls back to `str()`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from .config import Limits
from .errors import PayloadError

__all__ = ["DEPTH_LIMIT", "JSON", "PAYLOAD_LIMIT", "check", "decode", "encode", "exact", "written"]

if TYPE_CHECKING:
    JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
    """Any JSON value."""
else:
    # At run time an annotation that needs no conversion: a handler may say `data: JSON`.
    JSON = Any

PAYLOAD_LIMIT: Final = Limits.PAYLOAD_BYTES
"""Bytes of JSON text (compact, UTF-8) that a payload or a result may have."""

DEPTH_LIMIT: Final = 100
"""How many arrays and objects may stand inside each other."""

_DIGITS: Final = 4300  # what Python reads back, by default, without sys.set_int_max_str_digits
_INT_BOUND: Final = 10**_DIGITS
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_IDENTIFIER: Final = re.compile("[A-Za-z_][A-Za-z0-9_]{0,62}")
_PLACE_WIDTH: Final = 120  # of a path in an error text
_TOO_DEEP: Final = f"is nested deeper than {DEPTH_LIMIT} levels; flatten it, or send a reference to it"

_decode: Final = msgspec.json.Decoder().decode


def encode(value: object, *, field: str = "payload", limit: int = PAYLOAD_LIMIT, action: str | None = None) -> str:
    """`value` as JSON text for jsonb, at most `limit` bytes.

    Takes None, bool, int, float, str, sequences, and mappings with str keys. `field` and `action` are for the
    text of the PayloadError, whose `field` is the place: `$.orders[2].name`, or `field` itself where the whole
    value is meant.
    """
    data = written(value)
    if data is None or not _arrives(data, value):
        check(value, field=field, action=action)
        data = _dump(value, field, action)
    if len(data) > limit:
        raise _error(
            f"{field} has {len(data):,} bytes as JSON; the limit is {limit:,}: "
            "keep the data elsewhere and send a reference to it",
            field,
            action,
        )
    return data.decode()


def decode(text: str | bytes, *, field: str = "payload", action: str | None = None) -> JSON:
    """The value of one column of one row; PayloadError, and nothing else, where Python cannot hold it."""
    try:
        value = _read(text)
        deep = _is_deep(text if isinstance(text, bytes) else text.encode(), value)
    except RecursionError:
        value, deep = None, True
    except (ValueError, msgspec.MsgspecError) as error:
        number = isinstance(error, msgspec.ValidationError)
        what = "holds a number that Python cannot read" if number else "is not JSON"
        raise _error(f"{field} {what}; mend the row with SQL, or dismiss the task", field, action) from None
    if deep:
        raise _error(f"{field} {_TOO_DEEP}", field, action)
    return cast("JSON", value)


def check(
    value: object, *, field: str = "payload", place: str | None = None, depth: int = 0, action: str | None = None
) -> None:
    """Walk `value` and raise PayloadError at the first thing that is not JSON.

    The root is called `field`, and places in it `$.a[0]`; with `place` both begin with that name instead.
    `depth` is how many levels stand around it.
    """
    walk = _Walk()
    try:
        fault = walk.look(value, depth)
    except RecursionError:
        fault = _TOO_DEEP
    except Exception as error:  # noqa: BLE001  a Mapping or Sequence of somebody's own
        fault = f"cannot be read: it raised {type(error).__name__}; convert it to dict or list"
    if fault is None:
        return
    where = _join(place or "$", walk.path)
    if place is None:
        subject, where = (f"{field} {where}", where) if walk.path else (field, field)
    else:
        subject = where
    raise _error(f"{subject} {fault}", where, action)


def written(value: object) -> bytes | None:
    """`value` as JSON bytes where msgspec can write them, else None.

    It writes some things too kindly: NaN as null, 1 as a key, a UUID as a string. Whoever calls this reads
    the bytes back and compares.
    """
    try:
        data = _encode(value)
        return None if b"\\u0000" in data or _is_deep(data) else data
    except Exception:  # noqa: BLE001  whatever it was, the walk finds it again and says where
        return None


def exact(value: object) -> object:
    """The plain str, int or float of a subclass, which msgspec does not take though JSON does."""
    if isinstance(value, str):
        return "".join(str.__iter__(value))
    if isinstance(value, int):
        return int.__index__(value)
    if isinstance(value, float):
        return float.__float__(value)
    raise TypeError(type(value).__name__)


_encode: Final = msgspec.json.Encoder(enc_hook=exact).encode


def _arrives(data: bytes, value: object) -> bool:
    try:
        return bool(_decode(data) == value)
    except Exception:  # noqa: BLE001  somebody's __eq__, or an integer that is too long
        return False


def _is_deep(data: bytes, value: object = None) -> bool:
    # Nothing is deeper than it has brackets; only then is it worth a look, level by level.
    if data.count(b"[") + data.count(b"{") <= DEPTH_LIMIT:
        return False
    level: list[Any] = [_decode(data) if value is None else value]
    for _ in range(DEPTH_LIMIT):
        level = [
            item
            for container in level
            for item in (container.values() if type(container) is dict else container)
            if type(item) is dict or type(item) is list
        ]
        if not level:
            return False
    return True


def _read(text: str | bytes) -> object:
    try:
        return _decode(text)
    except msgspec.ValidationError as error:  # a number out of range, perhaps: the sign counts as a digit there
        try:
            value = json.loads(text)
            check(value)
        except ValueError:
            raise error from None
        return value


def _dump(value: object, field: str, action: str | None) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_builtin).encode()
    except (ValueError, RecursionError):
        # What `check` cannot see: a lower sys.set_int_max_str_digits, or a stack that was nearly full.
        raise _error(
            f"{field} cannot be written as JSON here; send large integers as strings, or recurse less",
            field,
            action,
        ) from None


def _builtin(value: object) -> object:
    # json asks only about what it does not know; `check` let nothing through but these two.
    return dict(value) if isinstance(value, Mapping) else list(cast("Sequence[object]", value))


def _error(text: str, field: str, action: str | None) -> PayloadError:
    return PayloadError(f"{action}: {text}" if action else text, field=field)


def _join(place: str, path: Sequence[str | int]) -> str:
    whole = place + "".join(_step(step) for step in path)
    return whole if len(whole) <= _PLACE_WIDTH else f"{whole[: _PLACE_WIDTH // 2]}…{whole[-_PLACE_WIDTH // 2 :]}"


def _step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    if _IDENTIFIER.fullmatch(step):
        return f".{step}"
    return f"[{json.dumps(step[:40])}]"


def _text_fault(value: str) -> str | None:
    if "\x00" in value:
        return "holds a NUL character, which PostgreSQL cannot store; remove it"
    if not value.isascii() and _SURROGATE.search(value):
        return "holds a lone surrogate, which UTF-8 cannot encode; decode the bytes with errors='replace'"
    return None


def _int_fault(value: int) -> str | None:
    if -_INT_BOUND < value < _INT_BOUND:
        return None
    return f"is an integer of more than {_DIGITS:,} digits; send it as a string"


def _float_fault(value: float) -> str | None:
    if math.isfinite(value):
        return None
    return f"is {float(value)}, which JSON does not have; send None or a string"


def _no_fault(value: object) -> str | None:
    return None


_SCALARS: Final[dict[type, Callable[[Any], str | None]]] = {
    str: _text_fault,
    bool: _no_fault,
    int: _int_fault,
    float: _float_fault,
    type(None): _no_fault,
}
_BYTES: Final = (bytes, bytearray, memoryview)
_ADVICE: Final = {
    "bytes": "send base64 text",
    "bytearray": "send base64 text",
    "memoryview": "send base64 text",
    "set": "send a sorted list",
    "frozenset": "send a sorted list",
    "datetime": "send its isoformat() with a time zone",
    "date": "send its isoformat()",
    "time": "send its isoformat()",
    "timedelta": "send its total_seconds()",
    "Decimal": "send it as a string",
    "UUID": "send it as a string",
    "generator": "send a list",
    "coroutine": "await it first",
}


class _Walk:
    """Looks for the first fault, keeping the path to where it is."""

    __slots__ = ("_around", "path")

    def __init__(self) -> None:
        self.path: list[str | int] = []
        self._around: set[int] = set()

    def look(self, value: object, depth: int) -> str | None:
        kind = type(value)
        scalar = _SCALARS.get(kind)
        if scalar is not None:
            return scalar(value)
        for base in kind.__mro__:
            if base in _SCALARS:
                return _SCALARS[base](value)
        if isinstance(value, Mapping | Sequence) and not isinstance(value, _BYTES):
            return self._enter(value, depth + 1)
        advice = _ADVICE.get(kind.__name__, "convert it to str, int, float, bool, None, list or dict")
        return f"is a {kind.__name__}, which is not JSON; {advice}, or annotate the handler's parameter with its type"

    def _enter(self, value: Mapping[object, object] | Sequence[object], depth: int) -> str | None:
        if id(value) in self._around:
            return "contains itself; break the circle"
        if depth > DEPTH_LIMIT:
            return _TOO_DEEP
        self._around.add(id(value))
        fault = self._keys(value, depth) if isinstance(value, Mapping) else self._items(enumerate(value), depth)
        self._around.discard(id(value))
        return fault

    def _keys(self, value: Mapping[object, object], depth: int) -> str | None:
        for key in value:
            if not isinstance(key, str):
                return f"has a key of type {type(key).__name__}; JSON keys are strings: use str(key)"
            fault = _text_fault(key)
            if fault is not None:
                return f"has a key that {fault}"
        return self._items(value.items(), depth)

    def _items(self, items: Any, depth: int) -> str | None:
        for step, item in items:
            self.path.append(step)
            fault = self.look(item, depth)
            if fault is not None:
                return fault
            self.path.pop()
        return None
