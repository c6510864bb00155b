"""Text about a failure, made fit to be stored and to be printed. Nothing in here raises.

What cannot be stored (NUL, lone surrogates, bytes that are no UTF-8) becomes U+FFFD; what is too long loses
its middle; a password in a URL becomes `***`.
"""

from __future__ import annotations

import contextlib
import re
import traceback
import unicodedata
from typing import Final

from .config import Limits

__all__ = ["ERROR_LIMIT", "clean", "describe", "one_line"]

ERROR_LIMIT: Final = Limits.ERROR_BYTES
"""Bytes of UTF-8 that are kept of an error."""

_NOTE_BYTES: Final = 48  # the longest note about a cut
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_PASSWORD: Final = re.compile(r"(://[^\s:/@]{0,128}:)[^\s/@]{1,256}@")
_ESCAPES: Final = re.compile(
    "\x1b\\[[0-?]{0,64}[ -/]{0,8}[@-~]?"  # CSI: colours, cursor
    "|\x1b[\\]PX^_][^\x07\x1b\x9c]{0,4096}(?:\x07|\x1b\\\\|\x9c)?"  # OSC, DCS …: titles, links, clipboard
    "|\x1b[ -/]{0,8}[0-~]?"
    "|\x9b[0-?]{0,64}[ -/]{0,8}[@-~]?"
)
_JOINERS: Final = frozenset("\u200c\u200d")  # Persian and emoji need them
_HIDDEN: Final = frozenset({"Cc", "Cf", "Co", "Cn", "Cs"})
_ZERO_WIDTH: Final = frozenset({"Mn", "Me", "Cf"})


def clean(text: object, *, limit: int) -> str:
    """`text` as PostgreSQL can store it, at most `limit` bytes of UTF-8; cannot raise.

    bytes are read as UTF-8; any other object by its `str()`. Of what is too long, head and tail are kept.
    """
    try:
        return _cut(_text(text), max(limit, 0))
    except BaseException:  # noqa: BLE001  a failure that cannot be written would be kept for ever
        return "(unprintable)"[: max(limit, 0)]


def describe(error: BaseException, *, limit: int = ERROR_LIMIT) -> str:
    """Type and message, then the traceback with its causes, at most `limit` bytes; cannot raise.

    No local variables: they hold payloads and passwords.
    """
    try:
        message = clean(_text(error), limit=max(limit // 4, 0))
        head = f"{_type_name(error)}: {message}" if message else _type_name(error)
        return clean(f"{head}\n\n{_trace(error)}".rstrip(), limit=limit)
    except BaseException:  # noqa: BLE001
        return clean("(unprintable error)", limit=limit)


def one_line(text: object, width: int) -> str:
    """`text` as one line of a terminal, at most `width` columns; cannot raise.

    Control and escape sequences, direction marks and invisible characters go; runs of white space become one
    space; a wide character counts two columns; a cut ends in `…`.
    """
    try:
        return _fit(_flat(_text(text)), max(width, 0))
    except BaseException:  # noqa: BLE001
        return "(unprintable)"[: max(width, 0)]


def _text(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, str):
        return "".join(str.__iter__(value)) if type(value) is not str else value
    try:
        text = str(value)
    except BaseException as error:  # noqa: BLE001  even SystemExit: it is somebody's __str__, not the end
        return f"({_type_name(value)}: its str() raised {_type_name(error)})"
    return text if type(text) is str else _text(text)


def _type_name(value: object) -> str:
    kind = type(value)
    try:
        module, name = kind.__module__, kind.__qualname__
        return name if module in ("builtins", "__main__") else f"{module}.{name}"
    except BaseException:  # noqa: BLE001
        return "object"


def _trace(error: BaseException) -> str:
    try:
        return "".join(traceback.TracebackException.from_exception(error, capture_locals=False).format())
    except BaseException as failure:  # noqa: BLE001  hostile __str__, __cause__, __notes__ …
        return _frames(error, failure)


def _frames(error: BaseException, failure: BaseException) -> str:
    lines = [f"(its traceback could not be formatted: {_type_name(failure)})\n"]
    with contextlib.suppress(BaseException):
        lines += traceback.format_tb(error.__traceback__)
    return "".join(lines)


def _cut(text: str, limit: int) -> str:
    if len(text) > 4 * limit + 1024:
        # First in characters: a hundred megabytes are not copied three times over.
        text, left_out = text[: 2 * limit] + text[-2 * limit or len(text) :], len(text) - 4 * limit
    else:
        left_out = 0
    text = _PASSWORD.sub(r"\1***@", _UNSTORABLE.sub("\ufffd", text))
    data = text.encode()
    if left_out == 0 and len(data) <= limit:
        return text
    keep = limit - _NOTE_BYTES
    if keep < _NOTE_BYTES:
        return data[:limit].decode("utf-8", "ignore")
    note = f" [… {left_out + len(data) - keep:,} bytes left out …] "
    head, end = data[: keep - keep // 2], data[len(data) - keep // 2 :]
    return head.decode("utf-8", "ignore") + note + end.decode("utf-8", "ignore")


def _flat(text: str) -> str:
    if text.isascii() and text.isprintable():
        return " ".join(text.split())
    plain = _ESCAPES.sub("", text)
    spaced = ("".join(" " if char.isspace() else char for char in plain if not _is_hidden(char))).split()
    return " ".join(spaced)


def _is_hidden(char: str) -> bool:
    return not char.isspace() and char not in _JOINERS and unicodedata.category(char) in _HIDDEN


def _columns(char: str) -> int:
    if char.isascii():
        return 1
    if unicodedata.category(char) in _ZERO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def _fit(text: str, width: int) -> str:
    if len(text) * 2 <= width or (text.isascii() and len(text) <= width):
        return text
    used = fits = 0
    text = text[: 8 * width + 64]  # a heap of combining marks takes no column
    for index, char in enumerate(text):
        used += _columns(char)
        if used > width:
            return (text[:fits] + "…") if width else ""
        if used < width:
            fits = index + 1
    return text
