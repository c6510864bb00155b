"""`App(imports=[…])`, and names that an action had before (`aliases`)."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pgqueue import App, ConfigError, Status, UnknownAction
from pgqueue.config import WorkerConfig
from pgqueue.worker import Worker

from .conftest import Burst

ROOT = Path(__file__).resolve().parents[2]
NOWHERE = "postgresql://nobody@127.0.0.1:1/nowhere"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """`module(name, text)`: a module on the path until the test is over."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def write(name: str, text: str) -> None:
        (tmp_path / f"{name}.py").write_text(text)

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


MAIN = """
from pgqueue import App
app = App({url!r}, imports={imports!r})
"""
TASKS = """
from {main} import app

@app.task
def {name}(n: int) -> int:
    return n + 1
"""


def declared(module: Callable[[str, str], None], imports: list[str], url: str = NOWHERE) -> App:
    module("main_imp", MAIN.format(url=url, imports=imports))
    import importlib

    app = importlib.import_module("main_imp").app
    assert isinstance(app, App)
    return app


def test_modules_are_imported_when_the_actions_are_first_needed_and_not_before(
    module: Callable[[str, str], None],
) -> None:
    module("imp_one", TASKS.format(main="main_imp", name="one"))
    module("imp_two", TASKS.format(main="main_imp", name="two"))
    app = declared(module, ["imp_one", "imp_two"])
    assert "imp_one" not in sys.modules
    assert app.action("two").name == "two"
    assert list(app.actions) == ["one", "two"]


def test_worker_imports_them(module: Callable[[str, str], None], database_url: str) -> None:
    module("imp_one", TASKS.format(main="main_imp", name="one"))
    app = declared(module, ["imp_one"], database_url)
    made = app.client.enqueue("one", {"n": 1})
    Worker(app, WorkerConfig(burst=True, listen=False)).run()
    assert app.client.get(made.id).result == 2
    app.client.close()


def test_module_that_asks_for_the_actions_while_it_is_imported_sees_those_so_far(
    module: Callable[[str, str], None],
) -> None:
    module("imp_one", TASKS.format(main="main_imp", name="one") + "\nseen = list(app.actions)\n")
    module("imp_two", TASKS.format(main="main_imp", name="two"))
    app = declared(module, ["imp_one", "imp_two"])
    assert list(app.actions) == ["one", "two"]
    assert sys.modules["imp_one"].seen == ["one"]


def test_threads_that_need_them_at_once_all_get_them(module: Callable[[str, str], None]) -> None:
    module("imp_one", "import time; time.sleep(0.05)\n" + TASKS.format(main="main_imp", name="one"))
    app = declared(module, ["imp_one"])
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(app.action("one").name)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == ["one"] * 5


BROKEN = [
    ("", r"no module 'imp_broken' on Python's path"),
    (
        "import imp_absent",
        r"could not be imported: ModuleNotFoundError: No module named 'imp_absent' \(.*/imp_broken.py, line 1\)",
    ),
    ("\nraise ValueError('a\\nb')", r"could not be imported: ValueError: a b \(.*/imp_broken.py, line 2\); mend it"),
    ("raise SystemExit(1)", r"imp_broken could not be imported: SystemExit: 1"),
    ("def f(", r"imp_broken could not be imported: SyntaxError: .* \(.*/imp_broken.py, line 1\)"),
]


@pytest.mark.parametrize(("text", "says"), BROKEN, ids=[text or "absent" for text, _ in BROKEN])
def test_module_that_cannot_be_imported_is_named_every_time(
    module: Callable[[str, str], None], text: str, says: str
) -> None:
    app = declared(module, ["imp_broken"])
    if text:
        module("imp_broken", text + "\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match=says) as refused:
            app.action("one")
        assert refused.value.field == "imports"
        assert "\n" not in str(refused.value)


def test_command_line_names_the_module_in_one_line_and_ends_in_2(
    module: Callable[[str, str], None], tmp_path: Path
) -> None:
    module("main_imp", MAIN.format(url=NOWHERE, imports=["imp_broken"]))
    module("imp_broken", "1 / 0\n")
    done = subprocess.run(
        [sys.executable, "-m", "pgqueue", "worker", "--app", "main_imp:app", "--app-dir", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "imp_broken could not be imported: ZeroDivisionError" in line


@pytest.mark.parametrize("wrong", ["shop.tasks", ["shop/tasks.py"], ["shop:app"], [".tasks"], [3], [""], 3])
def test_what_is_no_module_name_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        App(imports=wrong)
    assert refused.value.field == "imports"


# -- aliases


def test_rows_under_an_old_name_run_the_renamed_action(app: App, burst: Burst) -> None:
    old = app.client.enqueue("send_mail", {"to": "a"})

    @app.task(aliases=["send_mail", "mail"])
    def send(to: str) -> str:
        return f"sent to {to}"

    new = send.enqueue(to="b")
    burst()
    assert [app.client.get(one.id).result for one in (old, new)] == ["sent to a", "sent to b"]
    assert [app.client.get(one.id).action for one in (old, new)] == ["send_mail", "send"]
    assert app.action("mail") is send
    assert list(app.actions) == ["send"]
    assert send.aliases == ("send_mail", "mail")


def test_workers_hello_shows_them(app: App, burst: Burst, caplog: pytest.LogCaptureFixture) -> None:
    app.task(name="send", aliases=["send_mail", "mail"])(lambda: None)
    app.task(name="other")(lambda: None)
    with caplog.at_level(logging.INFO, logger="pgqueue"):
        burst()
    assert "actions other, send (was send_mail, mail)" in caplog.text


CLASHES: list[tuple[dict[str, Any], dict[str, Any], str, str]] = [
    ({"name": "a"}, {"name": "b", "aliases": ["a"]}, "b: 'a' is the name of the action 'a' already", "aliases"),
    ({"name": "a", "aliases": ["c"]}, {"name": "b", "aliases": ["c"]}, "'c' is an alias of the action 'a'", "aliases"),
    ({"name": "a", "aliases": ["b"]}, {"name": "b"}, "b: 'b' is an alias of the action 'a' already", "name"),
]


@pytest.mark.parametrize(("first", "second", "says", "field"), CLASHES)
def test_name_that_two_actions_would_have_is_refused(
    first: dict[str, Any], second: dict[str, Any], says: str, field: str
) -> None:
    app = App(NOWHERE)
    app.task(**first)(lambda: 1)
    before = dict(app.names)
    with pytest.raises(ConfigError, match=says) as refused:
        app.task(**second)(lambda: 2)
    assert refused.value.field == field
    assert app.names == before


@pytest.mark.parametrize("wrong", ["old", [3], ["a\nb"], 3])
def test_what_is_no_list_of_names_is_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        App(NOWHERE).task(aliases=wrong)(lambda: None)
    assert refused.value.field == "aliases"


def test_module_that_is_imported_twice_declares_its_aliases_again() -> None:
    app = App(NOWHERE)
    for aliases in (["a", "b"], ["b", "c"]):

        @app.task(aliases=aliases)
        def send() -> None: ...

    assert sorted(app.names) == ["b", "c", "send"]
    with pytest.raises(UnknownAction):
        app.action("a")


def test_unknown_name_is_still_given_back(app: App, burst: Burst) -> None:
    app.task(name="send", aliases=["mail"])(lambda: None)
    made = app.client.enqueue("mails")
    burst()
    assert app.client.get(made.id).status is Status.PENDING
