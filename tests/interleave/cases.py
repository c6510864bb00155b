"""The pairs: which two verbs meet over which tasks.

Letters name tasks; what they wait for is written "CP": C waits for P, and "CP!": the sweep is to look at it. Every two
of `verbs.KINDS` meet at least once over the same task, the same key, the same agent, or the same parent and child.
`lawful.py` has what may come of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from pgqueue.lifecycle import Status

from .verbs import (
    Verb,
    cancel,
    claim,
    claim_batch,
    complete,
    enqueue_child,
    enqueue_key,
    evict,
    fail,
    prune,
    reap,
    release,
    renew,
    retry,
    set_gate,
    sweep,
)
from .world import Row

__all__ = ["CASES", "Case"]


@dataclasses.dataclass(frozen=True)
class Case:
    """Two verbs, what they find, and the letters of all tasks that there may be in the end."""

    name: str
    verbs: tuple[Verb, Verb]
    rows: Mapping[str, Row]
    edges: Sequence[str]
    letters: Sequence[str]


def _case(what: str, one: Verb, other: Verb, rows: Mapping[str, Row], edges: str = "", new: str = "") -> Case:
    return Case(f"{one.kind} and {other.kind}: {what}", (one, other), rows, edges.split(), sorted({*rows, *new}))


_PENDING = Row(Status.PENDING)
_RUNNING = Row(Status.RUNNING)
_LAST = Row(Status.RUNNING, max_attempts=1)
"""Running for the last time: a failure kills it."""
_EXPIRED = Row(Status.RUNNING, expired=True)
_EXPIRED_LAST = Row(Status.RUNNING, expired=True, max_attempts=1)
_COMPLETED = Row(Status.COMPLETED)
_CANCELLED = Row(Status.CANCELLED)
_DEAD = Row(Status.DEAD, attempts=1, max_attempts=1)


def _of(row: Row, **changes: object) -> Row:
    return dataclasses.replace(row, **changes)  # type: ignore[arg-type]


_A = {"agent": "a"}
_K = {"key": "k"}

CASES: Sequence[Case] = (
    # -- claim
    _case("two tasks of one agent", claim(), claim(), {"T": _of(_PENDING, **_A), "U": _of(_PENDING, **_A)}),
    _case("an agent's task, by name and in a batch", claim(), claim_batch(), {"T": _of(_PENDING, **_A)}),
    _case("one task of nobody", claim_batch(), claim_batch(), {"T": _PENDING}),
    _case("two tasks of nobody", claim_batch(), claim_batch(2), {"T": _PENDING, "U": _PENDING}),
    _case("the agent's next", claim(), complete("T"), {"T": _of(_RUNNING, **_A), "U": _of(_PENDING, **_A)}),
    _case("the child", claim(), complete("P"), {"P": _RUNNING, "C": _of(_PENDING, **_A)}, "CP"),
    _case("the agent's next", claim(), fail("T"), {"T": _of(_RUNNING, **_A), "U": _of(_PENDING, **_A)}),
    _case(
        "a child that runs anyway",
        claim_batch(),
        fail("P"),
        {"P": _LAST, "C": _of(_PENDING, on_parent_failure="run")},
        "CP",
    ),
    _case("the task", claim(), cancel("T"), {"T": _of(_PENDING, **_A)}),
    _case("a task of nobody", claim_batch(), cancel("T"), {"T": _PENDING}),
    _case("the agent's expired one", claim(), reap(), {"T": _of(_EXPIRED, **_A)}),
    _case("the agent's next", claim_batch(), reap(), {"T": _of(_EXPIRED, **_A), "U": _of(_PENDING, **_A)}),
    _case("the key's holder", claim(), enqueue_key("N", agent="a"), {"T": _of(_PENDING, **_A, **_K)}, new="N"),
    _case("what is new", claim_batch(), enqueue_key("N"), {}, new="N"),
    _case("the parent", claim(), enqueue_child("N", "P"), {"P": _of(_PENDING, **_A)}, new="N"),
    _case("the task", claim(), set_gate("T", "P"), {"P": _RUNNING, "T": _of(_PENDING, **_A)}),
    _case("a task let go", claim_batch(), set_gate("T"), {"P": _RUNNING, "T": _PENDING}, "TP"),
    _case("the task", claim(), retry("T"), {"T": _of(_DEAD, **_A)}),
    _case("a child of what goes", claim(), prune(), {"P": _COMPLETED, "T": _of(_PENDING, **_A)}, "TP"),
    # -- complete
    _case("sent twice", complete("T"), complete("T"), {"T": _RUNNING}),
    _case("two parents", complete("P"), complete("Q"), {"P": _RUNNING, "Q": _RUNNING, "X": _PENDING}, "XP XQ"),
    _case("one lease", complete("T"), fail("T"), {"T": _RUNNING}),
    _case("two parents", complete("P"), fail("Q"), {"P": _RUNNING, "Q": _LAST, "X": _PENDING}, "XP XQ"),
    _case("the task", complete("T"), cancel("T"), {"T": _RUNNING}),
    _case("parent and child", complete("P"), cancel("X"), {"P": _RUNNING, "X": _PENDING}, "XP"),
    _case("parent and grandchild", complete("P"), cancel("Y"), {"P": _RUNNING, "X": _PENDING, "Y": _PENDING}, "XP YX"),
    _case("the task", complete("T"), reap(), {"T": _EXPIRED}),
    _case("two parents", complete("P"), reap(), {"P": _RUNNING, "Q": _EXPIRED_LAST, "X": _PENDING}, "XP XQ"),
    _case("the key's holder", complete("T"), enqueue_key("N"), {"T": _of(_RUNNING, **_K)}, new="N"),
    _case(
        "a key used for ever",
        complete("T"),
        enqueue_key("N", dedupe="forever"),
        {"T": _of(_RUNNING, **_K, forever=True)},
        new="N",
    ),
    _case("the parent", complete("P"), enqueue_child("X", "P"), {"P": _RUNNING}, new="X"),
    _case("one of two parents", complete("P"), enqueue_child("X", "PQ"), {"P": _RUNNING, "Q": _RUNNING}, new="X"),
    _case("the parent", complete("P"), set_gate("X", "P"), {"P": _RUNNING, "X": _PENDING}),
    _case(
        "the parent that is exchanged",
        complete("P"),
        set_gate("X", "Q"),
        {"P": _RUNNING, "Q": _RUNNING, "X": _PENDING},
        "XP",
    ),
    _case("a key of both", complete("T"), retry("U"), {"T": _of(_RUNNING, **_K), "U": _of(_DEAD, **_K)}),
    _case("the task", complete("T"), prune(), {"T": _RUNNING}),
    _case("the parent of what goes", complete("P"), prune(), {"P": _RUNNING, "X": _CANCELLED}, "XP"),
    # -- fail
    _case("sent twice", fail("T"), fail("T"), {"T": _RUNNING}),
    _case("two parents", fail("P"), fail("Q"), {"P": _LAST, "Q": _LAST, "X": _PENDING}, "XP XQ"),
    _case(
        "parents of one grandchild",
        fail("P"),
        fail("Q"),
        {"P": _LAST, "Q": _LAST, "X": _PENDING, "Y": _PENDING, "Z": _PENDING},
        "XP YQ ZX ZY",
    ),
    _case("the task", fail("T"), cancel("T"), {"T": _RUNNING}),
    _case("for the last time", fail("T"), cancel("T"), {"T": _LAST}),
    _case("parent and child", fail("P"), cancel("X"), {"P": _LAST, "X": _PENDING, "Y": _PENDING}, "XP YX"),
    _case("the task", fail("T"), reap(), {"T": _EXPIRED}),
    _case("for the last time", fail("T"), reap(), {"T": _EXPIRED_LAST}),
    _case("the key's holder", fail("T"), enqueue_key("N"), {"T": _of(_LAST, **_K)}, new="N"),
    _case("the parent", fail("P"), enqueue_child("X", "P"), {"P": _LAST}, new="X"),
    _case(
        "the parent, whatever becomes of it", fail("P"), enqueue_child("X", "P", run_anyway=True), {"P": _LAST}, new="X"
    ),
    _case("a grandchild", fail("P"), enqueue_child("Y", "X"), {"P": _LAST, "X": _PENDING}, "XP", new="Y"),
    _case("the parent", fail("P"), set_gate("X", "P"), {"P": _LAST, "X": _PENDING}),
    _case("the child let go", fail("P"), set_gate("X"), {"P": _LAST, "X": _PENDING}, "XP"),
    _case("the grandchild moved", fail("P"), set_gate("Y", "P"), {"P": _LAST, "X": _PENDING, "Y": _PENDING}, "XP YX"),
    _case("the task", fail("T"), retry("T"), {"T": _LAST}),
    _case("a key of both", fail("T"), retry("U"), {"T": _of(_LAST, **_K), "U": _of(_DEAD, **_K)}),
    _case("the task", fail("T"), prune(), {"T": _LAST}),
    _case("the parent of what goes", fail("P"), prune(), {"P": _LAST, "X": _PENDING}, "XP"),
    # -- cancel
    _case("the task", cancel("T"), cancel("T"), {"T": _PENDING}),
    _case("while it runs", cancel("T"), cancel("T"), {"T": _RUNNING}),
    _case("parent and child", cancel("P"), cancel("X"), {"P": _PENDING, "X": _PENDING}, "XP"),
    _case("the older is the child", cancel("P"), cancel("B"), {"P": _PENDING, "B": _PENDING}, "BP"),
    _case("the task", cancel("T"), reap(), {"T": _EXPIRED}),
    _case("child of the expired", cancel("X"), reap(), {"P": _EXPIRED_LAST, "X": _PENDING}, "XP"),
    _case("the key's holder", cancel("T"), enqueue_key("N"), {"T": _of(_PENDING, **_K)}, new="N"),
    _case("the parent", cancel("P"), enqueue_child("X", "P"), {"P": _PENDING}, new="X"),
    _case("the parent's parent", cancel("P"), enqueue_child("Y", "X"), {"P": _PENDING, "X": _PENDING}, "XP", new="Y"),
    _case("the child", cancel("X"), set_gate("X", "P"), {"P": _RUNNING, "X": _PENDING}),
    _case("the parent", cancel("P"), set_gate("X", "P"), {"P": _PENDING, "X": _PENDING}),
    _case("the child let go", cancel("P"), set_gate("X"), {"P": _PENDING, "X": _PENDING}, "XP"),
    _case("the task", cancel("T"), retry("T"), {"T": _DEAD}),
    _case("the key's holder", cancel("T"), retry("U"), {"T": _of(_PENDING, **_K), "U": _of(_DEAD, **_K)}),
    _case("the task", cancel("T"), prune(), {"T": _PENDING}),
    _case("the parent of what goes", cancel("P"), prune(), {"P": _PENDING, "X": _PENDING, "Y": _CANCELLED}, "XP YX"),
    # -- reap
    _case("two of them", reap(), reap(), {"T": _EXPIRED, "U": _EXPIRED_LAST}),
    _case("parents of one child", reap(), reap(), {"P": _EXPIRED_LAST, "Q": _EXPIRED_LAST, "X": _PENDING}, "XP XQ"),
    _case("the key's holder", reap(), enqueue_key("N"), {"T": _of(_EXPIRED_LAST, **_K)}, new="N"),
    _case("the parent", reap(), enqueue_child("X", "P"), {"P": _EXPIRED_LAST}, new="X"),
    _case("a parent that goes on", reap(), enqueue_child("X", "P"), {"P": _EXPIRED}, new="X"),
    _case("the parent", reap(), set_gate("X", "P"), {"P": _EXPIRED_LAST, "X": _PENDING}),
    _case("the task", reap(), retry("T"), {"T": _EXPIRED_LAST}),
    _case("a key of both", reap(), retry("U"), {"T": _of(_EXPIRED_LAST, **_K), "U": _of(_DEAD, **_K)}),
    _case("the task", reap(), prune(), {"T": _of(_EXPIRED, cancel_requested=True)}),
    # -- enqueue with key
    _case("one key", enqueue_key("M"), enqueue_key("N"), {}, new="MN"),
    _case(
        "one key, once for ever", enqueue_key("M", dedupe="forever"), enqueue_key("N", dedupe="forever"), {}, new="MN"
    ),
    _case("both modes", enqueue_key("M"), enqueue_key("N", dedupe="forever"), {}, new="MN"),
    _case("two agents", enqueue_key("M", agent="a"), enqueue_key("N", agent="b"), {}, new="MN"),
    _case(
        "one key, two agents have it",
        enqueue_key("M", agent="a"),
        enqueue_key("N", agent="b"),
        {"T": _of(_PENDING, **_A, **_K), "U": _of(_PENDING, agent="b", key="k")},
        new="MN",
    ),
    _case("one id", enqueue_key("N"), enqueue_key("N", "other"), {}, new="N"),
    _case("one key", enqueue_key("M"), enqueue_child("N", "P", key="k"), {"P": _RUNNING}, new="MN"),
    _case("the key's holder", enqueue_key("N"), set_gate("T", "P"), {"P": _RUNNING, "T": _of(_PENDING, **_K)}, new="N"),
    _case("the key of the dead", enqueue_key("N"), retry("T"), {"T": _of(_DEAD, **_K)}, new="N"),
    _case(
        "the key for ever of the dead",
        enqueue_key("N", dedupe="forever"),
        retry("T"),
        {"T": _of(_DEAD, **_K, forever=True)},
        new="N",
    ),
    _case("the key's last holder", enqueue_key("N"), prune(), {"T": _of(_COMPLETED, **_K)}, new="N"),
    _case(
        "a key used for ever",
        enqueue_key("N", dedupe="forever"),
        prune(forever=True),
        {"T": _of(_COMPLETED, **_K, forever=True)},
        new="N",
    ),
    # -- enqueue with parent
    _case("one parent", enqueue_child("X", "P"), enqueue_child("Y", "P"), {"P": _RUNNING}, new="XY"),
    _case("each the other's", enqueue_child("X", "Y"), enqueue_child("Y", "X"), {}, new="XY"),
    _case("the parent", enqueue_child("X", "P"), set_gate("P", "Q"), {"P": _PENDING, "Q": _RUNNING}, new="X"),
    _case("a circle", enqueue_child("X", "P"), set_gate("P", "X"), {"P": _PENDING}, new="X"),
    _case("the dead parent", enqueue_child("X", "P"), retry("P"), {"P": _DEAD}, new="X"),
    _case("the parent", enqueue_child("X", "P"), prune(), {"P": _COMPLETED}, new="X"),
    _case("a dead parent", enqueue_child("X", "P"), prune(), {"P": _DEAD}, new="X"),
    # -- set_gate
    _case("the task", set_gate("T", "P"), set_gate("T", "Q"), {"P": _RUNNING, "Q": _RUNNING, "T": _PENDING}),
    _case("a circle", set_gate("X", "Y"), set_gate("Y", "X"), {"X": _PENDING, "Y": _PENDING}),
    _case("the dead parent", set_gate("X", "P"), retry("P"), {"P": _DEAD, "X": _PENDING}),
    _case("the task", set_gate("T", "P"), retry("T"), {"P": _RUNNING, "T": _DEAD}),
    _case("the parent", set_gate("X", "P"), prune(), {"P": _COMPLETED, "X": _PENDING}),
    _case("a dead parent", set_gate("X", "P"), prune(), {"P": _DEAD, "X": _PENDING}),
    _case("the last child", set_gate("X"), prune(), {"P": _DEAD, "X": _PENDING}, "XP"),
    # -- retry
    _case("the task", retry("T"), retry("T"), {"T": _DEAD}),
    _case("one key", retry("T"), retry("U"), {"T": _of(_DEAD, **_K), "U": _of(_DEAD, **_K)}),
    _case("the task", retry("T"), prune(), {"T": _DEAD}),
    # -- prune
    _case("the same", prune(), prune(), {"T": _COMPLETED, "U": _DEAD}),
    _case("parent and child", prune(), prune(), {"P": _COMPLETED, "X": _CANCELLED}, "XP"),
    # -- what the ten do not name
    _case("the lease", reap(), renew("T"), {"T": _EXPIRED}),
    _case("the task", cancel("T"), renew("T"), {"T": _RUNNING}),
    _case("the task", cancel("T"), release("T"), {"T": _RUNNING}),
    _case("the holder", complete("T"), evict("T"), {"T": _RUNNING}),
    _case("an edge left over", sweep(), complete("P"), {"P": _RUNNING, "X": _PENDING}, "XP!"),
    _case("the parent of an edge left over", sweep(), fail("P"), {"P": _LAST, "X": _PENDING}, "XP!"),
    _case("an edge left over", sweep(), enqueue_child("Y", "X"), {"P": _DEAD, "X": _PENDING}, "XP!", new="Y"),
    _case("an edge left over", sweep(), set_gate("X"), {"P": _DEAD, "X": _PENDING}, "XP!"),
    _case("the dead parent of an edge left over", sweep(), retry("P"), {"P": _DEAD, "X": _PENDING}, "XP!"),
    _case("the parent of an edge left over", sweep(), prune(), {"P": _DEAD, "X": _PENDING}, "XP!"),
    _case("an edge left over", sweep(), sweep(), {"P": _DEAD, "X": _PENDING, "Y": _PENDING}, "XP! YX"),
)
