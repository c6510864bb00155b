"""Every two verbs on two connections, statement by statement, in all orders or in many: what comes of it is lawful."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tests.support import Sql

from .cases import CASES, Case
from .lawful import LAWFUL
from .stepper import WAITS, Run, Stage, orders
from .verbs import KINDS
from .world import World

FEW, MANY = 40, 150
"""Orders of one case at the most. Those with the fewest preemptions come first: races need few, if they need any. Half
of the cases have no more than the few, and none has more than some thousands.
"""

CASCADE = ":with edges as"
"""How the statements begin that take children: nobody may wait for one while he has a parent's row locked."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_comes_of_two_verbs_is_lawful(case: Case, stage: Stage, stage_sql: Sql) -> None:
    assert _seen(case, FEW, stage, stage_sql) == LAWFUL[case.name], "listed as lawful, and never seen"


@pytest.mark.stress
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_comes_of_two_verbs_in_many_orders_is_lawful(case: Case, stage: Stage, stage_sql: Sql) -> None:
    assert _seen(case, MANY, stage, stage_sql) == LAWFUL[case.name], "listed as lawful, and never seen"


def _seen(case: Case, limit: int, stage: Stage, sql: Sql) -> set[str]:
    world = World(stage.database, sql, case.rows, case.edges)
    world.vacuum()
    stage.errors.clear()

    def run(prefix: Sequence[int]) -> Run:
        world.begin()
        return stage.run(case.verbs, prefix)

    seen: set[str] = set()
    for number, done in enumerate(orders(run, limit)):
        order = f"in order {number}: {'; '.join(done.steps)}"
        broken = world.broken()
        world.settle()
        broken += world.broken() + world.stranded() + stage.errors
        broken += [
            f"{step}, with a parent's row locked" for step in done.steps if step.endswith(WAITS) and CASCADE in step
        ]
        assert not broken, f"{broken} {order}"
        outcome = " | ".join([*done.answers, world.told(case.letters)])
        assert outcome in LAWFUL[case.name], f"not lawful: {outcome}; {order}"
        seen.add(outcome)
    return seen


def test_every_verb_meets_every_verb() -> None:
    meetings = {frozenset((case.verbs[0].kind, case.verbs[1].kind)) for case in CASES}

    assert meetings >= {frozenset(pair) for pair in itertools.product(KINDS, repeat=2)}
