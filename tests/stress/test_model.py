"""500 sequences of 40 steps of tests/model, and a look at whether they went everywhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pgqueue.database import Database
from pgqueue.lifecycle import Event

from ..model.machine import Lifecycle
from ..model.server import Server
from ..model.test_model import LIVE

pytestmark = [pytest.mark.stress, pytest.mark.timeout(900)]

REFUSED = (
    "complete: LeaseNotHeld pending",
    "fail: LeaseNotHeld running",
    "snooze: LeaseNotHeld dead",
    "release: LeaseNotHeld completed",
    "renew: LeaseNotHeld cancelled",
    "acknowledge: TransitionRefused running",
    "retry: KeyHeld",
    "retry: TransitionRefused cancelled",
    "cancel: TaskNotFound",
    "enqueue: CircularDependency",
    "enqueue: InputError",
    "set_gate: CircularDependency",
)


@pytest.fixture
def real(database: Database) -> Iterator[Server]:
    server = Server(database)
    yield server
    server.clear()
    server.close()


def test_every_step_does_on_the_server_what_it_does_in_the_model_and_every_move_is_made(real: Server) -> None:
    machine = type("Machine", (Lifecycle,), {"server": real})
    run_state_machine_as_test(machine, settings=settings(LIVE, max_examples=500, stateful_step_count=40))
    # What is rare may be missing by chance: more sequences then.
    for _ in range(3):
        if not missing(real):
            break
        run_state_machine_as_test(machine, settings=settings(LIVE, max_examples=100, stateful_step_count=40))
    assert not missing(real)


def missing(real: Server) -> list[str]:
    """The moves and refusals that never happened."""
    expected = (*(f"event {event}" for event in Event), *REFUSED)
    return [one for one in expected if not any(seen.startswith(one) for seen in real.seen)]
