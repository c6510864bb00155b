"""The verbs as a case names them: each runs on a connection and says in a few words what it answered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from sqlalchemy import Connection

from pgqueue.options import NewTask, Options

from .world import STORE, lease_on, task_id

__all__ = ["KINDS", "Verb"]


@dataclasses.dataclass(frozen=True)
class Verb:
    """kind: what the issue calls it. run: the verb itself."""

    kind: str
    run: Callable[[Connection], str]

    def __call__(self, connection: Connection) -> str:
        return self.run(connection)


KINDS = (
    "claim",
    "complete",
    "fail",
    "cancel",
    "reap",
    "enqueue with key",
    "enqueue with parent",
    "set_gate",
    "retry",
    "prune",
)
"""Each of these meets each of them."""


def _letter(found: object) -> str:
    return chr(int(str(found)[-2:], 16))


def claim(agent: str = "a") -> Verb:
    """The agent's next task."""

    def run(connection: Connection) -> str:
        claimed = STORE.claim(connection, agent, owner="w")
        return f"claimed {_letter(claimed.lease.task_id)}" if claimed else "nothing"

    return Verb("claim", run)


def claim_batch(limit: int = 1) -> Verb:
    """What anybody may take, then what free agents may."""

    def run(connection: Connection) -> str:
        claimed = STORE.claim_batch(connection, limit=limit, owner="w")
        return "claimed " + "".join(_letter(c.lease.task_id) for c in claimed) if claimed else "nothing"

    return Verb("claim", run)


def complete(letter: str) -> Verb:
    return Verb("complete", lambda connection: str(STORE.complete(connection, lease_on(letter), "r").status))


def fail(letter: str) -> Verb:
    """Due again at once, where attempts are left."""
    return Verb("fail", lambda connection: str(STORE.fail(connection, lease_on(letter), "e", delay=0).status))


def release(letter: str) -> Verb:
    return Verb("release", lambda connection: str(STORE.release(connection, lease_on(letter)).status))


def renew(letter: str) -> Verb:
    def run(connection: Connection) -> str:
        renewed = STORE.renew(connection, lease_on(letter))
        return "renewed" + (", told to stop" if renewed.cancel_requested else "")

    return Verb("renew", run)


def cancel(letter: str) -> Verb:
    def run(connection: Connection) -> str:
        status = STORE.cancel(connection, task_id(letter))
        return "asked" if status == "running" else str(status)

    return Verb("cancel", run)


def reap() -> Verb:
    def run(connection: Connection) -> str:
        reaped = STORE.reap(connection)
        return ", ".join(f"{_letter(one.id)} to {one.status}" for one in reaped) or "nothing"

    return Verb("reap", run)


def _enqueue(kind: str, letter: str, **options: object) -> Verb:
    given: Options = {"id": task_id(letter), **options}  # type: ignore[typeddict-item]

    def run(connection: Connection) -> str:
        task = NewTask("act", None, given)
        enqueue = STORE.enqueue_child if "depends_on" in given else STORE.enqueue_new
        enqueued = enqueue(connection, task)
        return "created" if enqueued.created else f"adopted {_letter(enqueued.id)}"

    return Verb(kind, run)


def enqueue_key(letter: str, key: str = "k", *, agent: str | None = None, dedupe: str = "active") -> Verb:
    return _enqueue(
        "enqueue with key", letter, dedupe_key=key, dedupe=dedupe, **({} if agent is None else {"agent": agent})
    )


def enqueue_child(letter: str, parents: str, *, key: str | None = None, run_anyway: bool = False) -> Verb:
    return _enqueue(
        "enqueue with parent",
        letter,
        depends_on=[task_id(parent) for parent in parents],
        on_parent_failure="run" if run_anyway else "cancel",
        **({} if key is None else {"dedupe_key": key}),
    )


def set_gate(letter: str, parents: str = "", *, requires: Sequence[str] = ()) -> Verb:
    def run(connection: Connection) -> str:
        gated = STORE.set_gate(
            connection, task_id(letter), depends_on=[task_id(parent) for parent in parents], requires=requires
        )
        return "gated" if gated else f"not gated: {gated.status or 'unknown'}"

    return Verb("set_gate", run)


def retry(letter: str) -> Verb:
    return Verb("retry", lambda connection: f"{STORE.retry(connection, task_id(letter)).status} again")


def prune(*, forever: bool = False) -> Verb:
    """All that has ended, of whatever age, the dead too."""
    return Verb("prune", lambda c: f"pruned {STORE.prune(c, retention=0, dead=0, forever=forever).tasks}")


def sweep() -> Verb:
    """Says nothing of what it found: which of two looks first is no matter."""

    def run(connection: Connection) -> str:
        STORE.sweep(connection)
        return "swept"

    return Verb("sweep", run)


def evict(letter: str) -> Verb:
    return Verb("evict", lambda connection: str(STORE.evict(connection, task_id(letter))))
