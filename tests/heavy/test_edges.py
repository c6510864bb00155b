"""Dependencies under load, for some seconds: what broke every simpler way of lifting edges breaks nothing.

Times are printed for whoever wants to compare; they are asserted by nobody.
"""

from __future__ import annotations

import time

import pytest

from pgqueue.database import Database
from pgqueue.lifecycle import Status
from tests.support import Sql

from .edge_load import Load, chain, family, finish, handle, lawful, parent_dies, produce, settle, sweep

pytestmark = pytest.mark.heavy


@pytest.fixture
def load(database: Database) -> Load:
    return Load(database)


def test_parent_of_thousands_dies_while_grandchildren_come(load: Load, sql: Sql) -> None:
    """One recursive statement stranded 651 of 675 of them."""
    took = parent_dies(load, sql, 4000)
    print(f"\n4,000 children cancelled in {took:.2f} s, with {load.turns['grandchildren']} grandchildren coming")
    lawful(load, sql)


def test_producers_and_settlers_over_the_same_parents(load: Load, sql: Sql) -> None:
    """A trigger that waits for parents in the order of the caller's enqueues made 19 deadlocks of 3,200 commits."""
    load.run(*[produce] * 3, *[settle] * 2, handle, sweep, seconds=5)
    finish(load, sql)
    print(f"\n{dict(load.turns)}")
    assert min(load.turns[what] for what in ("commits", "settles", "handled", "swept")) > 10
    lawful(load, sql)


@pytest.mark.parametrize("end", ["complete", "bury"])
def test_parent_of_ten_thousand_ends_at_once(end: str, load: Load, sql: Sql) -> None:
    family(load, 10_000)
    held = load.client.claim("parent", owner="me", lease=600)
    assert held is not None
    begins = time.monotonic()
    if end == "complete":
        load.client.complete(held)
    else:
        load.client.bury(held, "no use")
    print(f"\n{end} with 10,000 children: {time.monotonic() - begins:.2f} s")
    status = Status.PENDING if end == "complete" else Status.CANCELLED
    count = "select count(*) from pgqueue.tasks where action = 'child' and status = %s and not blocked"
    assert sql(count, status.value) == [(10_000,)]
    lawful(load, sql)


def test_chain_of_a_thousand_is_cancelled_at_once(load: Load, sql: Sql) -> None:
    begins = time.monotonic()
    _, links = chain(load, 1000)
    made = time.monotonic() - begins
    held = load.client.claim("chain", owner="me", lease=600)
    assert held is not None
    begins = time.monotonic()
    load.client.bury(held, "no use")
    print(f"\na chain of 1,000: enqueued in {made:.2f} s, cancelled in {time.monotonic() - begins:.2f} s")
    assert sql("select count(*) from pgqueue.tasks where status = 'cancelled'") == [(1000,)]
    assert str(links[-2]) in (load.client.get(links[-1]).last_error or "")
    lawful(load, sql)
