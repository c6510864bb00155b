"""Every default and limit, in one table; the docs print it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, TypeVar

from . import keys
from .errors import ConfigError, InputError

__all__ = ["DEFAULTS", "VERSION", "Defaults", "Limits", "WorkerConfig"]

VERSION = "0.1.0"

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class Defaults:
    """What holds where nothing was said."""

    queue: str = "default"
    schema: str = "pgqueue"
    max_attempts: int = 3
    lease: timedelta = timedelta(seconds=60)
    concurrency: int = 20
    poll: timedelta = timedelta(seconds=2)
    poll_deaf: timedelta = timedelta(seconds=0.5)
    maintenance: timedelta = timedelta(seconds=5)
    drain: timedelta = timedelta(seconds=30)
    cancel_grace: timedelta = timedelta(seconds=10)
    retention: timedelta = timedelta(days=7)
    orphan_grace: timedelta = timedelta(minutes=5)


DEFAULTS = Defaults()


class Limits:
    """Bounds on what may be asked for; the schema's CHECKs hold the same numbers."""

    PRIORITY = (-9, 9)
    MAX_ATTEMPTS = (1, 1000)
    NAME_BYTES = 512
    PAYLOAD_BYTES = 1024 * 1024
    RESULT_BYTES = 1024 * 1024
    ERROR_BYTES = 64 * 1024
    MESSAGE_BYTES = 4 * 1024
    BATCH = 1000
    PARENTS = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """How one worker behaves. Every duration is a timedelta or a number of seconds; out of range is a ConfigError.

    queues: which lines it serves, fairly in turn; empty: those that its app's actions name.
    offers: the conditions that hold here; it takes no task that requires another.
    concurrency: how many handlers run at once, 1 … 10,000.
    lease: how long a claim holds without a renewal; renewed every third of it.
    poll: how long an idle worker sleeps when nothing wakes it (half a second where it cannot LISTEN).
    listen: wake up by NOTIFY; off, or where the connection cannot (a pooler), it polls.
    drain: after the first signal, how long running handlers may go on before they are released.
    cancel_grace: how long a cancelled or timed-out handler may unwind.
    maintenance: how often, at least, the reaper looks.
    burst: stop when nothing is due.
    name: what leases show as their owner; default host:pid plus a few random digits.
    batch: how many tasks one claim or settle takes at the most, 1 … 1,000.
    retention: how long completed and cancelled tasks are kept; None or "off": nothing is pruned here.
    """

    queues: tuple[str, ...] = ()
    offers: tuple[str, ...] = ()
    concurrency: int = DEFAULTS.concurrency
    lease: timedelta = DEFAULTS.lease
    poll: timedelta = DEFAULTS.poll
    listen: bool = True
    drain: timedelta = DEFAULTS.drain
    cancel_grace: timedelta = DEFAULTS.cancel_grace
    maintenance: timedelta = DEFAULTS.maintenance
    burst: bool = False
    name: str | None = None
    batch: int = 200
    retention: timedelta | None = DEFAULTS.retention

    def __post_init__(self) -> None:
        for field, low, high in (
            ("lease", 0.5, 86_400.0),
            ("poll", 0.01, 3_600.0),
            ("drain", 0.0, 86_400.0),
            ("cancel_grace", 0.0, 86_400.0),
            ("maintenance", 0.05, 3_600.0),
        ):
            value = _in_range(keys.check_duration, getattr(self, field), field=field, low=low, high=high)
            object.__setattr__(self, field, value)
        if self.retention is not None:
            object.__setattr__(self, "retention", _retention(self.retention))
        _in_range(keys.check_int, self.concurrency, field="concurrency", low=1, high=10_000)
        _in_range(keys.check_int, self.batch, field="batch", low=1, high=Limits.BATCH)
        object.__setattr__(self, "queues", _names(self.queues, field="queues"))
        object.__setattr__(self, "offers", tuple(sorted(_names(self.offers, field="offers"))))
        if self.name is not None:
            _in_range(keys.check_name, self.name, field="name")

    @classmethod
    def of(cls, options: Mapping[str, object]) -> WorkerConfig:
        """From what was set, and only that: None means "not set", so that a default stays a default.

        But for `retention`, where it means "off".
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(options.keys() - known)
        if unknown:
            raise ConfigError(
                f"unknown worker option {unknown[0]!r}; the options are: {', '.join(sorted(known))}", field=unknown[0]
            )
        given = {name: value for name, value in options.items() if value is not None or name == "retention"}
        return cls(**given)  # type: ignore[arg-type]


def _retention(value: timedelta | float | str) -> timedelta | None:
    return None if value == "off" else _in_range(keys.check_duration, value, field="retention")


def _names(names: Iterable[str], *, field: str) -> tuple[str, ...]:
    """The names, each once, in the order given."""
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"{field} must be a sequence of names, not {keys.shown(names)}; write [name]", field=field)
    return tuple(dict.fromkeys(_in_range(keys.check_name, name, field=field) for name in names))


def _in_range(check: Callable[..., T], value: object, **bounds: Any) -> T:
    try:
        return check(value, **bounds)
    except InputError as error:
        raise ConfigError(str(error), field=error.field) from None
