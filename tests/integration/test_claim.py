"""claim(agent) and claim_batch: who gets what, in which order, and who must wait."""

from __future__ import annotations

import os
import socket
import threading
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from pgqueue.client import Client
from pgqueue.database import Database
from pgqueue.errors import InputError
from pgqueue.lifecycle import Status
from pgqueue.options import NewTask
from pgqueue.store import AgentCursor, Store
from pgqueue.task import Claimed
from tests.support import Sql, connect, eventually, somebody_waits

MINUTE = timedelta(seconds=60)


def make(client: Client, *tasks: dict[str, Any]) -> list[UUID]:
    """One task per dict of options, in the order given."""
    return [made.id for made in client.enqueue_many(NewTask("noop", n, options) for n, options in enumerate(tasks))]  # type: ignore[arg-type]


def ids(claims: list[Claimed]) -> list[UUID]:
    return [claimed.id for claimed in claims]


# -- claim(agent)


def test_claim_gives_the_agents_task_with_its_lease(face: Client) -> None:
    made = face.enqueue("resize", {"a": 1}, agent="a", account="acme", timeout=5, metadata={"trace": "t"}, priority=2)
    held = face.claim("a", owner="me", lease=30)
    assert held is not None
    assert (held.id, held.action, held.payload, held.account) == (made.id, "resize", {"a": 1}, "acme")
    assert (held.attempt, held.max_attempts, held.fence, held.priority) == (1, 3, 1, 2)
    assert (held.timeout, held.metadata, held.queue, held.agent) == (
        timedelta(seconds=5),
        {"trace": "t"},
        "default",
        "a",
    )
    task = face.get(made.id)
    assert (task.status, task.lease_owner, task.attempts, task.fence) == (Status.RUNNING, "me", 1, 1)
    assert task.lease_expires_at == held.lease.deadline
    assert task.started_at is not None
    assert timedelta(seconds=25) < held.lease.deadline - task.started_at < timedelta(seconds=35)


def test_claim_without_an_owner_shows_host_and_process(face: Client) -> None:
    made = face.enqueue("x", agent="a")
    face.claim("a")
    assert face.get(made.id).lease_owner == f"{socket.gethostname()}:{os.getpid()}"


def test_claim_by_a_client_with_an_owner_shows_it(database: Database) -> None:
    client = Client(database, owner="web-2:4711")
    made = client.enqueue("x", agent="a")
    client.claim("a")
    assert client.get(made.id).lease_owner == "web-2:4711"


def test_claim_of_a_busy_agent_gives_nothing(face: Client) -> None:
    make(face, {"agent": "a"}, {"agent": "a"})
    assert face.claim("a") is not None
    assert face.claim("a") is None


def test_claim_of_an_agent_busy_in_another_queue_gives_nothing(face: Client) -> None:
    make(face, {"agent": "a", "queue": "one"}, {"agent": "a", "queue": "two"})
    assert face.claim("a", queue="one") is not None
    assert face.claim("a", queue="two") is None
    assert face.claim("a", queue=["one", "two"]) is None


def test_claim_of_an_agent_with_nothing_gives_nothing(face: Client) -> None:
    make(face, {"agent": "b"}, {})
    assert face.claim("a") is None


def test_claim_of_a_task_that_is_not_due_gives_nothing(face: Client) -> None:
    make(face, {"agent": "a", "delay": 3600, "priority": 9})
    assert face.claim("a") is None


def test_claim_passes_over_what_is_not_due_to_a_lower_priority(face: Client) -> None:
    _, low = make(face, {"agent": "a", "delay": 3600, "priority": 9}, {"agent": "a", "priority": -9})
    held = face.claim("a")
    assert held is not None
    assert held.id == low


def test_claim_goes_by_priority_then_since_when_due_then_id(face: Client, sql: Sql) -> None:
    made = make(face, *({"agent": "a", "priority": p} for p in (0, 5, 5, 5, -1)))
    # The fourth has been due for longer than the second and third, which became due in one instant.
    sql("update pgqueue.tasks set not_before = '2020-01-02' where id = any(%s)", [made[1], made[2]])
    sql("update pgqueue.tasks set not_before = '2020-01-01' where id = %s", made[3])
    order = []
    while held := face.claim("a"):
        order.append(held.id)
        face.complete(held)
    assert order == [made[3], made[1], made[2], made[0], made[4]]


def test_claim_tries_queues_in_the_order_given(face: Client) -> None:
    one, two = make(face, {"agent": "a", "queue": "one"}, {"agent": "a", "queue": "two", "priority": 9})
    first = face.claim("a", queue=("one", "two"))
    assert first is not None
    assert first.id == one
    face.complete(first)
    second = face.claim("a", queue=("one", "two"))
    assert second is not None
    assert second.id == two


def test_claim_leaves_what_requires_a_condition_that_does_not_hold(face: Client, sql: Sql) -> None:
    needy, plain = make(face, {"agent": "a", "priority": 1}, {"agent": "a"})
    sql("update pgqueue.tasks set requires = '{gpu,net}' where id = %s", needy)
    first = face.claim("a", offers=["gpu"])
    assert first is not None
    assert first.id == plain
    face.release(first)
    second = face.claim("a", offers=["net", "gpu", "more"])
    assert second is not None
    assert second.id == needy


def test_claim_leaves_a_task_that_waits_for_parents(face: Client, sql: Sql) -> None:
    (waiting,) = make(face, {"agent": "a"})
    sql("update pgqueue.tasks set waiting_on = 1 where id = %s", waiting)
    assert face.claim("a") is None
    assert face.claim_batch(limit=10) == []


def test_claim_again_after_a_release_counts_the_fence_on(face: Client) -> None:
    make(face, {"agent": "a"})
    fences = []
    for _ in range(3):
        held = face.claim("a")
        assert held is not None
        fences.append((held.fence, held.attempt))
        face.release(held)
    assert fences == [(1, 1), (2, 1), (3, 1)]


def test_claim_mints_a_token_of_its_own_each_time(face: Client) -> None:
    make(face, {"agent": "a"}, {"agent": "b"})
    one, two = face.claim("a"), face.claim("b")
    assert one is not None
    assert two is not None
    assert one.lease.token != two.lease.token


def test_claim_skips_a_head_that_somebody_has_locked_instead_of_sliding(
    client: Client, database_url: str, sql: Sql
) -> None:
    head, _ = make(client, {"agent": "a"}, {"agent": "a"})
    with connect(database_url) as other:
        with other.transaction():
            other.execute("select 1 from pgqueue.tasks where id = %s for update", [head])
            assert client.claim("a") is None
            assert client.claim_batch(limit=10) == []
        held = client.claim("a")
    assert held is not None
    assert held.id == head


def test_claim_takes_a_task_that_a_foreign_key_holds(client: Client, database_url: str) -> None:
    made = make(client, {"agent": "a"}, {})
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = any(%s) for key share", [made])
        assert ids(client.claim_batch(limit=10)) == [made[1], made[0]]


def test_claim_by_many_threads_lets_one_run_per_agent(database: Database, sql: Sql) -> None:
    client = Client(database)
    make(client, *({"agent": f"a{n % 3}"} for n in range(60)))
    taken: list[Claimed] = []
    failures: list[BaseException] = []
    start = threading.Barrier(6)

    def work() -> None:
        start.wait()
        try:
            misses = 0
            while misses < 40:
                claims = [c for c in (client.claim(f"a{misses % 3}"),) if c] or client.claim_batch(limit=2)
                misses += not claims
                for held in claims:
                    taken.append(held)
                    client.complete(held)
        except BaseException as failure:  # noqa: BLE001 - shown below
            failures.append(failure)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert len({held.id for held in taken}) == len(taken) == 60
    assert sql("select status, count(*) from pgqueue.tasks group by 1") == [("completed", 60)]


@pytest.mark.parametrize("agent", ["", "a\nb", "x" * 513, None, 5])
def test_claim_of_a_bad_agent_is_refused(untouched: Client, agent: Any) -> None:
    with pytest.raises(InputError) as caught:
        untouched.claim(agent)
    assert caught.value.field == "agent"


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("lease", {"lease": 0}),
        ("lease", {"lease": 8 * 86_400}),
        ("lease", {"lease": "60"}),
        ("queues", {"queue": ()}),
        ("queue", {"queue": ("a", "")}),
        ("owner", {"owner": ""}),
        ("offers", {"offers": "gpu"}),
        ("offers", {"offers": [""]}),
    ],
)
def test_claim_with_a_bad_option_is_refused(untouched: Client, field: str, bad: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        untouched.claim("a", **bad)
    assert caught.value.field == field


# -- claim_batch


def test_claim_batch_takes_due_tasks_best_first(face: Client, sql: Sql) -> None:
    made = make(face, *({"priority": p} for p in (0, 9, -9, 0, 5)))
    claims = face.claim_batch(limit=5)
    assert ids(claims) == [made[1], made[4], made[0], made[3], made[2]]
    assert {c.lease.token for c in claims} == {claims[0].lease.token}
    assert sql("select distinct status from pgqueue.tasks") == [("running",)]


def test_claim_batch_goes_by_since_when_due_within_a_priority(face: Client, sql: Sql) -> None:
    made = make(face, {}, {}, {})
    sql("update pgqueue.tasks set not_before = '2020-01-01' where id = %s", made[2])
    assert ids(face.claim_batch(limit=5)) == [made[2], made[0], made[1]]


def test_claim_batch_takes_no_more_than_the_limit(face: Client) -> None:
    made = make(face, *({} for _ in range(12)))
    assert ids(face.claim_batch(limit=5)) == made[:5]
    assert ids(face.claim_batch(limit=1)) == made[5:6]
    assert ids(face.claim_batch()) == made[6:7]
    assert ids(face.claim_batch(limit=1000)) == made[7:]
    assert face.claim_batch(limit=1000) == []


@pytest.mark.parametrize("limit", [3, 7, 33, 999])
def test_claim_batch_with_an_odd_limit_never_takes_more(client: Client, limit: int) -> None:
    make(client, *({} for _ in range(1000)))
    claims = client.claim_batch(limit=limit)
    assert limit // 2 < len(claims) <= limit


def test_claim_batch_leaves_the_future_alone(face: Client) -> None:
    due, _, later = make(face, {}, {"delay": 3600, "priority": 9}, {"agent": "a", "delay": 3600})
    assert ids(face.claim_batch(limit=10)) == [due]
    assert face.get(later).status is Status.PENDING


def test_claim_batch_of_several_queues_takes_earlier_queues_first(face: Client) -> None:
    made = make(
        face, {"queue": "two", "priority": 9}, {"queue": "one"}, {"queue": "three"}, {"queue": "one", "priority": 1}
    )
    assert ids(face.claim_batch(["one", "two"], limit=10)) == [made[3], made[1], made[0]]
    assert face.claim_batch(["one", "two"], limit=10) == []


def test_claim_batch_of_an_unknown_queue_gives_nothing(face: Client) -> None:
    make(face, {})
    assert face.claim_batch("mial", limit=10) == []


def test_claim_batch_takes_each_free_agents_head_and_never_a_second(face: Client) -> None:
    made = make(face, *({"agent": f"a{n % 3}", "priority": n // 6} for n in range(9)))
    # The heads: the third of each agent has the highest priority.
    assert sorted(ids(face.claim_batch(limit=10))) == sorted(made[6:9])
    assert face.claim_batch(limit=10) == []


def test_claim_batch_gives_no_second_task_of_a_busy_agent(face: Client) -> None:
    busy, _, free = make(face, {"agent": "busy"}, {"agent": "busy"}, {"agent": "free"})
    held = face.claim("busy")
    assert held is not None
    assert held.id == busy
    assert ids(face.claim_batch(limit=10)) == [free]


def test_claim_batch_takes_tasks_of_no_agent_before_agents_heads(face: Client) -> None:
    of_agent, free = make(face, {"agent": "a", "priority": 9}, {})
    assert ids(face.claim_batch(limit=1)) == [free]
    assert ids(face.claim_batch(limit=1)) == [of_agent]


def test_claim_batch_over_two_queues_never_runs_an_agent_twice(face: Client) -> None:
    one, _ = make(face, {"agent": "a", "queue": "one"}, {"agent": "a", "queue": "two"})
    assert ids(face.claim_batch(["one", "two"], limit=10)) == [one]


def test_claim_batch_leaves_what_requires_a_condition_to_those_that_offer_it(face: Client, sql: Sql) -> None:
    needy, plain = make(face, {"agent": "a"}, {"agent": "b"})
    sql("update pgqueue.tasks set requires = '{gpu}' where id = %s", needy)
    assert ids(face.claim_batch(limit=10)) == [plain]
    assert ids(face.claim_batch(limit=10, offers=["gpu"])) == [needy]


def test_claim_batch_skips_what_somebody_has_locked(client: Client, database_url: str) -> None:
    made = make(client, {}, {}, {})
    with connect(database_url) as other, other.transaction():
        other.execute("select 1 from pgqueue.tasks where id = %s for update", [made[1]])
        assert ids(client.claim_batch(limit=10)) == [made[0], made[2]]
    assert ids(client.claim_batch(limit=10)) == [made[1]]


def test_claim_batch_of_many_agents_finds_them_all(client: Client) -> None:
    make(client, *({"agent": f"agent-{n:04}"} for n in range(1200)))
    found: set[str | None] = set()
    for _ in range(10):
        claims = client.claim_batch(limit=500)
        found |= {c.agent for c in claims}
        if not claims:
            break
    assert len(found) == 1200


@pytest.mark.parametrize("limit", [0, -1, 1001, True, 1.0, "5"])
def test_claim_batch_with_a_limit_out_of_range_is_refused(untouched: Client, limit: Any) -> None:
    with pytest.raises(InputError) as caught:
        untouched.claim_batch(limit=limit)
    assert caught.value.field == "limit"


def test_claim_batch_decodes_payloads_one_by_one(face: Client, sql: Sql) -> None:
    # JSON that another program wrote and Python will not read must not fail its neighbours.
    bad, good = make(face, {}, {})
    sql("update pgqueue.tasks set payload = %s::jsonb where id = %s", "1" + "0" * 5000, bad)
    claims = {c.id: c for c in face.claim_batch(limit=10)}
    assert claims[good].payload == 1
    assert set(claims) == {bad, good}
    with pytest.raises(InputError):
        print(claims[bad].payload)


def test_claim_batch_takes_a_row_whose_counters_cannot_grow(face: Client, sql: Sql) -> None:
    """Written by hand; if it failed, so would every batch that comes by."""
    (first, _), last = make(face, {}, {"agent": "a"}), 2**31 - 1
    sql("update pgqueue.tasks set fence = %s, attempts = %s", last, last)
    (good,) = make(face, {})
    claims = face.claim_batch(limit=10)
    assert [(c.agent, c.fence) for c in claims] == [(None, last), (None, 1), ("a", last)]
    assert set(ids(claims)) > {first, good}


def test_claim_batch_finds_an_agent_behind_busy_and_future_ones(face: Client, sql: Sql) -> None:
    """Its row is past the page of what is due, its name past the step of the walk."""
    make(face, *({"agent": "busy"} for _ in range(1100)))
    assert face.claim("busy") is not None
    make(face, *({"agent": f"a{n:04}", "delay": 3600} for n in range(600)))
    last = face.enqueue("noop", agent="z")
    assert ids(face.claim_batch(limit=1)) == [last.id]
    assert face.claim_batch(limit=10) == []


def test_claim_batch_passes_over_agents_whose_conditions_do_not_hold(face: Client, sql: Sql) -> None:
    make(face, *({"agent": f"a{n}"} for n in range(30)))
    sql("update pgqueue.tasks set requires = '{gpu}'")
    last = face.enqueue("noop", agent="z")
    assert ids(face.claim_batch(limit=1)) == [last.id]


def test_claim_batch_passes_over_agents_that_others_hold_up(client: Client, database: Database) -> None:
    """One head locked by a person's open transaction, two agents claimed in another's."""
    made = make(client, *({"agent": agent} for agent in "abcd"))
    with database.begin() as connection:
        connection.exec_driver_sql("select 1 from pgqueue.tasks where agent = 'c' for update")
        assert ids(client.on(connection).claim_batch(limit=2)) == made[:2]
        assert ids(client.claim_batch(limit=1)) == [made[3]]
        assert client.claim_batch(limit=1) == []


def test_claim_batch_takes_agents_in_the_order_in_which_they_became_due(face: Client) -> None:
    made = make(face, *({"agent": agent} for agent in "dacb"))
    assert [ids(face.claim_batch(limit=1)) for _ in made] == [[task_id] for task_id in made]


# -- the store's own: floors, cursors, what is next


def claim_due(database: Database, **more: Any) -> list[UUID]:
    with database.begin() as connection:
        claims = Store("pgqueue").claim_due(connection, ["default"], size=10, owner="me", lease=MINUTE, **more)
        assert abs(claims.now - datetime.now(UTC)) < timedelta(hours=1)
        return ids(claims.tasks)


def test_claim_due_above_a_floor_leaves_what_lies_below(client: Client, database: Database, sql: Sql) -> None:
    low, high, other = make(client, {}, {}, {"priority": 1})
    sql("update pgqueue.tasks set not_before = '2020-01-01' where id = any(%s)", [low, other])
    floors = {("default", 0): datetime(2021, 1, 1, tzinfo=UTC)}
    assert claim_due(database, floors=floors) == [other, high]
    assert claim_due(database) == [low]


def test_claim_due_of_nothing_still_tells_the_servers_time(database: Database) -> None:
    assert claim_due(database) == []


def claim_agents(
    database: Database, cursor: AgentCursor, size: int = 2, **more: Any
) -> tuple[list[str | None], AgentCursor]:
    with database.begin() as connection:
        claims, moved = Store("pgqueue").claim_agents(
            connection, "default", size=size, owner="me", lease=MINUTE, cursor=cursor, **more
        )
        return [c.agent for c in claims.tasks], moved


def test_claim_agents_keeps_those_that_it_found_and_could_not_take(client: Client, database: Database) -> None:
    make(client, *({"agent": f"a{n}"} for n in range(5)))
    first, cursor = claim_agents(database, AgentCursor())
    assert (len(first), len(cursor.known)) == (2, 3)
    second, cursor = claim_agents(database, cursor, look=False)
    third, cursor = claim_agents(database, cursor, look=False)
    assert sorted(str(agent) for agent in [*first, *second, *third]) == ["a0", "a1", "a2", "a3", "a4"]
    assert cursor.known == ()


def test_claim_agents_finds_an_old_backlog_by_its_walk(client: Client, database: Database, sql: Sql) -> None:
    make(client, *({"agent": f"a{n}"} for n in range(4)))
    # Due long before the cursor's last look: only the walk comes by.
    sql("update pgqueue.tasks set not_before = '2020-01-01'")
    cursor = AgentCursor(seen_at=datetime.now(UTC))
    found: list[str | None] = []
    for _ in range(4):
        agents, cursor = claim_agents(database, cursor, size=1, walk=1)
        found += agents
    assert found == ["a0", "a1", "a2", "a3"]


def test_claim_agents_that_knows_a_busy_agent_forgets_it(client: Client, database: Database) -> None:
    make(client, {"agent": "a"}, {"agent": "a"})
    assert client.claim("a") is not None
    assert claim_agents(database, AgentCursor(known=("a",)), look=False) == ([], AgentCursor())


def test_claim_agents_of_an_agent_that_another_is_claiming_leaves_it(client: Client, database: Database) -> None:
    make(client, {"agent": "a"})
    with database.begin() as connection:
        connection.execute(Store("pgqueue").sql.agent_lock, {"agent": "a"}).all()
        agents, cursor = claim_agents(database, AgentCursor())
        assert agents == []
        assert cursor.known == ("a",)
    assert claim_agents(database, cursor)[0] == ["a"]


def test_claim_agents_tries_those_that_another_holds_up_last(client: Client, database: Database) -> None:
    make(client, {"agent": "c"}, {"agent": "a"}, {"agent": "b"})
    with database.begin() as connection:
        assert len(client.on(connection).claim_batch(limit=1)) == 1
        agents, cursor = claim_agents(database, AgentCursor(known=("c", "x", "a", "b")), size=1, look=False)
        assert (agents, cursor.known) == ([], ("a", "b", "c"))
        agents, cursor = claim_agents(database, cursor, size=1, look=False)
        assert (agents, cursor.known) == (["a"], ("b", "c"))


def test_claim_agents_wastes_no_place_on_agents_with_nothing_due(client: Client, database: Database) -> None:
    make(client, {"agent": "a", "delay": 3600}, {"agent": "b", "delay": 3600}, {"agent": "b", "priority": -9})
    known = ("nobody", "a", "b")
    assert claim_agents(database, AgentCursor(known=known), look=False) == (["b"], AgentCursor())
    assert claim_agents(database, AgentCursor(known=known))[1].known == ()


@pytest.mark.parametrize("agent", [None, "a"])
def test_next_due_says_how_long_until_the_next_task(client: Client, database: Database, agent: str | None) -> None:
    make(
        client,
        {"delay": 3600, "agent": agent},
        {"delay": 7200, "agent": agent, "priority": 5},
        {"queue": "other", "delay": 60},
    )
    with database.begin() as connection:
        wait = Store("pgqueue").next_due(connection, ["default"])
        assert Store("pgqueue").next_due(connection, ["empty"]) is None
    assert wait is not None
    assert 3500 < wait <= 3600


def test_claim_of_an_agent_waits_for_another_claim_of_it(client: Client, database: Database, sql: Sql) -> None:
    make(client, {"agent": "a"}, {"agent": "a"})
    got: list[Claimed | None] = []
    with database.begin() as connection:
        assert client.on(connection).claim("a") is not None
        other = threading.Thread(target=lambda: got.append(client.claim("a")))
        other.start()
        eventually(lambda: somebody_waits(sql))
        assert got == []
    other.join(30)
    assert got == [None]
