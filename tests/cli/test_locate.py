"""`--app module:name`, and what is said when it leads nowhere."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from .running import Program

Module = Callable[[str, str], str]
GOOD = "import pgqueue\napp = pgqueue.App('postgresql://u@127.0.0.1:1/none')\nother = 3\ndef make(): ...\n"


def refused(lost: Program, locator: str, *words: str) -> str:
    ran = lost("enqueue", "send", "--app", locator, *words)
    assert (ran.code, ran.out) == (2, ""), ran.err
    return ran.complaint


def found(lost: Program, locator: str, *words: str) -> bool:
    """The App was found when what is missed is the action."""
    ran = lost("enqueue", "send", "--app", locator, *words)
    return ran.code == 2 and "unknown action 'send'" in ran.complaint


def test_the_working_directory_is_on_the_path(module: Module, lost: Program) -> None:
    module("cli_locate_here", GOOD)
    module("cli_locate_package.tasks", GOOD)

    assert found(lost, "cli_locate_here:app")
    assert found(lost, "cli_locate_package.tasks:app")


def test_app_dir_is_on_the_path_instead(module: Module, lost: Program, tmp_path: Path) -> None:
    module("elsewhere.cli_locate_there", GOOD)

    assert found(lost, "cli_locate_there:app", "--app-dir", str(tmp_path / "elsewhere"))
    assert str(tmp_path) not in sys.path


@pytest.mark.parametrize(
    ("locator", "says"),
    [
        ("shop.tasks.app", "'shop.tasks.app' has no colon; write module:name, such as shop.tasks:app"),
        ("shop", "'shop' names a module, not an App in it; write module:name, such as shop:app"),
        ("", "'' is not module:name"),
        (":app", "':app' is not module:name"),
        ("shop:", "'shop:' is not module:name"),
        ("shop:a-b", "'shop:a-b' is not module:name"),
        ("shop:tasks:app", "is not module:name"),
        ("shop/tasks.py:app", "'shop/tasks.py:app' is a path; write the module's name, such as shop.tasks:app"),
        ("./tasks.py", "is a path; write the module's name, such as tasks:app"),
    ],
)
def test_what_is_not_module_and_name(lost: Program, module: Module, locator: str, says: str) -> None:
    assert says in refused(lost, locator)


def test_no_such_module_says_where_it_was_looked_for(module: Module, lost: Program, tmp_path: Path) -> None:
    module("cli_locate_tasks", GOOD)

    said = refused(lost, "cli_locate_taks:app")

    assert f"no module 'cli_locate_taks' for --app cli_locate_taks:app: looked in {tmp_path}" in said
    assert "did you mean cli_locate_tasks?" in said
    assert "pass --app-dir" in said


def test_no_such_module_in_a_package(module: Module, lost: Program) -> None:
    module("cli_locate_shop.tasks", GOOD)

    assert "did you mean cli_locate_shop.tasks?" in refused(lost, "cli_locate_shop.taks:app")


def test_no_such_attribute_names_the_apps(module: Module, lost: Program) -> None:
    name = module("cli_locate_attribute", GOOD)

    said = refused(lost, f"{name}:appp")

    assert f"module {name!r} (" in said
    assert "has no 'appp'; its Apps are: app" in said


def test_no_such_attribute_names_near_ones(module: Module, lost: Program) -> None:
    name = module("cli_locate_near", "application = 1\n")

    assert "has no 'aplication'; did you mean application?" in refused(lost, f"{name}:aplication")
    assert "has no 'zzz'; define it: app = pgqueue.App()" in refused(lost, f"{name}:zzz")


def test_what_is_no_app(module: Module, lost: Program) -> None:
    name = module("cli_locate_no_app", GOOD + "@app.task\ndef ring() -> None: ...\n")

    assert f"{name}:other is of type int, not a pgqueue.App; its Apps are: app" in refused(lost, f"{name}:other")
    assert f"{name}:make is a function or class" in refused(lost, f"{name}:make")
    assert f"{name}:ring is of type Action, not a pgqueue.App" in refused(lost, f"{name}:ring")


BROKEN = {
    "an error": ("x = 1\nraise ValueError('no settings')\n", "ValueError: no settings", 2),
    "a missing library": ("import no_such_library\n", "ModuleNotFoundError: No module named 'no_such_library'", 1),
    "a syntax error": ("x = 1\ny = (\n", "SyntaxError", 2),
    "an exit": ("import sys\n\nsys.exit('bye')\n", "SystemExit: bye", 3),
    "a wrong setting": ("import pgqueue\napp = pgqueue.App(schema='No')\n", "InputError: schema cannot be 'No'", 2),
    "a password": ("raise OSError('postgresql://u:hunter2@h/d')\n", "OSError: postgresql://u:***@h/d", 1),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_module_that_cannot_be_imported_says_where(module: Module, lost: Program, tmp_path: Path, case: str) -> None:
    source, says, line = BROKEN[case]
    name = module(f"cli_locate_broken_{case.replace(' ', '_')}", source)

    said = refused(lost, f"{name}:app")

    assert f"{name} could not be imported: {says}" in said
    assert f"({tmp_path / name}.py, line {line})" in said or "pgqueue" in said


def test_an_import_inside_the_package_is_not_the_module_itself(module: Module, lost: Program) -> None:
    module("cli_locate_inner.tasks", "import cli_locate_inner.settings\n")

    said = refused(lost, "cli_locate_inner.tasks:app")

    assert "cli_locate_inner.settings" in said
