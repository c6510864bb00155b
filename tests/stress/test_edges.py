"""Dependencies under load, for minutes: nobody is stranded, nothing deadlocks, counters equal edges."""

from __future__ import annotations

import pytest

from pgqueue.database import Database
from tests.heavy.edge_load import (
    Load,
    cancel,
    close_a_circle,
    finish,
    gate,
    handle,
    lawful,
    parent_dies,
    produce,
    settle,
    sweep,
)
from tests.support import Sql

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]


@pytest.fixture
def load(database: Database) -> Load:
    return Load(database)


def test_parent_of_twenty_thousand_dies_while_grandchildren_come(load: Load, sql: Sql) -> None:
    took = parent_dies(load, sql, 20_000)
    print(f"\n20,000 children cancelled in {took:.2f} s, with {load.turns['grandchildren']} grandchildren coming")
    lawful(load, sql)


def test_four_producers_and_three_settlers_over_the_same_parents(load: Load, sql: Sql) -> None:
    load.run(*[produce] * 4, *[settle] * 3, handle, sweep, seconds=30)
    finish(load, sql)
    print(f"\n{dict(load.turns)}")
    lawful(load, sql)


def test_gates_against_settlers_against_cancels(load: Load, sql: Sql) -> None:
    """Rows and then edges, edges and then rows: each was somebody's order once, and they deadlocked."""
    load.run(*[produce] * 2, *[gate] * 2, *[settle] * 2, cancel, handle, sweep, seconds=30)
    finish(load, sql)
    print(f"\n{dict(load.turns)}")
    assert load.turns["gates"] > 10
    assert load.turns["cancels"] > 10
    lawful(load, sql)


def test_gates_that_close_circles_at_once(load: Load, sql: Sql) -> None:
    load.run(*[close_a_circle] * 2, sweep, seconds=15)
    finish(load, sql)
    print(f"\n{dict(load.turns)}")
    assert load.turns["rings"] > 10
    [(cancelled,)] = sql("select count(*) from pgqueue.tasks where last_error like 'cancelled: it waits for itself%%'")
    assert cancelled == load.turns["rings"] - load.turns["circles refused"]
    lawful(load, sql)
