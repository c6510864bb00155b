"""Tasks with conditions: who may claim them, in which order, and what those cost that nobody here may claim."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import event as listening

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.store import Met, Store
from pgqueue.task import Claimed
from tests.support import Sql, connect

MINUTE = timedelta(seconds=60)
STORE = Store("pgqueue")


def add(sql: Sql, *requires: str, since: float = 10, **columns: Any) -> UUID:
    """A pending task that became due `since` seconds ago."""
    values = {"id": new_id(), "queue": "default", "action": "noop", "requires": list(requires)} | columns
    names, marks = ", ".join(values), ", ".join(["%s"] * len(values))
    sql(
        f"insert into pgqueue.tasks ({names}, not_before) values ({marks}, now() - %s * interval '1 s')",
        *values.values(),
        since,
    )
    return UUID(str(values["id"]))


def add_many(sql: Sql, requires: str, count: int, *, queue: str = "default", priority: str = "0") -> None:
    """`count` due tasks, the condition and the priority of the nth as SQL."""
    requires, priority = requires.replace("%", "%%"), priority.replace("%", "%%")
    sql(
        "insert into pgqueue.tasks (id, queue, action, requires, priority, not_before) select gen_random_uuid(), %s,"
        f" 'noop', {requires}, {priority}, now() - interval '1 hour' from generate_series(1, {count}) n",
        queue,
    )


def ids(claims: list[Claimed]) -> list[UUID]:
    return [claimed.id for claimed in claims]


def walked(database: Database, offers: list[str], **more: Any) -> Met:
    with database.begin() as connection:
        return STORE.met_levels(connection, ["default"], offers=offers, **more)


# -- who may


@pytest.mark.parametrize(
    ("requires", "offers", "taken"),
    [
        (["gpu"], ["gpu"], True),
        (["gpu"], ["fpga", "gpu", "licence"], True),
        (["gpu", "licence"], ["licence", "gpu"], True),
        (["gpu", "licence"], ["gpu"], False),
        (["gpu", "licence"], ["licence"], False),
        (["gpu"], ["gp"], False),
        (["gpu"], ["gpux"], False),
        (["gpu"], ["GPU"], False),
        (["gpu"], [], False),
        (["a, b"], ["a", "b"], False),
        (['"{', "a, b", "{}", "Ä\\"], ["{}", "a, b", "Ä\\", '"{'], True),
        ([], ["gpu"], True),
        ([], [], True),
    ],
)
def test_claim_batch_takes_what_the_offers_cover(
    face: Client, sql: Sql, requires: list[str], offers: list[str], taken: bool
) -> None:
    task_id = add(sql, *requires)
    assert ids(face.claim_batch(limit=10, offers=offers)) == ([task_id] if taken else [])
    assert face.get(task_id).status is (Status.RUNNING if taken else Status.PENDING)


def test_claim_of_a_conditional_task_gives_all_that_another_claim_gives(face: Client, sql: Sql) -> None:
    task_id = add(sql, "gpu", priority=3, payload='{"a": 1}', metadata='{"trace": "t"}', account="acme")
    (held,) = face.claim_batch(limit=1, offers=["gpu"], owner="me")
    assert (held.id, held.action, held.payload, held.account, held.metadata) == (
        task_id,
        "noop",
        {"a": 1},
        "acme",
        {"trace": "t"},
    )
    assert (held.priority, held.attempt, held.fence, held.queue, held.agent) == (3, 1, 1, "default", None)
    assert face.get(task_id).lease_owner == "me"
    face.complete(held)
    assert face.get(task_id).status is Status.COMPLETED


def test_claim_batch_leaves_conditional_tasks_that_are_not_due_or_blocked_or_elsewhere(face: Client, sql: Sql) -> None:
    add(sql, "gpu", since=-3600, priority=9)
    add(sql, "gpu", waiting_on=1, priority=9)
    add(sql, "gpu", queue="other", priority=9)
    assert face.claim_batch(limit=10, offers=["gpu"]) == []


def test_conditional_task_of_an_agent_is_claimed_as_the_agents(face: Client, sql: Sql) -> None:
    head, _ = add(sql, "gpu", agent="a", since=20), add(sql, "gpu", agent="a")
    assert face.claim_batch(limit=10) == []
    assert ids(face.claim_batch(limit=10, offers=["gpu"])) == [head]
    assert face.claim_batch(limit=10, offers=["gpu"]) == []


@pytest.mark.parametrize("offers", [[""], ["gpu", ""], "gpu", ["a\nb"], ["x" * 513], [5]])
@pytest.mark.parametrize("verb", ["claim", "claim_batch"])
def test_claim_with_bad_offers_is_refused(untouched: Client, verb: str, offers: Any) -> None:
    with pytest.raises(InputError) as caught:
        getattr(untouched, verb)("a", offers=offers)
    assert caught.value.field == "offers"


# -- in which order


def test_claim_goes_by_priority_whether_there_is_a_condition_or_not(face: Client, sql: Sql) -> None:
    made = {
        priority: add(sql, *requires, priority=priority)
        for priority, requires in ((9, ()), (5, ("gpu",)), (1, ()), (0, ("gpu", "net")), (-3, ("net",)), (-9, ()))
    }
    offers = ["gpu", "net"]
    assert ids(face.claim_batch(limit=2, offers=offers)) == [made[9], made[5]]
    assert [ids(face.claim_batch(limit=1, offers=offers)) for _ in range(5)] == [
        [made[1]],
        [made[0]],
        [made[-3]],
        [made[-9]],
        [],
    ]


def test_claims_of_one_go_by_since_when_due_within_a_priority(face: Client, sql: Sql) -> None:
    requires = [(), ("gpu",), ("gpu",), (), ("net",), (), ("gpu", "net"), ()]
    made = [add(sql, *each, since=100 - n) for n, each in enumerate(requires)]
    assert [ids(face.claim_batch(limit=1, offers=["gpu", "net"])) for _ in made] == [[each] for each in made]


def test_claim_of_several_gives_them_best_first(face: Client, sql: Sql) -> None:
    made = [add(sql, *each, since=100 - n) for n, each in enumerate([(), ("gpu",), (), ("gpu",)])]
    first = add(sql, "gpu", priority=1)
    other = add(sql, "gpu", priority=9, queue="other")
    claims = face.claim_batch(["default", "other"], limit=10, offers=["gpu"])
    assert ids(claims) == [first, *made, other]


@pytest.mark.parametrize("deep", [(), ("gpu",)])
def test_deep_backlog_of_one_side_holds_up_the_other_by_one_claim_at_most(
    face: Client, sql: Sql, deep: tuple[str, ...]
) -> None:
    for n in range(60):
        add(sql, *deep, since=1000 - n)
    waiting = add(sql, *(() if deep else ("gpu",)), since=980.5)
    before: list[UUID] = []
    while waiting not in before:
        before += ids(face.claim_batch(limit=5, offers=["gpu"]))
    # Twenty have been due for longer.
    assert 20 <= before.index(waiting) <= 25


def test_earlier_queue_goes_first_whatever_the_conditions(face: Client, sql: Sql) -> None:
    one, two = add(sql, "gpu", queue="one", priority=-9), add(sql, queue="two", priority=9)
    assert ids(face.claim_batch(["one", "two"], limit=1, offers=["gpu"])) == [one]
    assert ids(face.claim_batch(["one", "two"], limit=1, offers=["gpu"])) == [two]


# -- many at once


def test_claim_finds_more_conditions_than_one_walk_goes_over(face: Client, sql: Sql) -> None:
    add_many(sql, "array['c' || lpad(n::text, 4, '0')]", 1200, priority="n % 3")
    offers = [f"c{n:04}" for n in range(1, 1201)]
    found = face.claim_batch(limit=1000, offers=offers)
    found += face.claim_batch(limit=1000, offers=offers)
    assert len(set(ids(found))) == 1200


def test_claim_finds_the_one_that_is_met_behind_a_thousand_that_begin_alike(face: Client, sql: Sql) -> None:
    add_many(sql, "array['gpu', 'm' || n]", 1200, priority="9")
    add_many(sql, "array['gpu', 'net', 'm' || n]", 1200)
    met = add(sql, "gpu", "net", "zoo", priority=-9)
    assert ids(face.claim_batch(limit=10, offers=["gpu", "net", "zoo"])) == [met]


def test_two_claimers_share_conditional_tasks_without_a_double(database: Database, sql: Sql) -> None:
    client = Client(database)
    add_many(sql, "case when n % 2 = 0 then array['gpu'] else '{}' end", 800, priority="n % 2")
    taken: list[UUID] = []
    failures: list[BaseException] = []
    start = threading.Barrier(4)

    def work() -> None:
        start.wait()
        try:
            while claims := client.claim_batch(limit=20, offers=["gpu"]):
                taken.extend(ids(claims))
                for held in claims:
                    client.complete(held)
        except BaseException as failure:  # noqa: BLE001 - shown below
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len(set(taken)) == len(taken) == 800
    assert sql("select status, count(*) from pgqueue.tasks group by 1") == [("completed", 800)]


def test_claimer_slides_past_what_another_has_locked(client: Client, database_url: str, sql: Sql) -> None:
    made = [add(sql, "gpu", since=100 - n) for n in range(3)]
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [made[0]])
        assert ids(client.claim_batch(limit=10, offers=["gpu"])) == made[1:]
    assert ids(client.claim_batch(limit=10, offers=["gpu"])) == made[:1]


def test_shuffled_claim_passes_a_level_whose_first_task_somebody_has_locked(
    database: Database, database_url: str, sql: Sql
) -> None:
    locked = add(sql, since=1000)
    for _ in range(30):
        add(sql)
    conditional = add(sql, "gpu")

    def claimed(*, shuffled: bool) -> UUID:
        with database.begin() as connection:
            (task,) = STORE.claim_conditional(
                connection,
                ["default"],
                met=[("default", 0, "{gpu}")],
                size=1,
                owner="me",
                lease=MINUTE,
                shuffled=shuffled,
            ).tasks
            return task.id

    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [locked])
        assert conditional not in [claimed(shuffled=False) for _ in range(3)]
        # By chance: that it is none of the 27 has a probability of 2 ** -27.
        assert conditional in [claimed(shuffled=True) for _ in range(27)]


# -- the walk


def test_walk_brings_a_level_for_each_priority_with_its_first_due(database: Database, sql: Sql) -> None:
    add(sql, "gpu", since=5)
    add(sql, "gpu", since=50)
    add(sql, "gpu", priority=-2, since=-3600)
    add(sql, "gpu", "net", priority=9)
    add(sql, "net")
    found = walked(database, ["gpu"])
    assert set(found.levels) == {("default", 0, "{gpu}"), ("default", -2, "{gpu}")}
    assert found.due == [("default", 0, "{gpu}")]
    first = found.levels["default", 0, "{gpu}"]
    assert timedelta(seconds=49) < found.now - first < timedelta(seconds=80)
    assert found.rest == {}


@pytest.mark.parametrize("steps", [1, 2, 7])
def test_walk_that_is_cut_goes_on_where_it_ended(database: Database, sql: Sql, steps: int) -> None:
    names = "abcdefgh"
    for n, name in enumerate(names):
        add(sql, name, priority=n % 3)
        add(sql, name, "unmet")
    found, rounds = walked(database, list(names), steps=steps), 1
    levels = dict(found.levels)
    while found.rest:
        assert len(found.levels) <= steps
        found, rounds = walked(database, list(names), steps=steps, after=found.rest), rounds + 1
        levels |= found.levels
    assert {requires for _, _, requires in levels} == {f"{{{name}}}" for name in names}
    assert rounds <= 16 // steps + 1


def test_walk_finds_what_the_server_says_is_covered(database: Database, sql: Sql) -> None:
    """Whatever was written by hand among it: unsorted, twice, NULL, nested, empty; in the database's collation."""
    chance = random.Random(7)
    names = ["a", "b", "B", "ab", "a b", "Ä", "ä", "_", "-", "z", "10", "9", "", "é", "e", "{", '"']
    for _ in range(300):
        requires: Any = [chance.choice(names) for _ in range(chance.randint(1, 4))]
        if chance.random() < 0.7:
            requires = sorted(set(requires))
        elif chance.random() < 0.3:
            requires = [requires, [*requires]]
        elif chance.random() < 0.5:
            requires.insert(chance.randint(0, len(requires)), None)
        sql(
            "insert into pgqueue.tasks (id, queue, action, requires, priority)"
            " values (gen_random_uuid(), 'default', 'noop', %s, %s)",
            requires,
            chance.choice([-9, 0, 0, 9]),
        )
    for size in (0, 1, 2, 3, 5, 8, 13, len(names)):
        for _ in range(4):
            offers = chance.sample(names, size)
            expected = sql(
                "select distinct queue, priority, requires::text from pgqueue.tasks where requires <@ %s::text[]",
                offers,
            )
            assert set(walked(database, offers).levels) == set(expected), offers


def test_claims_empty_a_queue_of_hand_written_conditions(client: Client, sql: Sql) -> None:
    for requires in ("{NULL}", "{gpu,NULL}", "{{gpu,gpu},{gpu,gpu}}", '{""}', "{gpu,gpu}", "[5:6]={gpu,net}"):
        sql(
            "insert into pgqueue.tasks (id, queue, action, requires) values (gen_random_uuid(), 'default', 'x', %s)",
            requires,
        )
    assert len(client.claim_batch(limit=10, offers=["gpu", "net"])) == 3
    assert client.claim_batch(limit=10, offers=["gpu", "net"]) == []


def test_next_due_counts_the_conditions_it_is_given(database: Database, sql: Sql) -> None:
    add(sql, "gpu", since=-3600)
    add(sql, "net", since=-60)
    add(sql, "gpu")
    with database.begin() as connection:
        assert STORE.next_due(connection, ["default"]) is None
        assert STORE.next_due(connection, ["default"], met=[("default", 5, "{gpu}")]) is None
        wait = STORE.next_due(connection, ["default"], met=[("default", 0, "{gpu}")])
    assert wait is not None
    assert 3500 < wait <= 3600


# -- what it costs

FEW = 150
"""Pages; the index has thousands."""


@pytest.fixture(scope="module")
def crowd(server: Any, template: str) -> Iterator[Database]:
    """Queue `deep`: 200,000 due tasks of the best priority with one unmet condition. Queue `wide`: 100,000 unmet
    conditions, half of which begin with one that is met. Behind them, in each, 50 tasks that are met and 50 without.
    """
    from tests.support import databases

    name = databases.create(server, template)
    database = Database(server.url_for(name), schema="pgqueue")
    with connect(database.url) as admin:

        def sql(text: str, *values: object) -> list[Any]:
            admin.execute(text, values)
            return []

        sql("alter table pgqueue.tasks set (autovacuum_enabled = off)")
        add_many(sql, "array['a quantum computer']", 200_000, queue="deep", priority="9")
        add_many(sql, "case when n % 2 = 0 then array['c' || n] else array['gpu', 'c' || n] end", 100_000, queue="wide")
        for queue in ("deep", "wide"):
            add_many(sql, "case when n % 2 = 0 then array['gpu'] else '{}' end", 100, queue=queue, priority="-1")
        sql("vacuum (analyze) pgqueue.tasks")
    yield database
    database.dispose()
    databases.drop(server, name)


def pages(database: Database, run: Any) -> dict[str, int]:
    """How many pages each statement of `run(connection)` looked at; nothing of it is kept."""
    texts: list[tuple[str, Any]] = []
    with database.engine.connect() as connection:
        listening.listen(connection, "before_cursor_execute", lambda *a: texts.append((a[2], a[3])))
        run(connection)
        connection.rollback()
    found: dict[str, int] = {}
    with database.engine.connect() as connection:
        for text, values in texts:
            explain = f"explain (analyze, buffers, format json) {text}"
            plan = connection.exec_driver_sql(explain, values).scalar_one()
            plan = plan if isinstance(plan, list) else json.loads(plan)
            top = plan[0]["Plan"]
            assert "Seq Scan" not in {node["Node Type"] for node in nodes(top)}
            name = "walk" if "recursive walk(requires" in text else "agents" if "agent is not null" in text else "claim"
            found[name] = found.get(name, 0) + top["Shared Hit Blocks"] + top["Shared Read Blocks"]
            connection.rollback()
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


@pytest.mark.parametrize("queue", ["deep", "wide"])
@pytest.mark.parametrize(
    "offers", [["gpu"], ["net"], ["abacus", "gpu", "licence", "zoo"], [f"o{n}" for n in range(50)]]
)
def test_unmet_conditions_cost_a_few_index_probes(crowd: Database, queue: str, offers: list[str]) -> None:
    found: list[Met] = []
    cost = pages(crowd, lambda c: found.append(STORE.met_levels(c, [queue], offers=offers)))
    assert set(found[0].levels) == ({(queue, -1, "{gpu}")} if "gpu" in offers else set())
    assert found[0].rest == {}
    assert cost["walk"] < FEW


@pytest.mark.parametrize("queue", ["deep", "wide"])
def test_claim_behind_unmet_conditions_looks_at_no_more_than_it_takes(crowd: Database, queue: str) -> None:
    def claim(size: int) -> dict[str, int]:
        return pages(
            crowd,
            lambda c: STORE.claim_conditional(
                c, [queue], met=[(queue, -1, "{gpu}")], size=size, owner="me", lease=MINUTE
            ),
        )

    assert claim(1)["claim"] < FEW
    # Each task that is taken is written to its row and to a few indexes.
    assert claim(100)["claim"] < FEW + 100 * 40


@pytest.mark.parametrize("queue", ["deep", "wide"])
def test_claim_without_offers_does_not_see_conditions(crowd: Database, queue: str) -> None:
    cost = pages(crowd, lambda c: STORE.claim_batch(c, queue, limit=1))
    assert "walk" not in cost
    assert cost["claim"] < FEW


def test_claim_batch_behind_unmet_conditions_takes_both_kinds(crowd: Database) -> None:
    with crowd.engine.connect() as connection:
        for queue in ("deep", "wide"):
            assert len(STORE.claim_batch(connection, queue, limit=100, offers=["gpu"])) == 100
        connection.rollback()
