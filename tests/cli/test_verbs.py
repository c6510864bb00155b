"""`retry`, `cancel`, `dismiss`, `release`, `reschedule` and `reap`."""

from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.lifecycle import Status

from ..support import Sql
from .running import Program


def running(client: Client, agent: str = "host-7", **options: object) -> UUID:
    made = client.enqueue("send", agent=agent, **options).id  # type: ignore[arg-type]
    assert client.claim(agent, owner="web-2:4711") is not None
    return made


def test_retry_revives_a_dead_task(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    made = dead()

    ran = program("retry", str(made)[-6:])

    assert (ran.code, ran.rows, ran.err) == (0, [[str(made), "pending"]], "")
    assert client.get(made).status is Status.PENDING
    assert client.get(made).attempts == 0


def test_retry_does_the_rest_and_reports_each(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    one, pending, other, unknown = dead(), client.enqueue("send").id, dead(), uuid4()

    ran = program("retry", str(one), str(pending), str(unknown), str(other))

    assert ran.code == 1
    assert ran.rows == [[str(one), "pending"], [str(other), "pending"]]
    refused, missing = ran.err.splitlines()
    assert f"…{pending.hex[-6:]} is pending: only a dead task can be retried" in refused
    assert f"no task {unknown}" in missing


def test_a_mistyped_id_stops_all_before_anything_is_done(
    program: Program, client: Client, dead: Callable[..., UUID]
) -> None:
    made = dead()

    ran = program("retry", str(made), "d8dd9!")

    assert (ran.code, ran.out) == (2, "")
    assert "'d8dd9!' is no task id" in ran.complaint
    assert client.get(made).status is Status.DEAD


def test_retry_names_the_twin(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    made = dead(dedupe_key="k1")
    twin = client.enqueue("send", queue="morgue", dedupe_key="k1").id

    ran = program("retry", str(made))

    assert ran.code == 1
    assert f"task {twin} (pending) holds its dedupe key 'k1'" in ran.complaint
    assert client.get(made).status is Status.DEAD


def test_a_tail_means_the_task_that_the_verb_can_act_on(
    program: Program, client: Client, dead: Callable[..., UUID], sql: Sql
) -> None:
    made = dead()
    twin = UUID(int=made.int ^ (1 << 60))  # another task with the same tail
    client.enqueue("send", id=twin)

    assert program("retry", made.hex[-6:]).rows == [[str(made), "pending"]]
    ran = program("cancel", made.hex[-6:])  # both are active now
    assert ran.code == 1
    assert str(made) in ran.complaint
    assert str(twin) in ran.complaint


def test_verbs_as_json_and_on_a_terminal(program: Program, dead: Callable[..., UUID]) -> None:
    one, other = dead(), dead()

    assert program("retry", str(one), "--json").objects == [{"id": str(one), "status": "pending"}]
    assert program.on_terminal("retry", str(other)).out == f"…{other.hex[-6:]} retried: pending\n"


def test_cancel_ends_a_pending_task_and_asks_a_running_one(program: Program, client: Client) -> None:
    held, waits = running(client), client.enqueue("send").id

    ran = program("cancel", str(held), str(waits))

    assert ran.code == 0
    assert ran.rows == [[str(held), "running"], [str(waits), "cancelled"]]
    assert ran.err == f"…{held.hex[-6:]} is running: its holder was asked to stop\n"
    assert client.get(held).cancel_requested


@pytest.mark.parametrize("status", [Status.DEAD, Status.CANCELLED])
def test_cancel_refuses_what_has_ended(
    program: Program, client: Client, dead: Callable[..., UUID], status: Status
) -> None:
    made = dead()
    if status is Status.CANCELLED:
        client.dismiss(made)

    ran = program("cancel", str(made))

    assert ran.code == 1
    assert f"is {status}: it cannot be cancelled any more" in ran.complaint


def test_dismiss_closes_a_dead_task_for_good(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    made = dead()

    assert program("dismiss", str(made)).rows == [[str(made), "cancelled"]]
    ran = program("retry", str(made))
    assert ran.code == 1
    assert "is cancelled: only a dead task can be retried" in ran.complaint


def test_dismiss_refuses_what_is_not_dead(program: Program, client: Client) -> None:
    ran = program("dismiss", str(client.enqueue("send").id))

    assert ran.code == 1
    assert "is pending: only a dead task can be dismissed" in ran.complaint


def test_release_takes_a_task_from_its_holder(program: Program, client: Client) -> None:
    made = running(client)

    assert program("release", str(made)[-6:]).rows == [[str(made), "pending"]]
    assert client.get(made).attempts == 0
    ran = program("release", str(made))
    assert ran.code == 1
    assert "is pending: only a running task can be released" in ran.complaint


def test_who_did_it_is_recorded(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    made = dead()
    program("dismiss", str(made), env={"LOGNAME": "ada"})

    assert (client.events(made)[-1].by or "").startswith("ada@")


@pytest.mark.parametrize("verb", ["retry", "cancel", "dismiss", "release", "reschedule"])
def test_verbs_need_an_id(program: Program, verb: str) -> None:
    ran = program(verb)

    assert (ran.code, ran.complaint) == (2, f"Error: Missing argument 'ID...'. (see pgqueue {verb} --help)")


def test_reap_returns_what_expired_leases_hold(program: Program, client: Client, sql: Sql) -> None:
    made = running(client, max_attempts=1)
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 minute' where id = %s", made)

    [reaped] = program("reap").rows

    assert reaped == [str(made), "dead", "default", "host-7", "web-2:4711", "", ""]
    assert client.get(made).status is Status.DEAD


def test_reap_of_many_and_of_none(program: Program, client: Client, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, status, attempts, fence, lease_token, lease_owner,"
        " lease_expires_at, started_at) select gen_random_uuid(), 'q', 'send', 'running', 1, 1, gen_random_uuid(), 'w',"
        " now() - interval '1 minute', now() - interval '2 minutes' from generate_series(1, 250)"
    )

    assert len(program("reap", "--json").objects) == 250
    ran = program("reap")
    assert (ran.code, ran.out, ran.err) == (0, "", "no lease has run out, and no parent is to be looked at\n")


def test_reschedule_changes_time_and_priority(program: Program, client: Client) -> None:
    made = client.enqueue("send", delay=60).id

    ran = program("reschedule", str(made)[-6:], "--not-before", "2400-01-31T08:00:00+01:00", "--priority", "-3")

    assert (ran.code, ran.rows, ran.err) == (0, [[str(made), "pending"]], "")
    task = client.get(made)
    assert (task.not_before.isoformat(), task.priority) == ("2400-01-31T07:00:00+00:00", -3)
    assert client.events(made)[-1].event == "reschedule"
    assert "@" in (client.events(made)[-1].by or "")


def test_reschedule_by_a_delay_as_json_and_on_a_terminal(program: Program, client: Client) -> None:
    made = client.enqueue("send").id

    assert program("reschedule", str(made), "--delay", "2h", "--json").objects == [
        {"id": str(made), "status": "pending"}
    ]
    assert client.claim_batch("default") == []
    ran = program.on_terminal("reschedule", str(made), "--delay", "0s")
    assert ran.out == f"…{made.hex[-6:]} rescheduled: pending\n"
    assert [task.id for task in client.claim_batch("default")] == [made]


def test_reschedule_does_the_rest_and_reports_each(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    one, ended, other = client.enqueue("send").id, dead(), client.enqueue("send").id

    ran = program("reschedule", str(one), str(ended), str(other), "--priority", "5")

    assert ran.code == 1
    assert ran.rows == [[str(one), "pending"], [str(other), "pending"]]
    assert f"…{ended.hex[-6:]} is dead: only a pending task can be rescheduled" in ran.complaint


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give --delay, --not-before or --priority"),
        (("--delay", "1s", "--not-before", "2400-01-01T00:00:00Z"), "exclude each other"),
        (("--delay", "soon"), "delay cannot be 'soon'"),
        (("--not-before", "2h"), "not_before cannot be '2h'; write an instant"),
        (("--not-before", "2400-01-01T00:00:00"), "has no time zone"),
        (("--priority", "10"), "priority cannot be 10"),
        (("--priority", "high"), "'high' is not a valid integer"),
    ],
)
def test_reschedule_usage_errors_do_nothing(
    program: Program, client: Client, words: tuple[str, ...], says: str
) -> None:
    made = client.enqueue("send").id

    ran = program("reschedule", str(made), str(uuid4()), *words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint
    assert client.events(made) == []


def test_reap_looks_at_parents_until_nothing_is_due(program: Program, client: Client, sql: Sql) -> None:
    # Their look_at is written by hand: no worker runs, and no test waits for the grace of a parent that is not there.
    absent, children = uuid4(), [client.enqueue("send", depends_on=[uuid4()]).id for _ in range(3)]
    sql("update pgqueue.task_dependencies set parent_id = %s, look_at = now()", absent)

    ran = program("reap", "--json")

    lines = [(line["id"], line["parent"], line["fate"]) for line in ran.objects]
    assert lines == [(str(child), str(absent), "let_go") for child in sorted(children)]
    assert [client.get(child).waiting_on for child in children] == [0, 0, 0]
    assert program("reap").out == ""


@pytest.mark.parametrize("locked", ["child", "parent"])
def test_reap_leaves_what_somebody_has_locked_and_says_so(
    program: Program, client: Client, sql: Sql, locked: str
) -> None:
    parent = client.enqueue("resize").id
    child = client.enqueue("send", depends_on=[parent]).id
    sql("update pgqueue.task_dependencies set look_at = now()")

    with client.database.begin() as connection:
        one = child if locked == "child" else parent
        connection.exec_driver_sql(f"select from pgqueue.tasks where id = '{one}' for update")
        ran = program("reap")

    assert (ran.code, ran.out) == (0, "")
    assert "left for later, since somebody has a task locked; run `pgqueue reap` again" in ran.err
    assert program("reap").rows == [[str(child), "", "", "", "", str(parent), "wait"]]
    assert program("reap").err == "no lease has run out, and no parent is to be looked at\n"
