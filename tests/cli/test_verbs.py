"""`retry`, `cancel`, `dismiss`, `release` and `reap`."""

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


@pytest.mark.parametrize("verb", ["retry", "cancel", "dismiss", "release"])
def test_verbs_need_an_id(program: Program, verb: str) -> None:
    ran = program(verb)

    assert (ran.code, ran.complaint) == (2, f"Error: Missing argument 'ID...'. (see pgqueue {verb} --help)")


def test_reap_returns_what_expired_leases_hold(program: Program, client: Client, sql: Sql) -> None:
    made = running(client, max_attempts=1)
    sql("update pgqueue.tasks set lease_expires_at = now() - interval '1 minute' where id = %s", made)

    [reaped] = program("reap").rows

    assert reaped == [str(made), "dead", "default", "host-7", "web-2:4711"]
    assert client.get(made).status is Status.DEAD


def test_reap_of_many_and_of_none(program: Program, client: Client, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action, status, attempts, fence, lease_token, lease_owner,"
        " lease_expires_at, started_at) select gen_random_uuid(), 'q', 'send', 'running', 1, 1, gen_random_uuid(), 'w',"
        " now() - interval '1 minute', now() - interval '2 minutes' from generate_series(1, 250)"
    )

    assert len(program("reap", "--json").objects) == 250
    ran = program("reap")
    assert (ran.code, ran.out, ran.err) == (0, "", "no lease has run out\n")
