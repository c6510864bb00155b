"""Text about failures: it can always be stored and printed, and nothing raises."""

from __future__ import annotations

import io
import traceback
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgqueue.sanitize import ERROR_LIMIT, clean, describe, one_line

BAD = "\ufffd"
ANYTHING = st.one_of(
    st.text(st.characters(exclude_categories=())),
    st.binary(),
    st.integers(),
    st.floats(),
    st.none(),
    st.lists(st.text(st.characters(exclude_categories=()))),
)


def storable(text: str, limit: int) -> bool:
    return type(text) is str and "\x00" not in text and len(text.encode()) <= limit  # encode: no lone surrogates


class Raises:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __str__(self) -> str:
        raise self.error

    __repr__ = __str__


class NotText:
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class Loud(str):
    def __str__(self) -> str:
        raise RuntimeError

    def encode(self, *args: object, **kwargs: object) -> bytes:
        raise RuntimeError


# -- clean


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("two\nlines\t", "two\nlines\t"),
        ("a\x00b", f"a{BAD}b"),
        ("\x00", BAD),
        ("a\ud800b\udfff", f"a{BAD}b{BAD}"),
        ("é日😀", "é日😀"),
        (b"caf\xc3\xa9", "café"),
        (b"\xff\xfe", BAD * 2),
        (bytearray(b"x"), "x"),
        (memoryview(b"x"), "x"),
        (None, "None"),
        (12, "12"),
        (ValueError("why"), "why"),
        (Loud("loud"), "loud"),
        (Raises(ValueError("secret")), "str() raised ValueError"),
        (Raises(SystemExit(3)), "str() raised SystemExit"),
        (Raises(KeyboardInterrupt()), "str() raised KeyboardInterrupt"),
        (Raises(RecursionError()), "str() raised RecursionError"),
        (NotText(), "str() raised TypeError"),
        ("postgres://me:hunter2@db/x", "postgres://me:***@db/x"),
        ("a://:p@h and b://u:q@h", "a://:***@h and b://u:***@h"),
        ("http://host:80/a@b", "http://host:80/a@b"),
    ],
    ids=lambda value: "case",
)
def test_clean(value: object, text: str) -> None:
    cleaned = clean(value, limit=1000)
    assert cleaned == text or (text.startswith("str()") and text in cleaned)
    assert type(cleaned) is str


def test_no_secret_of_a_raising_str_is_kept() -> None:
    assert "secret" not in clean(Raises(ValueError("secret")), limit=1000)


@given(ANYTHING, st.integers(-5, 400))
def test_clean_always_fits(value: object, limit: int) -> None:
    assert storable(clean(value, limit=limit), max(limit, 0))


@given(st.text(st.characters(codec="utf-8", exclude_characters="\x00:"), max_size=200))
def test_clean_leaves_what_is_fine(value: str) -> None:
    assert clean(value, limit=1000) == value


@pytest.mark.parametrize("char", ["x", "é", "日", "😀", "\ud800"], ids=ascii)
@pytest.mark.parametrize("length", [1001, 5_000, 2_000_000])
def test_a_long_text_keeps_head_and_tail(char: str, length: int) -> None:
    cleaned = clean("HEAD" + char * length + "TAIL", limit=1000)
    assert storable(cleaned, 1000)
    assert len(cleaned.encode()) > 900
    assert cleaned.startswith("HEAD")
    assert cleaned.endswith("TAIL")
    assert "bytes left out" in cleaned


def test_the_note_counts_what_was_cut() -> None:
    cleaned = clean("x" * 10_000, limit=1000)
    assert f"{10_000 - cleaned.count('x'):,} bytes left out" in cleaned


@pytest.mark.parametrize("size", [999, 1000])
def test_what_fits_is_not_cut(size: int) -> None:
    assert clean("x" * size, limit=1000) == "x" * size


@pytest.mark.parametrize("limit", [0, 1, 2, 3, 10, 48, 95, 96, 97])
def test_a_small_limit_holds(limit: int) -> None:
    cleaned = clean("é" * 1000, limit=limit)
    assert storable(cleaned, limit)
    assert len(cleaned.encode()) >= limit - 20


# -- describe


def raised(error: BaseException, depth: int = 0) -> BaseException:
    secret = "local-password"  # must not be described  # noqa: F841
    try:
        if depth:
            raised(error, depth - 1)
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


class Hostile(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class WrongText(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


class WrongNotes(Exception):
    __notes__ = 7  # type: ignore[assignment]


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class Nameless(Exception, metaclass=Meta):
    pass


@pytest.mark.parametrize(
    ("error", "head"),
    [
        (ValueError("bad order"), "ValueError: bad order"),
        (ValueError(), "ValueError"),
        (KeyError("k"), "KeyError: 'k'"),
        (SystemExit(3), "SystemExit: 3"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (ValueError("a\x00b\ud800"), f"ValueError: a{BAD}b{BAD}"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "UnicodeDecodeError: "),
        (ExceptionGroup("two", [ValueError("one"), TypeError("other")]), "ExceptionGroup: two"),
        (io.UnsupportedOperation("x"), "io.UnsupportedOperation: x"),
    ],
    ids=lambda value: "case",
)
def test_describe_begins_with_type_and_message(error: BaseException, head: str) -> None:
    text = describe(raised(error))
    assert text.startswith(head)
    assert "Traceback (most recent call last)" in text
    assert "in raised" in text
    assert "local-password" not in text.replace('secret = "local-password"', "")
    assert storable(text, ERROR_LIMIT)


@pytest.mark.parametrize(
    "make", [Hostile, WrongText, WrongNotes, Exits, Nameless, lambda: ValueError(Raises(SystemExit()))], ids=range(6)
)
def test_describe_takes_hostile_errors(make: Callable[[], BaseException]) -> None:
    text = describe(raised(make()))
    assert storable(text, ERROR_LIMIT)
    assert len(text) > 20
    assert "raised" in text  # the frame is there


def test_describe_shows_causes() -> None:
    error = ValueError("outer")
    error.__cause__ = KeyError("inner")
    assert "inner" in describe(raised(error))


def test_describe_survives_a_circle_of_causes() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert describe(one).startswith("ValueError: one")


def test_describe_survives_a_formatter_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise MemoryError

    monkeypatch.setattr(traceback.TracebackException, "from_exception", fail)
    text = describe(raised(ValueError("x")))
    assert "could not be formatted: MemoryError" in text
    assert "in raised" in text
    monkeypatch.setattr(traceback, "format_tb", fail)
    assert describe(raised(ValueError("x"))).startswith("ValueError: x")


def test_describe_keeps_head_and_tail_of_a_deep_traceback() -> None:
    frames: dict[str, object] = {}
    source = "".join(
        f"def step{i}():\n    step{i + 1}()\n" for i in range(400)
    ) + "def step400():\n    raise ValueError('the end')\n"  # fmt: skip
    exec(source, frames)  # noqa: S102
    with pytest.raises(ValueError, match="the end") as caught:
        frames["step0"]()  # type: ignore[operator]
    text = describe(caught.value, limit=4000)
    assert storable(text, 4000)
    assert text.startswith("ValueError: the end")
    assert "step0" in text
    assert "step200" not in text
    assert text.endswith("the end")


def test_describe_bounds_a_huge_message() -> None:
    text = describe(raised(ValueError("x" * 5_000_000)), limit=2000)
    assert storable(text, 2000)
    assert text.startswith("ValueError: xxx")


def test_describe_masks_the_password_of_a_url() -> None:
    text = describe(raised(ValueError("cannot reach postgresql://me:hunter2@db:5432/x")))
    assert "hunter2" not in text
    assert "me:***@db:5432" in text


@pytest.mark.parametrize("limit", [-1, 0, 1, 10, 100])
def test_describe_fits_any_limit(limit: int) -> None:
    assert storable(describe(raised(ValueError("é" * 100)), limit=limit), max(limit, 0))


# -- one_line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("  two\n\n lines\t", "two lines"),
        ("a\r\nb", "a b"),
        ("a\u2028b\u2029c\x85d", "a b c d"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07x", "x"),
        ("\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bPpayload\x1b\\x", "x"),
        ("\x9b2Jx", "x"),
        ("\x1bcx", "x"),
        ("end\x1b", "end"),
        ("end\x1b[", "end"),
        ("a\x00b\x07c\x7f", "abc"),
        ("\u202eevil\u202c", "evil"),
        ("\u2066a\u2069\u200e\u200f\u061c", "a"),
        ("a\u200bb\ufeff", "ab"),
        ("\ud800x", "x"),
        ("\U000e0041x", "x"),
        ("👩\u200d🚀", "👩\u200d🚀"),
        ("é日", "é日"),
        (None, "None"),
        (b"\xffx", f"{BAD}x"),
        (Raises(ValueError()), "str() raised ValueError"),
    ],
    ids=lambda value: "case",
)
def test_one_line(value: object, text: str) -> None:
    line = one_line(value, 200)
    assert line == text or (text.startswith("str()") and text in line)


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdef", 5, "abcd…"),
        ("abcdef", 1, "…"),
        ("abcdef", 0, ""),
        ("abcdef", -3, ""),
        ("日本語", 6, "日本語"),
        ("日本語", 5, "日本…"),
        ("日本語", 4, "日…"),
        ("日本語", 2, "…"),
        ("e\u0301e\u0301", 2, "e\u0301e\u0301"),
        ("", 0, ""),
    ],
)
def test_one_line_fits_the_width(value: str, width: int, text: str) -> None:
    assert one_line(value, width) == text


def test_one_line_bounds_a_heap_of_combining_marks() -> None:
    assert len(one_line("e" + "\u0301" * 100_000, 40)) < 500


@given(ANYTHING, st.integers(0, 60))
def test_one_line_is_always_one_harmless_line(value: object, width: int) -> None:
    line = one_line(value, width)
    assert len(line.splitlines()) <= 1
    assert not any(
        unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in ("RLO", "LRO")
        for char in line
    )
    assert len(line.encode()) <= 8 * (8 * width + 64)


@pytest.mark.parametrize(
    "text", ["\x1b]" * 20_000, "\x1b[" + "0" * 200_000, "://" + "a:" * 100_000, "\x1bP" + "x" * 200_000]
)
def test_hostile_texts_take_no_time(text: str) -> None:
    assert clean(text, limit=ERROR_LIMIT)
    assert len(one_line(text, 80)) <= 80
