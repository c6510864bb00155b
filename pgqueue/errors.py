"""What can go wrong, one class per reaction.

    PgqueueError
    ├─ InputError (ValueError)            what was passed cannot be accepted; nothing was written
    │   ├─ PayloadError                   not JSON, too large, or not what the handler's annotations say
    │   ├─ UnknownAction (LookupError)    no handler of that name
    │   ├─ ConfigError                    a setting is out of range or contradicts another
    │   ├─ AppNotFound                    `--app module:name` leads nowhere
    │   └─ WrongIsolation                 the caller's transaction is not READ COMMITTED; begin another
    ├─ TaskNotFound (LookupError)         no task of that id
    ├─ AmbiguousId (LookupError)          several tasks; name one of them
    ├─ Refused                            the lifecycle or an invariant said no; nothing changed
    │   ├─ TransitionRefused              the task is in another status
    │   ├─ KeyHeld                        another task holds the dedupe key
    │   ├─ CircularDependency             a task would wait for itself
    │   └─ JournalOff                     an audit, of a journal that does not hold every move
    ├─ LeaseNotHeld                       somebody else decides about this task now: stop, do not settle
    ├─ RetryTransaction                   the caller's transaction lost a race: roll back, run it again
    ├─ SchemaMismatch                     program and schema do not fit: migrate one of them
    └─ DatabaseError                      the server or the way to it: wait, or mend the connection
        ├─ NoDatabase                     none was named
        ├─ OutcomeUnknown                 the connection broke at COMMIT: look the id up before trying again
        └─ EmbeddedError                  the embedded server could not be started or used

Every text is one line and ends in what to do. Attributes carry what a program needs; texts are for people.
No text holds a payload or a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from .lifecycle import Event, Status

__all__ = [
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
]


class PgqueueError(Exception):
    """The root: `except PgqueueError` catches all that this package raises on purpose."""


class InputError(PgqueueError, ValueError):
    """A value cannot be accepted. Nothing was written."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class PayloadError(InputError):
    """Arguments or a result do not fit JSON, the size limit or the handler's annotations. `field` names the place."""


class UnknownAction(InputError, LookupError):
    """The App knows no handler of this name."""

    def __init__(self, message: str, *, action: str) -> None:
        super().__init__(message, field="action")
        self.action = action


class ConfigError(InputError):
    """A setting is out of range, or contradicts another."""


class AppNotFound(InputError):
    """`module:name` could not be imported, or is no App."""


class WrongIsolation(InputError):
    """A verb that ends tasks was joined to a transaction that is not READ COMMITTED.

    It reads again with a fresh snapshot after locking; at a higher level it would read the old one, and
    children would wait for ever.
    """


class TaskNotFound(PgqueueError, LookupError):
    """No task has this id; it never existed, or was pruned."""

    def __init__(self, message: str, *, task_id: UUID | str) -> None:
        super().__init__(message)
        self.task_id = task_id


class AmbiguousId(PgqueueError, LookupError):
    """A prefix or tail fits several tasks. `matches` holds the ids, newest first."""

    def __init__(self, message: str, *, matches: Sequence[UUID]) -> None:
        super().__init__(message)
        self.matches = tuple(matches)


class Refused(PgqueueError):
    """The move is not lawful now. Nothing changed. `task_id` is None where it is no single task's matter."""

    def __init__(self, message: str, *, task_id: UUID | None) -> None:
        super().__init__(message)
        self.task_id = task_id


class TransitionRefused(Refused):
    """The task's status has no such move. `status` is what it was found in.

    `event` is what was asked for; None where that is no event, as a reschedule.
    """

    def __init__(self, message: str, *, task_id: UUID, status: Status, event: Event | None) -> None:
        super().__init__(message, task_id=task_id)
        self.status = status
        self.event = event


class KeyHeld(Refused):
    """Another active task holds this task's dedupe key. `holder` is its id."""

    def __init__(self, message: str, *, task_id: UUID, holder: UUID) -> None:
        super().__init__(message, task_id=task_id)
        self.holder = holder


class CircularDependency(Refused):
    """Parents would close a circle. `path` leads from the task back to itself, each waiting for the next."""

    def __init__(self, message: str, *, task_id: UUID, path: Sequence[UUID]) -> None:
        super().__init__(message, task_id=task_id)
        self.path = tuple(path)


class JournalOff(Refused):
    """The journal holds failures alone: there is nothing to audit. `task_id` is None."""

    def __init__(self, message: str) -> None:
        super().__init__(message, task_id=None)


class LeaseNotHeld(PgqueueError):
    """A holder's write was refused: the lease belongs to somebody else, or to nobody. Nothing changed.

    Stop the work and do not settle: whoever holds the task now decides about it. `status` is None when the
    task no longer exists; `owner` and `since` say who holds it now; `renewed_at` is when this holder's lease
    was last accepted, where the caller knew it.
    """

    def __init__(
        self,
        message: str,
        *,
        task_id: UUID,
        status: Status | None,
        owner: str | None = None,
        since: datetime | None = None,
        renewed_at: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.task_id = task_id
        self.status = status
        self.owner = owner
        self.since = since
        self.renewed_at = renewed_at


class RetryTransaction(PgqueueError):
    """The caller's transaction met a serialization failure or a deadlock and is aborted: roll back, run it again."""


class SchemaMismatch(PgqueueError):
    """The schema is missing, older than this program, or newer and unwilling to serve it."""


class DatabaseError(PgqueueError):
    """The server, or the network, or the way to log in. What was asked may not have happened."""


class NoDatabase(DatabaseError):
    """Nobody named a database."""


class OutcomeUnknown(DatabaseError):
    """The connection broke while a commit was under way; the server may or may not have committed.

    `task_ids` are the ids that the call would have written: look them up (`get`), or repeat the same call.
    """

    def __init__(self, message: str, *, task_ids: Sequence[UUID] = ()) -> None:
        super().__init__(message)
        self.task_ids = tuple(task_ids)


class EmbeddedError(DatabaseError):
    """The embedded server cannot be found, started, reached or stopped."""
