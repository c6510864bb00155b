"""50 sequences of 20 steps: the real server does what the model does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from pgqueue.database import Database

from .machine import Lifecycle
from .server import Server

# Every step is several round trips to a server that others load too: slow is no finding here. Nor is a sequence that is
# dropped since real time made a comparison undecidable. The blob that is printed with a failure repeats it.
LIVE = settings(
    database=None,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


# Most of it for hypothesis to make a failure small.
pytestmark = pytest.mark.timeout(480)


@pytest.fixture
def real(database: Database) -> Iterator[Server]:
    server = Server(database)
    yield server
    server.clear()
    server.close()


def test_every_step_does_on_the_server_what_it_does_in_the_model(real: Server) -> None:
    machine = type("Machine", (Lifecycle,), {"server": real})
    run_state_machine_as_test(machine, settings=settings(LIVE, max_examples=50, stateful_step_count=20))
