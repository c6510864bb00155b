"""The stepper itself: it sees who waits, finds a deadlock, and leaves no order out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Connection

from pgqueue.database import Database
from tests.support import Sql, eventually

from .stepper import WAITS, Deadlock, Stage, orders

COUNT = "update public.counters set n = n + 1 where name = '{}'"


@pytest.fixture
def own_stage(database: Database, sql: Sql) -> Iterator[Stage]:
    sql("create table public.counters (name text primary key, n integer not null default 0)")
    sql("insert into public.counters values ('x'), ('y')")
    with Stage(database, sql) as stage:
        yield stage


def counting(*names: str) -> Callable[[Connection], str]:
    def verb(connection: Connection) -> str:
        for name in names:
            connection.exec_driver_sql(COUNT.format(name))
        return "".join(names)

    return verb


def test_step_that_waits_goes_on_when_the_other_has_committed(own_stage: Stage, sql: Sql) -> None:
    run = own_stage.run((counting("x", "y"), counting("x")), [0, 1, 0, 0])

    assert run.trace == (0, 1, 0, 0, 1)
    assert [step.endswith(WAITS) for step in run.steps] == [False, True, False, False, False]
    assert run.answers == ("xy", "x")
    assert sql("select name, n from public.counters order by name") == [("x", 2), ("y", 1)]


def test_two_that_wait_for_each_other_are_a_deadlock(own_stage: Stage, sql: Sql) -> None:
    with pytest.raises(Deadlock, match="each waits for the other after A:update"):
        own_stage.run((counting("x", "y"), counting("y", "x")), [0, 1, 0, 1])

    assert own_stage.errors == ["40P01"]
    eventually(lambda: not sql("select from pg_stat_activity where state = 'idle in transaction'"))
    assert sql("select name, n from public.counters order by name") == [("x", 0), ("y", 0)]


def test_every_order_of_steps_that_do_not_meet_is_run_once(own_stage: Stage) -> None:
    verbs = (counting("x", "x"), counting("y"))
    traces = [run.trace for run in orders(lambda prefix: own_stage.run(verbs, prefix), 1000)]

    # Three steps of the one, its COMMIT among them, and two of the other.
    assert len(set(traces)) == len(traces) == math.comb(5, 2)


def test_orders_with_fewer_preemptions_come_first(own_stage: Stage) -> None:
    verbs = (counting("x", "x"), counting("y", "y"))
    runs = list(orders(lambda prefix: own_stage.run(verbs, prefix), 1000))

    def preemptions(trace: tuple[int, ...]) -> int:
        return sum(
            one != other and one in trace[place + 1 :] for place, (one, other) in enumerate(itertools.pairwise(trace))
        )

    counted = [preemptions(run.trace) for run in runs]
    assert counted == sorted(counted)
    assert counted[:2] == [0, 0]


def test_orders_of_two_that_meet_at_once_are_few(own_stage: Stage) -> None:
    verbs = (counting("x", "x"), counting("x", "x"))
    runs = list(orders(lambda prefix: own_stage.run(verbs, prefix), 1000))

    # Each of the two is first, and the other tries before the second step, before the COMMIT, or after it.
    assert len({run.trace for run in runs}) == len(runs) == 2 * 3
    assert sum(any(step.endswith(WAITS) for step in run.steps) for run in runs) == 2 * 2


def test_what_a_verb_raises_is_its_answer(own_stage: Stage) -> None:
    def broken(connection: Connection) -> str:
        raise ValueError("no")

    assert own_stage.run((broken, counting("x"))).answers == ("ValueError: no", "x")
