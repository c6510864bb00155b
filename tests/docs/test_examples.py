"""Every Python example in the pages runs, in its page's order, against a real database."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import pgqueue

from .pages import PAGES, ROOT, Block, all_blocks, blocks, name

README = ROOT / "README.md"


class Base(DeclarativeBase):
    """What the examples take for the reader's own tables."""


class Order(Base):
    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    packed: Mapped[bool] = mapped_column(default=False)


class Courier:
    def status(self, parcel: str) -> str:
        return f"delivered {parcel}"


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(database_url))
    Base.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def reader(engine: Engine, database_url: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a reader has at hand: a database, a table of their own, what pgqueue exports, the README's action."""
    monkeypatch.setenv("PGQUEUE_DATABASE_URL", database_url)
    names: dict[str, Any] = {name: getattr(pgqueue, name) for name in pgqueue.__all__}
    names |= {"Order": Order, "Session": Session, "courier": Courier(), "engine": engine}
    run(blocks(README, "python")[0], names)
    return names


def run(block: Block, names: dict[str, Any]) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    code = compile("\n" * (block.line - 1) + block.text, name(block.page), "exec", flags, dont_inherit=True)
    result = eval(code, names)  # noqa: S307 - our own pages
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name)
def test_examples_of_a_page_run(page: Path, reader: dict[str, Any]) -> None:
    apps = {reader["app"]}
    try:
        for block in blocks(page, "python"):
            run(block, reader)
            apps.add(reader["app"])
    finally:
        for app in apps:
            app.client.close()


def test_every_example_names_its_language() -> None:
    """A block without one would be run by nobody."""
    assert [str(block) for block in all_blocks("") if block.page != ROOT / "CONTRIBUTING.md"] == []


def test_readme_transaction_is_both_or_neither(reader: dict[str, Any]) -> None:
    action, together = blocks(README, "python")
    broken = Block(together.page, together.line, together.text.replace("# both", "    raise KeyError\n# both"))
    assert "raise" in broken.text

    with pytest.raises(KeyError):
        run(broken, reader)
    with Session(reader["engine"]) as session:
        neither = (session.get(Order, 1042), reader["app"].client.count_tasks())
    run(together, reader)
    with Session(reader["engine"]) as session:
        both = (session.get_one(Order, 1042).email, reader["app"].client.count_tasks())
    reader["app"].client.close()

    assert action.text.count("@app.task") == 1
    assert neither == (None, 0)
    assert both == ("ada@example.org", 1)


def test_readme_action_is_the_shops() -> None:
    _, _, function = blocks(README, "python")[0].text.partition("@app.task")

    assert function in (ROOT / "examples" / "shop" / "tasks.py").read_text()


# -- what the README's commands print

FAIL_THREE_TIMES = """
import sys
from uuid import UUID

from shop.tasks import app, send_receipt

send_receipt.using(id=UUID(sys.argv[1])).enqueue(order=1042, to="ada@example.org")
for _ in range(3):
    app.run_worker(burst=True, name="web-2:4711")
    with app.database.begin() as connection:  # instead of waiting for the backoff
        connection.exec_driver_sql("update pgqueue.tasks set not_before = now()")
app.client.close()
"""


def test_readme_shows_what_the_commands_print(tmp_path: Path, database_url: str) -> None:
    """Times, durations, ids of processes and places on the disk aside."""
    printed = answers(blocks(README, "console"))
    shutil.copytree(ROOT / "examples" / "shop", tmp_path / "shop", ignore=shutil.ignore_patterns("__pycache__"))
    program = tmp_path / "bin" / "pgqueue"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\nfrom pgqueue.__main__ import main\nmain()\n")
    program.chmod(0o755)
    env = os.environ | {
        "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
        "PGQUEUE_DATABASE_URL": database_url,
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "120",
    }
    [task_id] = set(re.findall(r"[\da-f-]{30}d8dd91", printed["pgqueue show d8dd91"]))
    subprocess.run(
        [sys.executable, "-c", FAIL_THREE_TIMES, task_id], cwd=tmp_path, env=env, check=True, capture_output=True
    )

    shown = masked(on_terminal(["pgqueue", "show", "d8dd91"], cwd=tmp_path, env=env))
    retried = masked(on_terminal(["pgqueue", "retry", "d8dd91"], cwd=tmp_path, env=env))

    rest = shown
    for part in masked(printed["pgqueue show d8dd91"]).split("\n…\n"):
        assert part.strip("\n") in rest, shown
        rest = rest.partition(part.strip("\n"))[2]
    assert retried.strip() == masked(printed["pgqueue retry d8dd91"]).strip()


def answers(consoles: list[Block]) -> dict[str, str]:
    """What follows each command, up to the next."""
    found = {}
    for block in consoles:
        for part in ("\n" + block.text).split("\n$ ")[1:]:
            command, _, answer = part.partition("\n")
            found[command.partition(" #")[0].strip()] = answer
    return found


def masked(text: str) -> str:
    text = re.sub(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dZ", "TIME", text)
    text = re.sub(r"\b\d+(?:\.\d+)?[smhd](?:\d+[smh])?\b", "SPAN", text)
    return re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE)


def on_terminal(command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, cwd=cwd, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        text = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side is closed
                piece = b""
            if not piece:
                break
            text += piece
        os.close(ours)
    assert process.returncode == 0, text.decode()
    return text.decode().replace("\r\n", "\n")
