"""Where an app was declared, so that another process can find it: told by the worker, looked up by the child."""

from __future__ import annotations

import importlib
import multiprocessing.process
import os
import sys
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..app import Action, App

__all__ = ["IMPORTING", "finds", "locate", "main_module", "place"]

IMPORTING = threading.Event()
"""Set while a handler's process imports the app: a script that would start a worker then has forgotten its guard."""


def place(action: Action[..., Any]) -> tuple[str, str]:
    """The module and the qualified name of its handler; empty where it has none, as a partial has."""
    handler = action.handler
    return getattr(handler, "__module__", None) or "", getattr(handler, "__qualname__", None) or ""


def locate(app: App, actions: Sequence[Action[..., Any]]) -> tuple[str, str] | None:
    """The module and the name under which this App is to be had by an import, those that declare its actions first.

    None: there is none, but each of the actions is to be had by its own name. ConfigError: not even that.
    """
    declaring = [module for module, _ in map(place, actions)]
    for module in dict.fromkeys((*declaring, "__main__", *sorted(sys.modules))):
        for name, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if value is app:
                return module, name
    for action in actions:
        if finds(*place(action), app=app, name=action.name) is None:
            raise ConfigError(
                f"action {action.name!r} is to run in a process, which could not find it: neither its App nor the"
                " action is a name of a module; declare both at the top level of one",
                field="isolation",
            )
    return None


def finds(module: str, qualname: str, *, app: App | None, name: str) -> Action[..., Any] | None:
    """The action at that place, imported here if need be; None where something else is there."""
    from ..app import Action

    try:
        found: object = importlib.import_module(module)
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError):
        return None
    right = isinstance(found, Action) and found.name == name and (app is None or found.app is app)
    return found if right else None  # type: ignore[return-value]


def main_module() -> tuple[str, str] | None:
    """How to make `__main__` again elsewhere: as multiprocessing's spawn does, but for its side effects."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        return "name", spec.name
    path = getattr(main, "__file__", None)
    if path is None:
        return None
    origin = getattr(multiprocessing.process, "ORIGINAL_DIR", None)
    if not os.path.isabs(path) and origin is not None:
        path = os.path.join(origin, path)
    return "path", os.path.normpath(path)
