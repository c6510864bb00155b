"""`--app module:name`: find the App, or say what was looked for and where."""

from __future__ import annotations

import difflib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pgqueue.errors import AppNotFound
from pgqueue.sanitize import clean, one_line

if TYPE_CHECKING:
    from pgqueue.app import App


def load_app(locator: str, app_dir: str | None = None) -> App:
    """The App at `module:name`, with the working directory, or `app_dir`, on the path. AppNotFound says why not."""
    from pgqueue.app import App

    module_name, name = _parts(locator)
    folder = _on_path(app_dir)
    module = _imported(module_name, locator, folder)
    try:
        found = getattr(module, name)
    except AttributeError:
        raise _refuse(f"{_place(module)} has no {name!r}{_near_attribute(module, name, App)}") from None
    if not isinstance(found, App):
        plain = inspect.isroutine(found) or isinstance(found, type)
        what = "a function or class" if plain else f"of type {type(found).__name__}"
        raise _refuse(
            f"{locator} is {what}, not a pgqueue.App{_apps(module, App)}; name the App itself, such as"
            f" {module_name}:app"
        )
    return found


def aim(app: App, database_url: str | None, schema: str | None) -> None:
    """The command line's database and schema win over what the App's own code says."""
    if database_url:
        from pgqueue.database import Database

        app.database = Database(database_url, schema=schema or app.database.schema)
    elif schema:
        from pgqueue.keys import check_schema

        app.database = app.database.sibling()
        app.database.schema = check_schema(schema)


def _parts(locator: str) -> tuple[str, str]:
    module, colon, name = locator.strip().partition(":")
    path = Path(module)
    if "/" in module or path.suffix == ".py":
        dotted = ".".join(path.with_suffix("").parts).strip("./")
        raise _refuse(f"{locator!r} is a path; write the module's name, such as {dotted}:{name or 'app'}")
    if colon and module and name.isidentifier():
        return module, name
    if not colon and "." in module:
        parent, _, last = module.rpartition(".")
        raise _refuse(f"{locator!r} has no colon; write module:name, such as {parent}:{last} or {module}:app")
    if not colon and module:
        raise _refuse(f"{locator!r} names a module, not an App in it; write module:name, such as {module}:app")
    raise _refuse(f"{locator!r} is not module:name; write it like shop.tasks:app")


def _on_path(app_dir: str | None) -> Path:
    """The console script has its own folder on sys.path, not the working directory."""
    folder = Path(app_dir or os.getcwd()).resolve()
    if not folder.is_dir():
        raise _refuse(f"--app-dir {app_dir} is no directory; name the one that holds the module")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


def _imported(name: str, locator: str, folder: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Itself or a parent of it; anything else is an import inside it that failed.
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise _refuse(
                f"no module {error.name!r} for --app {locator}: looked in {folder} and on Python's path"
                f"{_near_module(error.name, folder)}; change to its folder, or pass --app-dir"
            ) from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> AppNotFound:
    what = one_line(clean(f"{type(error).__name__}: {error}", limit=1000), 500)
    return _refuse(f"{name} could not be imported: {what} ({_line_of(error)}); mend it, then try again")


def _line_of(error: BaseException) -> str:
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    ours = [frame for frame in frames if frame.filename != __file__]
    return f"{ours[-1].filename}, line {ours[-1].lineno}" if ours else "line unknown"


def _near_module(name: str, folder: Path) -> str:
    parent, _, last = name.rpartition(".")
    places = [str(folder.joinpath(*parent.split(".")))] if parent else [str(folder)]
    near = difflib.get_close_matches(last, [found.name for found in pkgutil.iter_modules(places)], n=1)
    return f"; did you mean {f'{parent}.{near[0]}' if parent else near[0]}?" if near else ""


def _near_attribute(module: ModuleType, name: str, kind: type[Any]) -> str:
    near = difflib.get_close_matches(name, [n for n in vars(module) if not n.startswith("_")], n=1)
    return _apps(module, kind) or (f"; did you mean {near[0]}?" if near else "; define it: app = pgqueue.App()")


def _apps(module: ModuleType, kind: type[Any]) -> str:
    names = [name for name, value in vars(module).items() if isinstance(value, kind)]
    return f"; its Apps are: {', '.join(names)}" if names else ""


def _place(module: ModuleType) -> str:
    file = getattr(module, "__file__", None)
    return f"module {module.__name__!r}" + (f" ({file})" if file else "")


def _refuse(text: str) -> AppNotFound:
    return AppNotFound(text, field="app")
