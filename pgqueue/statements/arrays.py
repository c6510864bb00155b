"""Arrays as parameters, written as text here: the driver's own dumper makes a Python call or more per element."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.sql.elements import ColumnElement


def array(name: str, kind: Any) -> ColumnElement[Any]:
    """A bound array of that type. None stands for one of NULLs alone: `unnest` fills up the shorter ones."""
    kind = sa.types.to_instance(kind)
    return sa.cast(bound(name, kind), ARRAY(kind))


def bound(name: str, kind: Any) -> sa.BindParameter[Any]:
    """The parameter alone, for `text()` that has the cast in it."""
    kind = sa.types.to_instance(kind)
    return sa.bindparam(name, type_=_WRITTEN.get(type(kind)) or ARRAY(kind))


class _Written(sa.types.TypeDecorator[Any]):
    impl = sa.Text
    cache_ok = True

    def __init__(self, write: Callable[[Iterable[Any]], str]) -> None:
        super().__init__()
        self.write = write

    def process_bind_param(self, value: Any, dialect: object) -> str | None:
        del dialect
        return None if value is None else "{" + self.write(value) + "}"


def _uuids(values: Iterable[UUID]) -> str:
    return ",".join([f"{value.int:032x}" for value in values])


def text_array(values: Iterable[str]) -> str:
    """A text[] as text, for an array of arrays: `unnest` would flatten it."""
    return "{" + _texts(values) + "}"


def _texts(values: Iterable[str | None]) -> str:
    return ",".join(["null" if value is None else _quoted(value) for value in values])


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _numbers(values: Iterable[int | None]) -> str:
    return ",".join(["null" if value is None else str(value) for value in values])


def _instants(values: Iterable[datetime | None]) -> str:
    return ",".join(["null" if value is None else value.isoformat() for value in values])


def _booleans(values: Iterable[bool | None]) -> str:
    return ",".join(["null" if value is None else "t" if value else "f" for value in values])


_WRITTEN: Mapping[type[Any], _Written] = {
    sa.Uuid: _Written(_uuids),
    sa.Text: _Written(_texts),
    sa.SmallInteger: _Written(_numbers),
    sa.Integer: _Written(_numbers),
    sa.DateTime: _Written(_instants),
    sa.Boolean: _Written(_booleans),
}
