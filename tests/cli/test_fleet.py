"""`workers`, `agents`, `pause`, `resume`; and what `show` says from them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.fleet import Pause, WorkerInfo

from ..support import Sql
from .running import Program, room
from .test_why import NOW, running, task


def worker(**changes: Any) -> WorkerInfo:
    plain: dict[str, Any] = {"id": UUID(int=1), "name": "w", "host": "h", "pid": 1, "version": "1", "concurrency": 20}
    plain |= {"queues": ("mail",), "actions": ("send",), "offers": (), "started_at": NOW, "seen_at": NOW}
    return WorkerInfo(**(plain | changes))


def add(sql: Sql, name: str, queues: list[str], *, offers: tuple[str, ...] = (), seen: str = "now()") -> None:
    sql(
        "insert into pgqueue.workers (id, name, host, pid, version, queues, actions, offers, concurrency, seen_at)"
        f" values (%s, %s, 'web-2', 4711, '0.1.0', %s, %s, %s, 20, {seen})",
        *(uuid4(), name, queues, ["send"], list(offers)),
    )


QUEUE = Pause("queue", "mail", "ada", NOW - timedelta(hours=1))
AGENT = Pause("agent", "host 7", None, NOW - timedelta(hours=1))

CASES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "paused queue": (
        task(),
        {"pauses": [QUEUE]},
        "queue mail is paused since 13:00:00Z by ada: pgqueue resume queue mail",
    ),
    "paused agent": (
        task(agent="host 7"),
        {"pauses": [AGENT]},
        "agent host 7 is paused since 13:00:00Z: pgqueue resume agent 'host 7'",
    ),
    "both paused": (
        task(agent="host 7"),
        {"pauses": [QUEUE, AGENT]},
        (
            "queue mail is paused since 13:00:00Z by ada: pgqueue resume queue mail;"
            " agent host 7 is paused since 13:00:00Z: pgqueue resume agent 'host 7'"
        ),
    ),
    "paused and not due": (
        task(not_before=NOW + timedelta(minutes=5)),
        {"pauses": [QUEUE]},
        (
            "scheduled: due in 5m, at 14:05:00Z; and queue mail is paused since 13:00:00Z by ada:"
            " pgqueue resume queue mail"
        ),
    ),
    "nobody registered": (
        task(),
        {"workers": []},
        "ready for 12s: waits for a worker that serves queue mail; none is registered",
    ),
    "all stale": (
        task(),
        {"workers": [worker(stale=True), worker(stale=True)]},
        "ready for 12s: waits for a worker that serves queue mail; of 2 workers none was seen for a while",
    ),
    "mistyped queue": (
        task(queue="mial"),
        {"workers": [worker()]},
        "ready for 12s: no worker serves queue mial; did you mean mail?",
    ),
    "another queue": (
        task(queue="images"),
        {"workers": [worker()]},
        "ready for 12s: no worker serves queue images",
    ),
    "an agent that claims by itself": (
        task(queue="images", agent="host-7"),
        {"workers": [worker()]},
        "ready for 12s: no worker serves queue images, and agent host-7 has not claimed it itself",
    ),
    "unmet condition": (
        task(requires=("gpu", "net")),
        {"workers": [worker(offers=("net",)), worker(offers=("gpu",), stale=True)]},
        "ready for 12s: no live worker of queue mail offers gpu: pgqueue worker --queues mail --offer gpu --offer net",
    ),
    "conditions that no one worker has": (
        task(requires=("gpu", "net")),
        {"workers": [worker(offers=("net",)), worker(offers=("gpu",))]},
        "ready for 12s: waits for a claim that offers gpu, net: pgqueue worker --queues mail --offer gpu --offer net",
    ),
    "unknown action": (
        task(action="sned"),
        {"workers": [worker()]},
        "ready for 12s: no worker that could take it knows action sned",
    ),
    "somebody": (
        task(),
        {"workers": [worker(), worker(), worker(queues=("other",))]},
        "ready for 12s: waits for a free slot of 2 workers that could take it",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_why_from_pauses_and_workers(case: str) -> None:
    asked, around, sentence = CASES[case]
    why = room("why")
    assert why.why(asked, now=NOW, busy=None, around=why.Around(**around)) == sentence


def test_why_of_what_runs_says_nothing_of_pauses() -> None:
    why = room("why")
    around = why.Around(pauses=[QUEUE], workers=[])
    assert "paused" not in why.why(running(), now=NOW, busy=None, around=around)


# -- pause and resume


def test_pause_show_and_resume(program: Program, client: Client) -> None:
    made = client.enqueue("send", queue="mail").id

    assert program("pause", "queue", "mail").rows == [["queue", "mail", "paused"]]
    assert client.claim_batch("mail") == []
    lines = program("show", str(made)).out.splitlines()
    assert re.fullmatch(r"queue mail is paused since [\d:]+Z by \S+@\S+: pgqueue resume queue mail", lines[1])
    assert any(line.strip().endswith("resume queue mail") or "resume queue mail " in line for line in lines[2:])
    assert [row[:2] for row in program("pause").rows] == [["queue", "mail"]]

    assert program("resume", "queue", "mail").rows == [["queue", "mail", "resumed"]]
    assert len(client.claim_batch("mail")) == 1
    again = program("resume", "queue", "mail")
    assert (again.code, again.out) == (0, "")
    assert "queue mail is not paused" in again.err
    assert "nothing is paused" in program("pause").err


def test_pause_that_is_there_keeps_who_made_it(program: Program, client: Client) -> None:
    client.pause("agent", "host-7", by="ada")
    ran = program("--json", "pause", "agent", "host-7")
    assert ran.objects[0]["by"] == "ada"
    assert "was paused before, by ada" in ran.err
    assert program("--json", "pause").objects == ran.objects
    assert program("--json", "resume", "agent", "host-7").objects == [
        {"kind": "agent", "name": "host-7", "resumed": True}
    ]


@pytest.mark.parametrize("words", [("pause", "mail"), ("pause", "queue"), ("resume",), ("resume", "queue"), ()])
def test_pause_without_a_kind_or_a_name_is_a_usage_error(program: Program, words: tuple[str, ...]) -> None:
    assert program(*(words or ("resume", "worker", "x"))).code == 2


def test_pause_of_what_is_no_name_is_refused(program: Program, client: Client) -> None:
    ran = program("pause", "queue", "a\nb")
    assert ran.code != 0
    assert client.pauses() == []


# -- workers and agents


def test_workers_lists_who_is_there_and_marks_who_is_not(program: Program, sql: Sql) -> None:
    add(sql, "web-2:4711:ab12", ["mail", "images"], offers=("gpu",))
    add(sql, "web-9:1:0000", ["mail"], seen="now() - interval '1 min'")
    ran = program("workers")
    assert [row[:8] for row in ran.rows] == [
        ["web-2:4711:ab12", "web-2", "4711", "0.1.0", "mail,images", "send", "gpu", "20"],
        ["web-9:1:0000", "web-2", "4711", "0.1.0", "mail", "send", "", "20"],
    ]
    assert [row[-1] for row in ran.rows] == ["alive", "stale"]
    assert [one["stale"] for one in program("--json", "workers").objects] == [False, True]
    assert "stale" in program.on_terminal("workers").out


def test_workers_where_there_is_none_says_what_to_do(program: Program) -> None:
    ran = program("workers")
    assert (ran.code, ran.out) == (0, "")
    assert "pgqueue worker" in ran.err


def test_agents_lists_who_has_something_to_do(program: Program, client: Client) -> None:
    for agent in ("a", "a", "b"):
        client.enqueue("send", agent=agent)
    held = client.claim("a", owner="me")
    assert held is not None
    client.pause("agent", "b")
    ran = program("agents")
    assert [row[:5] for row in ran.rows] == [["a", "1", str(held.id), "send", "me"], ["b", "1", "", "", ""]]
    assert ran.rows[1][6] != ""
    first = program("agents", "--limit", "1")
    assert [row[0] for row in first.rows] == ["a"]
    assert "--after a" in first.err
    assert [one["agent"] for one in program("--json", "agents", "--after", "a").objects] == ["b"]


def test_show_of_a_mistyped_queue_names_the_one_that_was_meant(program: Program, client: Client, sql: Sql) -> None:
    made = client.enqueue("send", queue="mial").id
    add(sql, "w", ["mail"])
    lines = program("show", str(made)).out.splitlines()
    assert lines[1].endswith("no worker serves queue mial; did you mean mail?")


def test_show_of_a_condition_that_nobody_offers_says_so(program: Program, client: Client, sql: Sql) -> None:
    made = client.enqueue("send", queue="mail", requires=["gpu"]).id
    add(sql, "w", ["mail"])
    assert "no live worker of queue mail offers gpu" in program("show", str(made)).out
