"""The machine can fail: with each of these bugs planted, a short run with a fixed seed finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from pgqueue import statements
from pgqueue.database import Database
from pgqueue.edges import Fate, fate
from pgqueue.lifecycle import Event, Guard, Move, Status, moves_of
from pgqueue.statements import LEVELS, moves
from pgqueue.statements.moves import Moves
from pgqueue.store import Store, claim, depend, enqueue
from pgqueue.store.depend import Depending

from .machine import CONDITIONS, Lifecycle
from .server import Server
from .test_model import LIVE

Plant = Callable[[pytest.MonkeyPatch], None]


def _writes(event: Event, *left_out: str) -> Plant:
    """The event does not write those columns."""
    real = Moves._also

    def also(self: Moves, happens: Event, target: Any) -> Mapping[str, object]:
        written = real(self, happens, target)
        return {k: v for k, v in written.items() if k not in left_out} if happens is event else written

    return lambda patch: patch.setattr(Moves, "_also", also)


def _expires_whoever_cancelled(patch: pytest.MonkeyPatch) -> None:
    def some(event: Event) -> tuple[Move, ...]:
        rows = moves_of(event)
        return tuple(r for r in rows if event is not Event.EXPIRE or r.guard is not Guard.CANCEL_REQUESTED)

    patch.setattr(moves, "moves_of", some)


def _lifts_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Depending, "_ended", lambda self, connection, ended: None)


def _cascades_one_level(patch: pytest.MonkeyPatch) -> None:
    def ended(self: Depending, connection: Connection, ended: Mapping[UUID, Status]) -> None:
        if ended:
            rows = connection.execute(self.sql.lift(failed=True), {"ids": list(ended)}).all()
            self._record(connection, Event.CASCADE, depend._cascaded(rows))

    patch.setattr(Depending, "_ended", ended)


def _lets_nobody_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(depend, "fate", lambda parent, locked: Fate.WAIT if parent is None else fate(parent, locked=locked))


def _knows_no_keys(patch: pytest.MonkeyPatch) -> None:
    real = enqueue._row_of
    patch.setattr(enqueue, "_row_of", lambda task: real(task) | {"new_dedupe_key": None, "new_dedupe_forever": None})


def _adopts_across_agents(patch: pytest.MonkeyPatch) -> None:
    real = Store._existing
    patch.setattr(Store, "_existing", lambda self, connection, row: real(self, connection, row | {"new_agent": None}))


def _asks_the_lowest_priority_first(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(claim, "LEVELS", LEVELS[::-1])


def _agents_meet_every_condition(patch: pytest.MonkeyPatch) -> None:
    real = Store._claim_heads
    patch.setattr(Store, "_claim_heads", lambda *given, **more: real(*given, **(more | {"offers": CONDITIONS})))


def _refuses_what_it_has_done(patch: pytest.MonkeyPatch) -> None:
    real = Store._why_not
    patch.setattr(Store, "_why_not", lambda self, connection, leases, targets: real(self, connection, leases, set()))


def _prunes_what_is_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = Store.prune

    def prune(self: Store, connection: Connection, **given: Any) -> object:
        return real(self, connection, **(given | {"forever": True}))

    patch.setattr("pgqueue.client.Client.prune", lambda self, **given: self._run(prune, **given))


BUGS: Mapping[str, tuple[Plant, str]] = {
    "a snooze counts as an attempt": (_writes(Event.SNOOZE, "attempts"), "settle claim_batch"),
    "an evicted holder may still write": (_writes(Event.EVICT, "lease_token"), "mend claim_batch settle"),
    "a retry keeps the attempts": (_writes(Event.REVIVE, "attempts"), "run mend"),
    "the reaper does not see that a cancel was requested": (
        _expires_whoever_cancelled,
        "claim_batch cancel time_passes",
    ),
    "an ending lifts no edge": (_lifts_nothing, "run cancel"),
    "a bad end cancels the children, and not theirs": (_cascades_one_level, "enqueue_many run cancel"),
    "the sweep waits for absent parents for ever": (_lets_nobody_go, "enqueue time_passes"),
    "dedupe keys are ignored": (_knows_no_keys, "enqueue"),
    "a key is looked for among the tasks of no agent": (_adopts_across_agents, "enqueue"),
    "the lowest priority goes first": (_asks_the_lowest_priority_first, "enqueue claim_batch"),
    "agents' tasks are claimed whatever they require": (_agents_meet_every_condition, "enqueue claim"),
    "a settle that was sent twice is refused": (_refuses_what_it_has_done, "run settle"),
    "pruning takes keys that are used for ever": (_prunes_what_is_for_ever, "run cancel prune"),
}
"""What is planted, and the steps that are drawn from: of all of them it takes a minute until some come together."""


@pytest.fixture
def planted(database: Database, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Plant], Server]]:
    """`planted(bug)`: the real queue with that bug in it, until the test ends."""
    servers: list[Server] = []

    def plant(bug: Plant) -> Server:
        bug(monkeypatch)
        # Statements are built once per schema and kept.
        statements.statements_for.cache_clear()
        servers.append(Server(database))
        return servers[-1]

    yield plant
    monkeypatch.undo()
    statements.statements_for.cache_clear()
    for server in servers:
        server.clear()
        server.close()


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(planted: Callable[[Plant], Server], name: str) -> None:
    bug, steps = BUGS[name]
    of_run = {"server": planted(bug), "only": frozenset(steps.split())}
    machine = seed(1)(type("Machine", (Lifecycle,), of_run))
    short = settings(LIVE, max_examples=200, stateful_step_count=20, phases=[Phase.generate], print_blob=False)
    with pytest.raises((AssertionError, SQLAlchemyError)):
        run_state_machine_as_test(machine, settings=short)
