"""The type checker accepts what users write and refuses 19 mistakes; at run time the same mistakes are typed errors."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from pgqueue import App, ConfigError, Context, Enqueued, InputError, PayloadError

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MISTAKES = 19


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[int, str]]:
    """What mypy --strict says of the two files: per file, line to text. Notes are no errors."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--no-pretty"),
            *("--cache-dir", str(tmp_path_factory.mktemp("mypy"))),
            *("tests/typing/use.py", "tests/typing/wrong.py"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    found: dict[str, dict[int, str]] = {}
    for path, line, text in re.findall(r"^([^:\n]+):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        lines = found.setdefault(Path(path).name, {})
        lines[int(line)] = f"{lines.get(int(line), '')} {text}".strip()
    return found


@pytest.mark.heavy
def test_face_as_users_write_it_passes(errors: dict[str, dict[int, str]]) -> None:
    assert {name: lines for name, lines in errors.items() if name != "wrong.py"} == {}


@pytest.mark.heavy
def test_planted_mistakes_are_refused_and_nothing_else(errors: dict[str, dict[int, str]]) -> None:
    lines = (HERE / "wrong.py").read_text().splitlines()
    planted = {number for number, line in enumerate(lines, 1) if line.endswith("# E")}
    assert len(planted) == MISTAKES
    assert set(errors.get("wrong.py", {})) == planted


@pytest.mark.heavy
def test_refusals_speak_of_the_mistake(errors: dict[str, dict[int, str]]) -> None:
    said = "\n".join(errors["wrong.py"].values())
    for word in (
        '"too"',
        '"ctx"',
        '"prority"',
        '"queu"',
        "AsyncSession",
        'type "int"; expected',
        "coroutine",
    ):
        assert word in said, word


# -- the same at run time

_app: Any = App("postgresql://nobody@127.0.0.1:1/nowhere")  # Any: what the checker would refuse is meant


@_app.task  # type: ignore[untyped-decorator]
def plain(to: str, subject: str = "hi") -> None: ...


@_app.task(queue="mail", max_attempts=5, timeout=timedelta(seconds=30))  # type: ignore[untyped-decorator]
def with_ctx(ctx: Context, to: str, *, subject: str) -> dict[str, int]:
    return {"a": 1}


@_app.task  # type: ignore[untyped-decorator]
async def coro(ctx: Context, n: int) -> int:
    return n


def _async_session() -> AsyncSession:
    return AsyncSession(create_async_engine("postgresql+psycopg://127.0.0.1:1/nowhere"))


def _session() -> Session:
    return Session(create_engine("postgresql+psycopg://127.0.0.1:1/nowhere"))


async def _awaited(call: Any) -> Any:
    return await call


WRONG: dict[str, tuple[Callable[[], Any], type[InputError], str | None, str]] = {
    "an argument that is misspelt": (lambda: plain.enqueue(too="a"), PayloadError, "too", "did you mean 'to'"),
    "an argument of another type": (lambda: plain.enqueue(to=3), PayloadError, "to", "expected"),
    "an argument that is missing": (lambda: plain.enqueue(), PayloadError, "to", "missing"),
    "the context": (lambda: with_ctx.enqueue(ctx=Context(None), to="a"), PayloadError, "ctx", "fills 'ctx' itself"),
    "a keyword by position": (lambda: with_ctx.enqueue("a", "b"), PayloadError, None, "positional"),
    "an option that is misspelt": (lambda: plain.using(prority=3), InputError, "prority", "the options are"),
    "an option of another type": (lambda: plain.using(priority="high"), InputError, "priority", "from -9 to 9"),
    "a duration as text": (lambda: plain.using(timeout="30s"), InputError, "timeout", "in seconds or as a timedelta"),
    "one parent where parents are meant": (
        lambda: plain.using(depends_on=Enqueued(UUID(int=1), created=True)),
        InputError,
        "depends_on",
        "write [parent]",
    ),
    "an id as text": (lambda: plain.using(depends_on=[str(UUID(int=1))]), InputError, "depends_on", "pass UUID(text)"),
    "a reaction that there is not": (
        lambda: plain.using(on_parent_failure="ignore"),
        InputError,
        "on_parent_failure",
        "cancel",
    ),
    "a dedupe that there is not": (lambda: plain.using(dedupe="for ever"), InputError, "dedupe", "forever"),
    "a condition that is no name": (lambda: plain.using(requires=[1]), InputError, "requires", "requires"),
    "an async session": (lambda: plain.enqueue_on(_async_session(), to="a"), InputError, "connection", "async verb"),
    "a session, awaited": (
        lambda: asyncio.run(_awaited(plain.aenqueue_on(_session(), to="a"))),
        InputError,
        "connection",
        "synchronous verb",
    ),
    "no connection": (lambda: plain.enqueue_on(3, to="a"), InputError, "connection", "Connection"),
    "an option of the declaration": (lambda: _app.task(queu="x")(lambda: None), ConfigError, "queu", "queu"),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistake_at_run_time_is_a_typed_error_that_names_the_field(mistake: str) -> None:
    call, kind, field, says = WRONG[mistake]
    with pytest.raises(InputError) as refused:
        call()
    assert type(refused.value) is kind
    assert refused.value.field == field
    assert says in str(refused.value)


def test_coroutine_that_nobody_awaits_warns() -> None:
    with pytest.warns(RuntimeWarning, match="never awaited"):
        coro.aenqueue(n=1)
