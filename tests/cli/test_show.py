"""`show`: what, why, what happened, what works now."""

import json
import re
import shlex
from collections.abc import Callable
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.database import mask
from pgqueue.lifecycle import Status

from ..support import Sql
from .running import Program, room


def test_show_begins_with_what_and_why(program: Program, client: Client) -> None:
    made = client.enqueue("send", {"to": "ada"}, queue="mail").id

    lines = program("show", str(made)).out.splitlines()

    assert lines[0] == f"{made}\tsend\tpending"
    assert re.fullmatch(r"ready for [\d.]+s: waits for a worker that serves queue mail", lines[1])
    assert "queue\tmail" in lines


def test_show_on_a_terminal_begins_with_the_tail(program: Program, client: Client) -> None:
    made = client.enqueue("send").id

    lines = program.on_terminal("show", str(made), env={"NO_COLOR": "1"}).out.splitlines()

    assert re.sub("\x1b\\[[0-9;]*m", "", lines[0]) == f"…{made.hex[-6:]} send pending"
    assert f"  id          {made}" in lines


def test_show_says_who_holds_the_agent(program: Program, client: Client) -> None:
    client.enqueue("send", agent="host-7")
    waits = client.enqueue("send", agent="host-7").id
    held = client.claim("host-7", owner="web-2:4711")
    assert held is not None

    ran = program("show", str(waits))

    why = rf"waits for agent host-7, busy with …{held.id.hex[-6:]} for [\d.]+s, held by web-2:4711 until [\d:]+Z"
    assert re.fullmatch(why, ran.out.splitlines()[1])
    assert f" show {held.id}\n" in ran.out


def test_show_tells_attempts_and_the_whole_last_error(program: Program, dead: Callable[..., UUID]) -> None:
    made = dead("ValueError: boom\n\nTraceback:\n    in \x1b[2Jsend\tnow")

    out = program("show", str(made)).out

    assert "given up in attempt 1 of 3" in out.splitlines()[1]
    assert re.search(r"\tbury\t1\t\S+\tValueError: boom\n", out)
    assert "\n      in send now\n" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("hidden", ["s3cr3t"])
def test_content_is_shown_only_when_asked_for(program: Program, client: Client, hidden: str) -> None:
    made = client.enqueue("send", {"token": hidden}, agent="a").id
    held = client.claim("a")
    assert held is not None
    client.complete(held, {"answer": hidden})

    for words in (("show", str(made)), ("show", str(made), "--json"), ("list", "--json"), ("events", str(made))):
        ran = program(*words)
        assert hidden not in ran.out + ran.err
    assert program("show", str(made), "--payload").out.count(hidden) == 2
    [shown] = program("show", str(made), "--payload", "--json").objects
    assert (shown["payload"], shown["result"]) == ({"token": hidden}, {"answer": hidden})


def test_show_as_json_is_one_object(program: Program, dead: Callable[..., UUID]) -> None:
    made = dead("ValueError: boom")

    [shown] = program("show", str(made), "--json").objects

    assert shown["id"] == str(made)
    assert shown["status"] == "dead"
    assert shown["why"].endswith("ValueError: boom")
    assert [event["event"] for event in shown["events"]] == ["bury"]
    assert [shlex.split(command)[-2] for command in shown["commands"]] == ["retry", "dismiss"]


def test_commands_that_are_shown_work(program: Program, dead: Callable[..., UUID], client: Client) -> None:
    made = dead()

    for verb, status in (("retry", Status.PENDING), ("cancel", Status.CANCELLED)):
        [shown] = program.apart("show", str(made), "--json").objects
        [command] = [command for command in shown["commands"] if f" {verb} " in command]
        words = shlex.split(command)
        assert words[1:3] == ["-m", "pgqueue"]
        assert program.apart(*words[3:]).code == 0
        assert client.get(made).status is status


def test_commands_lead_to_the_same_database(client: Client, lost: Program, program: Program) -> None:
    made = client.enqueue("send").id
    url = program.url or ""

    out = lost("show", str(made), "--database-url", url, "--schema", "pgqueue").out

    assert f" cancel {made} --database-url {shlex.quote(mask(url))} --schema pgqueue\n" in out


def test_every_status_lists_only_verbs_that_it_takes() -> None:
    assert room("show").NEXT.keys() == set(Status)


def test_a_requested_cancel_is_not_offered_again(program: Program, client: Client) -> None:
    made = client.enqueue("send", agent="a").id
    assert client.claim("a") is not None
    client.cancel(made)

    [shown] = program("show", str(made), "--json").objects

    assert "cancellation was requested" in shown["why"]
    assert [shlex.split(command)[-2] for command in shown["commands"]] == ["release"]


@pytest.mark.parametrize("agent", [None, "host-7"])
def test_a_retry_that_a_twin_forbids_is_not_offered(program: Program, client: Client, agent: str | None) -> None:
    made = client.enqueue("send", agent=agent, dedupe_key="receipt-7").id
    held = client.claim(agent) if agent else next(iter(client.claim_batch("default", limit=1)))
    assert held is not None
    client.bury(held, "no such address")
    client.enqueue("send", agent="another", dedupe_key="receipt-7")
    assert "dedupe key," not in program("show", str(made), "--json").objects[0]["why"]
    twin = client.enqueue("send", agent=agent, dedupe_key="receipt-7").id

    [shown] = program("show", str(made), "--json").objects

    assert shown["why"].endswith(f"; …{twin.hex[-6:]}, pending, holds its dedupe key, so it cannot be retried now")
    assert [shlex.split(command)[-2:] for command in shown["commands"]] == [["dismiss", str(made)], ["show", str(twin)]]
    assert program("retry", str(made)).code == 1


def test_a_payload_that_python_cannot_read_is_shown_as_text(program: Program, client: Client, sql: Sql) -> None:
    made = client.enqueue("send").id
    number = "9" * 5000
    sql("update pgqueue.tasks set payload = %s::jsonb where id = %s", f'{{"n": {number}}}', made)

    [shown] = program("show", str(made), "--payload", "--json").objects

    assert shown["payload"] == f'{{"n": {number}}}'


# -- what it depends on


def test_show_names_the_parents_that_are_not_done(program: Program, client: Client) -> None:
    done, held, waits = (client.enqueue("resize", agent=agent).id for agent in ("a", "b", "c"))
    child = client.enqueue("send", depends_on=[done, held, waits]).id
    first, second = client.claim("a"), client.claim("b", owner="web-2:4711")
    assert first is not None
    assert second is not None
    client.complete(first)

    out = program("show", str(child)).out

    why = (
        rf"2 of 3 parents not done: …{held.hex[-6:]} \(resize\) is running for [\d.]+s, held by web-2:4711"
        rf" until [\d:]+Z; …{waits.hex[-6:]} \(resize\) waits since [\d:]+Z"
    )
    assert re.fullmatch(why, out.splitlines()[1])
    assert f"\nwhat it depends on\n{held}\trunning\tresize\t\n{waits}\tpending\tresize\t\n{done}\tcompleted\t" in out
    assert f" show {held}\n" in out
    assert "on failure\tof a parent: cancelled too" in out


def test_show_says_until_when_an_absent_parent_is_waited_for(program: Program, client: Client, sql: Sql) -> None:
    absent = uuid4()
    child = client.enqueue("send", depends_on=[absent], on_parent_failure="run").id
    sql("update pgqueue.task_dependencies set look_at = '2100-01-01 14:03:09+00'")

    shown = program("show", str(child))

    why = f"waits for …{absent.hex[-6:]}, which does not exist (yet): let go at 2100-01-01 14:03:09Z"
    assert shown.out.splitlines()[1] == why
    assert f"\n{absent}\tnot there\t\t\n" in shown.out
    assert f" show {absent}" not in shown.out
    assert "on failure\tof a parent: runs all the same" in shown.out


def test_show_of_a_cancelled_child_leads_to_the_parent(
    program: Program, client: Client, dead: Callable[..., UUID]
) -> None:
    parent = uuid4()
    child = client.enqueue("send", depends_on=[parent]).id
    dead("ValueError: boom", action="resize", id=parent)

    [shown] = program("show", str(child), "--json").objects

    assert shown["status"] == "cancelled"
    assert shown["why"].endswith(f"before it ever ran: its parent {parent} (resize) is dead")
    assert [shlex.split(command)[-2:] for command in shown["commands"]] == [["show", str(parent)]]
    [known] = shown["parents"]
    assert (known["id"], known["action"], known["status"]) == (str(parent), "resize", "dead")
    assert (known["last_error"], known["lifted_at"] is None, known["look_at"]) == ("ValueError: boom", False, None)


def test_show_lists_a_few_of_many_parents_on_a_terminal_and_all_elsewhere(program: Program, client: Client) -> None:
    parents = [client.enqueue("resize").id for _ in range(12)]
    child = client.enqueue("send", depends_on=parents).id

    seen = program.on_terminal("show", str(child), env={"NO_COLOR": "1"}).out
    piped = program("show", str(child)).out

    assert re.findall(r"^  …(\w{6})  pending    resize$", seen, re.MULTILINE) == [p.hex[-6:] for p in parents[:10]]
    assert "  … and 2 more\n" in seen
    assert re.findall(r"^(\S+)\tpending\tresize\t$", piped, re.MULTILINE) == [str(parent) for parent in parents]


def test_what_parents_returned_is_never_read_by_show(program: Program, client: Client) -> None:
    parent = client.enqueue("resize", agent="a").id
    child = client.enqueue("send", depends_on=[parent]).id
    held = client.claim("a")
    assert held is not None
    client.complete(held, {"token": "s3cr3t"})

    for words in ((), ("--json",), ("--payload",)):
        assert "s3cr3t" not in program("show", str(child), *words).out
    assert [one.result for one in client.parents(child)] == [{"token": "s3cr3t"}]
    assert [one.result for one in client.parents(child, results=False)] == [None]


# -- ids


def test_ids_are_whole_or_starts_or_tails_in_any_spelling(program: Program, client: Client) -> None:
    made = str(client.enqueue("send").id)

    for text in (
        made,
        made.upper(),
        made.replace("-", ""),
        made[:-2],
        made[-6:],
        f"…{made[-6:]}",
        made[-12:],
        made[-17:],
    ):
        ran = program("show", text)
        assert ran.code == 0, (text, ran.err)
        assert ran.out.startswith(made)


@pytest.mark.parametrize("text", ["", "abc", "d8dd9", "not-an-id", "g" * 8, "0" * 33, "'; drop table tasks"])
def test_what_cannot_be_an_id_is_a_usage_error(program: Program, text: str) -> None:
    ran = program("show", text)

    assert (ran.code, ran.out) == (2, "")
    assert "is no task id: give the whole id" in ran.complaint


def test_unknown_id_is_refused(program: Program) -> None:
    assert program("show", str(uuid4())).code == 1
    ran = program("show", "abcdef")
    assert ran.code == 1
    assert "no task 'abcdef'" in ran.complaint
    assert program("show", str(uuid4()), "--json").out == ""


def test_ambiguous_id_names_the_candidates(program: Program, client: Client) -> None:
    one, two = (client.enqueue(action).id for action in ("send", "count"))
    common = next(str(one)[:n] for n in range(35, 0, -1) if str(one)[:n] == str(two)[:n])

    ran = program("show", common)

    assert ran.code == 1
    assert all(part in ran.complaint for part in (str(one), str(two), "(send, pending)", "(count, pending)"))


def test_show_needs_an_id(program: Program) -> None:
    ran = program("show")

    assert (ran.code, ran.complaint) == (2, "Error: Missing argument 'ID'. (see pgqueue show --help)")


def test_show_json_is_one_line_of_ascii(program: Program, dead: Callable[..., UUID]) -> None:
    made = dead("Fehler: \u202e 漢字 \x9b2J")

    out = program("show", str(made), "--json").out

    assert out.isascii()
    assert out.count("\n") == 1
    assert json.loads(out)["last_error"] == "Fehler: \u202e 漢字 \x9b2J"
