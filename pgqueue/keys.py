"""What may be a name, a key, a number, a duration or an instant: checked before anything reaches SQL.

Every check returns the value that it accepts (durations as `timedelta`, instants in UTC) and raises
`InputError` otherwise. The same limits stand as CHECK constraints in the schema, for other SQL clients.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Final, TypeAlias
from uuid import UUID

from .errors import InputError

__all__ = [
    "NAME_LIMIT",
    "TEN_YEARS",
    "Duration",
    "boot_update_dedupe_key",
    "check_choice",
    "check_duration",
    "check_id",
    "check_instant",
    "check_int",
    "check_key",
    "check_name",
    "check_names",
    "check_schema",
    "format_duration",
    "parse_duration",
    "refuse",
    "shown",
    "workflow_dedupe_key",
]

Duration: TypeAlias = timedelta | float
"""How a person writes a duration in Python; a number means seconds."""

NAME_LIMIT: Final = 512
"""Bytes of UTF-8 that a name or a key may have."""

NAMES_LIMIT: Final = 1024
"""Bytes that the names of one list may have together: an entry of a B-tree holds them all."""

TEN_YEARS: Final = timedelta(days=3652)
"""The longest duration that any setting or option takes."""

_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9998
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f]")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_MICROSECOND: Final = timedelta(microseconds=1)

_UNITS: Final = {
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_NUMBER: Final = r"[0-9]{1,12}(?:\.[0-9]{1,9})?"
_PLAIN: Final = re.compile(_NUMBER)
_PARTS: Final = re.compile("".join(f"(?:({_NUMBER}){unit})?" for unit in _UNITS))


def shown(value: object, *, width: int = 40) -> str:
    """A value as an error text may quote it: one line of ASCII, at most `width` characters; never raises."""
    if type(value) not in (str, int, float, bool, type(None)):
        return f"a {type(value).__name__}"
    # The cut comes before ascii(): a megabyte of text, or an integer too long to print, must cost nothing.
    if type(value) is int and value.bit_length() > 200:
        return "a very large number"
    text = ascii(value[: width + 1] if type(value) is str else value)
    return text if len(text) <= width else text[: width - 3] + "..."


def check_name(value: object, *, field: str, limit: int = NAME_LIMIT) -> str:
    """A name (queue, agent, account, action …): str, not empty, at most `limit` bytes, no control characters."""
    if not isinstance(value, str):
        raise refuse(field, f"must be a str, not {shown(value)}", "pass text")
    if not value:
        raise refuse(field, "is empty", "give at least one character, or leave it out")
    if _SURROGATE.search(value):
        raise refuse(field, f"holds a lone surrogate: {shown(value)}", "pass text that UTF-8 can encode")
    if _CONTROL.search(value):
        raise refuse(field, f"holds a control character: {shown(value)}", "remove it")
    size = len(value.encode())
    if size > limit:
        raise refuse(field, f"has {size:,} bytes; the limit is {limit:,}", "shorten it, or pass a hash of it")
    return value


def check_key(value: object, *, field: str = "dedupe_key") -> str:
    """A dedupe key: the rule of names. Keys are compared byte by byte: é in two Unicode forms is two keys."""
    return check_name(value, field=field)


def check_names(value: object, *, field: str) -> tuple[str, ...]:
    """Names, each once, in order: at most 1,024 bytes together. Any iterable but one string."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise refuse(field, f"must be a sequence of names, not {shown(value)}", "write [name]")
    names = tuple(sorted({check_name(name, field=field) for name in value}))
    size = sum(len(name.encode()) for name in names)
    if size > NAMES_LIMIT:
        raise refuse(field, f"has {size:,} bytes; the limit is {NAMES_LIMIT:,}", "name fewer, or shorter ones")
    return names


def check_id(value: object, *, field: str = "task_id") -> UUID:
    """A task's id, as a `uuid.UUID`."""
    if not isinstance(value, UUID):
        raise refuse(field, f"must be a uuid.UUID, not {shown(value)}", "pass UUID(text)")
    return value


def check_choice(value: object, *, field: str, choices: Sequence[str]) -> str:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise refuse(field, f"cannot be {shown(value)}", f"give one of: {', '.join(choices)}")
    return value


def workflow_dedupe_key(workflow: str | UUID, index: int) -> str:
    """`workflow:<workflow>:<index>`: the dedupe key of a workflow's step, counted from 0.

    workflow: its id; a UUID is written with its dashes, as ids are everywhere here. InputError for an empty id, a
    negative index, and a key of more than 512 bytes.
    """
    name = str(workflow) if isinstance(workflow, UUID) else check_name(workflow, field="workflow")
    return check_key(f"workflow:{name}:{check_int(index, field='index', low=0, high=2**31 - 1)}")


def boot_update_dedupe_key(session: str | UUID) -> str:
    """`boot-update:<session>`: the dedupe key of what an agent does once after it has started.

    session: the id of the agent's process, the same over all its connections. InputError for an empty id, and a key of
    more than 512 bytes.
    """
    return check_key(f"boot-update:{session if isinstance(session, UUID) else check_name(session, field='session')}")


def check_schema(value: object, *, field: str = "schema") -> str:
    """The name of a PostgreSQL schema that needs no quotes: `[a-z_][a-z0-9_]*`, at most 63 characters."""
    if not isinstance(value, str) or not _SCHEMA.fullmatch(value):
        raise refuse(
            field,
            f"cannot be {shown(value)}",
            "use lower-case letters, digits and _, not a digit first, at most 63 characters",
        )
    if value.startswith("pg_") or value == "information_schema":
        raise refuse(field, f"cannot be {shown(value)}, which belongs to PostgreSQL", "choose another name")
    return value


def check_int(value: object, *, field: str, low: int, high: int) -> int:
    """A whole number from `low` to `high`, both included. A bool is no number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise refuse(field, f"must be an int, not {shown(value)}", f"give a number from {low:,} to {high:,}")
    if not low <= value <= high:
        raise refuse(field, f"cannot be {shown(int(value))}", f"give a number from {low:,} to {high:,}")
    return int(value)


def check_duration(value: object, *, field: str, low: Duration = 0, high: Duration = TEN_YEARS) -> timedelta:
    """A duration from `low` to `high`, both included, in seconds or as a timedelta."""
    shortest, longest = _as_timedelta(low), _as_timedelta(high)
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise refuse(field, f"must be a duration, not {shown(value)}", _range(shortest, longest))
    elif 0 <= value <= longest.total_seconds():
        duration = timedelta(seconds=value)
    else:  # NaN too; and the conversion would overflow
        raise refuse(field, f"cannot be {shown(value)} seconds", _range(shortest, longest))
    if not shortest <= duration <= longest:
        raise refuse(field, f"cannot be {format_duration(duration)}", _range(shortest, longest))
    return duration


def check_instant(value: object, *, field: str) -> datetime:
    """A point in time: an aware datetime of the years 1970 to 9998. Comes back in UTC."""
    if not isinstance(value, datetime):
        raise refuse(field, f"must be a datetime, not {shown(value)}", "pass one with a time zone")
    if value.utcoffset() is None:
        raise refuse(field, "has no time zone", "pass an aware datetime, such as datetime.now(UTC)")
    # The year is looked at twice: at the edge of the calendar the conversion itself overflows.
    if _FIRST_YEAR - 1 <= value.year <= _LAST_YEAR + 1 and 1 < value.year < 9999:
        instant = value.astimezone(UTC)
        if _FIRST_YEAR <= instant.year <= _LAST_YEAR:
            return instant
    raise refuse(field, f"is in the year {value.year}", f"give a time from {_FIRST_YEAR} to {_LAST_YEAR}")


def parse_duration(text: str, *, field: str) -> timedelta:
    """A duration as the command line takes it: `30s`, `5m`, `2h`, `1d`, `1h30m`, `1.5s`, `500ms`.

    Units stand from large to small, each once; a bare number is seconds.
    """
    plain = text.strip() if isinstance(text, str) else ""
    if _PLAIN.fullmatch(plain):
        plain += "s"
    match = _PARTS.fullmatch(plain)
    if not plain or match is None:
        raise refuse(field, f"cannot be {shown(text)}", "write it like 30s, 5m, 2h, 1d, 1h30m or 500ms")
    micro = sum(
        int(Decimal(number) * size)
        for number, size in zip(match.groups(), _UNITS.values(), strict=True)
        if number is not None
    )
    if micro > TEN_YEARS // _MICROSECOND:
        raise refuse(field, f"cannot be {shown(text)}", f"give at most {format_duration(TEN_YEARS)}")
    return timedelta(microseconds=micro)


def format_duration(value: timedelta) -> str:
    """A duration as `parse_duration` reads it back, exactly: `1h30m`, `1.5s`, `500ms`, `0s`; negative: `-5s`."""
    micro = value // _MICROSECOND
    sign, micro = ("-", -micro) if micro < 0 else ("", micro)
    if 0 < micro < _UNITS["s"]:
        return f"{sign}{_trimmed(micro, _UNITS['ms'])}ms"
    parts = []
    for unit in ("d", "h", "m"):
        count, micro = divmod(micro, _UNITS[unit])
        if count:
            parts.append(f"{count}{unit}")
    if micro or not parts:
        parts.append(f"{_trimmed(micro, _UNITS['s'])}s")
    return sign + "".join(parts)


def _trimmed(micro: int, unit: int) -> str:
    whole, rest = divmod(micro, unit)
    if not rest:
        return str(whole)
    return f"{whole}.{str(rest).rjust(len(str(unit)) - 1, '0').rstrip('0')}"


def _as_timedelta(value: Duration) -> timedelta:
    return value if isinstance(value, timedelta) else timedelta(seconds=value)


def _range(low: timedelta, high: timedelta) -> str:
    return f"give {format_duration(low)} to {format_duration(high)}, in seconds or as a timedelta"


def refuse(field: str, what: str, do: str) -> InputError:
    return InputError(f"{field} {what}; {do}", field=field)
