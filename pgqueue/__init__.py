"""A task queue whose only moving part is PostgreSQL.

`App` and `@app.task` declare handlers; `Client` and `AsyncClient` are the lifecycle as Python calls. Importing this
package imports none of them: each name is loaded on first use (PEP 562), so that the command line stays quick.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .config import VERSION

if TYPE_CHECKING:
    from .app import Action as Action
    from .app import App as App
    from .client import AsyncClient as AsyncClient
    from .client import Client as Client
    from .context import Context as Context
    from .context import Interrupted as Interrupted
    from .errors import AmbiguousId as AmbiguousId
    from .errors import AppNotFound as AppNotFound
    from .errors import CircularDependency as CircularDependency
    from .errors import ConfigError as ConfigError
    from .errors import DatabaseError as DatabaseError
    from .errors import EmbeddedError as EmbeddedError
    from .errors import InputError as InputError
    from .errors import JournalOff as JournalOff
    from .errors import KeyHeld as KeyHeld
    from .errors import LeaseNotHeld as LeaseNotHeld
    from .errors import NoDatabase as NoDatabase
    from .errors import OutcomeUnknown as OutcomeUnknown
    from .errors import PayloadError as PayloadError
    from .errors import PgqueueError as PgqueueError
    from .errors import Refused as Refused
    from .errors import RetryTransaction as RetryTransaction
    from .errors import SchemaMismatch as SchemaMismatch
    from .errors import TaskNotFound as TaskNotFound
    from .errors import TransitionRefused as TransitionRefused
    from .errors import UnknownAction as UnknownAction
    from .errors import WrongIsolation as WrongIsolation
    from .ids import new_id as new_id
    from .journal import Audit as Audit
    from .journal import Drift as Drift
    from .journal import Gap as Gap
    from .keys import boot_update_dedupe_key as boot_update_dedupe_key
    from .keys import workflow_dedupe_key as workflow_dedupe_key
    from .lifecycle import Event as Event
    from .lifecycle import Status as Status
    from .lifecycle import can_transition as can_transition
    from .options import Enqueued as Enqueued
    from .options import NewTask as NewTask
    from .options import Options as Options
    from .outcome import Permanent as Permanent
    from .outcome import RetryAfter as RetryAfter
    from .outcome import Snooze as Snooze
    from .task import Claimed as Claimed
    from .task import Gated as Gated
    from .task import Lease as Lease
    from .task import Page as Page
    from .task import Parent as Parent
    from .task import Pruned as Pruned
    from .task import Renewed as Renewed
    from .task import Settled as Settled
    from .task import Task as Task
    from .task import TaskEvent as TaskEvent

_HOMES = {
    "app": ("Action", "App"),
    "client": ("AsyncClient", "Client"),
    "context": ("Context", "Interrupted"),
    "errors": (
        "AmbiguousId",
        "AppNotFound",
        "CircularDependency",
        "ConfigError",
        "DatabaseError",
        "EmbeddedError",
        "InputError",
        "JournalOff",
        "KeyHeld",
        "LeaseNotHeld",
        "NoDatabase",
        "OutcomeUnknown",
        "PayloadError",
        "PgqueueError",
        "Refused",
        "RetryTransaction",
        "SchemaMismatch",
        "TaskNotFound",
        "TransitionRefused",
        "UnknownAction",
        "WrongIsolation",
    ),
    "ids": ("new_id",),
    "journal": ("Audit", "Drift", "Gap"),
    "keys": ("boot_update_dedupe_key", "workflow_dedupe_key"),
    "lifecycle": ("Event", "Status", "can_transition"),
    "options": ("Enqueued", "NewTask", "Options"),
    "outcome": ("Permanent", "RetryAfter", "Snooze"),
    "task": ("Claimed", "Gated", "Lease", "Page", "Parent", "Pruned", "Renewed", "Settled", "Task", "TaskEvent"),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}

__version__ = VERSION

__all__ = sorted([*_MODULES, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
