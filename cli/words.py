"""Times, durations and errors, as short as people read them.

The library's `format_duration` is exact; here two units are enough.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def span(duration: timedelta) -> str:
    """`0.42s`, `4.1s`, `41s`, `5m12s`, `3h20m`, `2d4h`; what is negative counts as nothing."""
    seconds = max(duration.total_seconds(), 0.0)
    if seconds < 10:
        return f"{round(seconds, 1 if seconds >= 1 else 2):g}s"
    rest = round(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count}{unit}" if count else "")
        if len(parts) == 2:
            break
    return "".join(parts)


def clock(instant: datetime, *, now: datetime) -> str:
    """`14:03:09Z` today, `2026-01-31 14:03:09Z` on other days. UTC, as the server's logs and the journal have it."""
    there, here = instant.astimezone(UTC), now.astimezone(UTC)
    return f"{there:%H:%M:%SZ}" if there.date() == here.date() else f"{there:%Y-%m-%d %H:%M:%SZ}"


def first_line(text: str | None) -> str:
    """What an error says; its traceback follows below."""
    return (text or "").strip().partition("\n")[0]
