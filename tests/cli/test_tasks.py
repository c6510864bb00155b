"""`list`, `events` and `stats`."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client
from pgqueue.lifecycle import Status

from ..support import Sql
from .running import Program

HOSTILE = "x\x1b]0;title\x07\u202ey [red]z[/red] 漢字"
SHOWN = "xy [red]z[/red] 漢字"


def ids(client: Client, *actions: str, **options: object) -> list[UUID]:
    return [client.enqueue(action, **options).id for action in actions]  # type: ignore[arg-type]


# -- list


def test_list_of_nothing_is_nothing_and_fine(program: Program) -> None:
    assert (program("list").code, program("list").out) == (0, "")
    assert program("list", "--json").out == ""


def test_list_is_tab_separated_whole_and_without_a_header(program: Program, client: Client) -> None:
    first, second = ids(client, "a" * 300, "b", queue="mail", agent="host-7", max_attempts=5)

    ran = program("list")

    assert [row[:6] for row in ran.rows] == [
        [str(second), "pending", "b", "mail", "host-7", "0/5"],
        [str(first), "pending", "a" * 300, "mail", "host-7", "0/5"],
    ]
    assert all(len(row) == 8 and datetime.fromisoformat(row[6]).utcoffset() is not None for row in ran.rows)
    assert "\x1b" not in ran.out


def test_list_as_json_has_every_column_but_no_content(program: Program, client: Client) -> None:
    [made] = ids(client, "send", timeout=90, trigger={"kind": "user"})
    client.enqueue("other", {"password": "hunter2"})

    other, one = program("list", "--json").objects

    assert one | {"id": str(made), "status": "pending", "timeout": 90.0, "trigger": {"kind": "user"}} == one
    assert {"payload", "result", "payload_text", "lease_token"} & one.keys() == set()
    assert "hunter2" not in str(other)
    assert datetime.fromisoformat(one["created_at"]).utcoffset() == timedelta(0)


@pytest.mark.parametrize("words", [("--json", "list"), ("list", "--json"), ("list", "--json", "--limit", "9")])
def test_json_may_stand_anywhere(program: Program, client: Client, words: tuple[str, ...]) -> None:
    ids(client, "send")

    assert program(*words).objects[0]["action"] == "send"


def test_list_on_a_terminal_is_a_table_with_tails(program: Program, client: Client) -> None:
    [made] = ids(client, "send", queue="mail")

    ran = program.on_terminal("list", env={"NO_COLOR": "1"})
    header, row = (re.sub("\x1b\\[[0-9;]*m", "", line).split() for line in ran.out.splitlines())

    assert header == ["ID", "STATUS", "ACTION", "QUEUE", "AGENT", "TRIES", "AGE", "NOTE"]
    assert row[:5] == [f"…{made.hex[-6:]}", "pending", "send", "mail", "0/3"]
    assert str(made) not in ran.out


def test_colour_is_for_terminals_that_want_it(program: Program, client: Client) -> None:
    ids(client, "send")

    assert "\x1b[33mpending" in program.on_terminal("list").out
    assert not re.search("\x1b\\[3", program.on_terminal("list", env={"NO_COLOR": "1"}).out)
    assert "\x1b" not in program.on_terminal("list", env={"TERM": "dumb"}).out


@pytest.mark.parametrize("columns", [30, 60, 80])
def test_table_fits_a_narrow_terminal(program: Program, dead: Callable[..., UUID], columns: int) -> None:
    made = dead("ValueError: " + "x" * 500, action="an_action_with_a_long_name_indeed", agent="agent-" + "y" * 100)

    lines = program.on_terminal("list", columns=columns, env={"NO_COLOR": "1"}).out.splitlines()
    plain = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in lines]

    assert len(plain) == 2
    assert max(len(line) for line in plain) <= columns
    assert plain[1].startswith(f"…{made.hex[-6:]}  dead ")
    assert ("NOTE" in plain[0]) == (columns >= 60)


def test_what_tasks_say_cannot_move_the_cursor(program: Program, dead: Callable[..., UUID], sql: Sql) -> None:
    made = dead(f"ValueError: {HOSTILE}\tand\na traceback", action="send")
    # As another program may have written it, past the library's own check of names.
    sql("update pgqueue.tasks set agent = %s where id = %s", "a\u202eb", made)

    piped = program("list")
    assert piped.rows[0][4] == "ab"
    assert piped.rows[0][7] == f"ValueError: {SHOWN} and"
    shown = program.on_terminal("list", columns=200, env={"NO_COLOR": "1"}).out
    assert SHOWN in shown
    assert "\x1b]" not in shown
    assert program("list", "--json").out.isascii()


@pytest.mark.parametrize("option", ["queue", "action", "agent", "account", "key"])
def test_a_filter_with_nothing_in_it_is_a_usage_error(lost: Program, option: str) -> None:
    ran = lost("list", f"--{option}", "")

    assert (ran.code, ran.out) == (2, "")
    assert f"{option} is empty; give at least one character, or leave it out" in ran.complaint


def test_list_says_when_a_task_is_due_and_who_holds_it(program: Program, client: Client) -> None:
    ids(client, "later", delay=7200)
    ids(client, "now", agent="host-7")
    held = client.claim("host-7", owner="web-2:4711")
    assert held is not None
    client.report_progress(held, 40)

    notes = [row[7] for row in program("list").rows]

    assert notes == ["web-2:4711, 40 %", "due in 1h59m"] or notes == ["web-2:4711, 40 %", "due in 2h"]


def test_filters(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    one = client.enqueue("send", queue="mail", agent="host-7", account="acme", dedupe_key="k1").id
    two = client.enqueue("count", queue="stats").id
    three = dead("TimeoutError: 100% gone")

    def found(*words: str) -> set[str]:
        ran = program("list", *words)
        assert ran.code == 0, ran.err
        return {row[0] for row in ran.rows}

    assert found("--status", "dead") == {str(three)}
    assert found("--status", "dead", "--status", "pending") == {str(one), str(two), str(three)}
    assert found("--queue", "mail") == found("--action", "send", "--queue", "mail") == {str(one)}
    assert found("--agent", "host-7") == found("--account", "acme") == found("--key", "k1") == {str(one)}
    assert found("--error-contains", "100%") == {str(three)}
    assert found("--error-contains", "100_") == set()
    assert found("--queue", "mail", "--status", "dead") == set()
    assert found("--limit", "1") == {str(three)}


def test_since_counts_by_the_servers_clock(program: Program, client: Client, sql: Sql) -> None:
    old, new = ids(client, "old", "new")
    sql("update pgqueue.tasks set created_at = now() - interval '3 hours' where id = %s", old)

    def found(since: str) -> list[str]:
        return [row[0] for row in program("list", "--since", since).rows]

    assert found("2h") == [str(new)]
    assert found("1d") == [str(new), str(old)]
    instant = datetime.now(UTC) - timedelta(hours=1)
    assert found(instant.isoformat()) == found(f"{instant:%Y-%m-%dT%H:%M:%SZ}") == [str(new)]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--since", "2026-01-31T08:00:00"), "no time zone"),
        (("--since", "yesterday"), "write it like 30s"),
        (("--since", "2026-31-01"), "write how long ago"),
        (("--limit", "0"), "--limit"),
        (("--limit", "many"), "--limit"),
        (("--status", "failed"), "'failed' is not one of 'pending', 'running', 'completed', 'dead', 'cancelled'"),
        (("--before", "xyz"), "no task id"),
        (("--schema", "Robert'); --"), "schema cannot be"),
        (("--qeue", "mail"), "--queue"),
        (("surplus",), "unexpected extra argument"),
    ],
)
def test_list_refuses_bad_input(program: Program, words: tuple[str, ...], says: str) -> None:
    ran = program("list", *words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint


def test_pages_follow_each_other(program: Program, client: Client) -> None:
    made = [str(task) for task in reversed(ids(client, *"abcde"))]

    first = [row[0] for row in program("list", "--limit", "2").rows]
    second = [row[0] for row in program("list", "--limit", "2", "--before", first[-1]).rows]
    rest = [row[0] for row in program("list", "--before", second[-1][-12:]).rows]

    assert first + second + rest == made


def test_a_page_may_begin_at_a_task_that_is_gone(program: Program, client: Client) -> None:
    [made] = ids(client, "send")

    assert [row[0] for row in program("list", "--before", "f" * 32).rows] == [str(made)]


def test_list_says_how_far_it_looked(program: Program, sql: Sql) -> None:
    sql(
        "insert into pgqueue.tasks (id, queue, action)"
        " select ('01900000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,"
        " case n when 1 then 'rare' else 'mail' end, 'send' from generate_series(1, 20100) n"
    )

    ran = program("list", "--queue", "rare")
    assert (ran.code, ran.out) == (0, "")
    before = re.fullmatch(r"looked back over 20,000 tasks; for older ones add --before (\S+)\n", ran.err)
    assert before is not None, ran.err
    assert len(program("list", "--queue", "rare", "--before", before[1]).rows) == 1


# -- events


def test_events_tell_attempts_and_operators(program: Program, dead: Callable[..., UUID]) -> None:
    made = dead("ValueError: boom\nTraceback …")
    program("retry", str(made))

    ran = program("events", str(made)[-6:])

    assert [[row[1], row[2], row[3], row[4]] for row in ran.rows] == [
        ["bury", "running", "dead", "1"],
        ["revive", "dead", "pending", "1"],
    ]
    assert ran.rows[0][6] == "ValueError: boom Traceback …"
    assert "@" in ran.rows[1][5]
    bury, _ = program("events", str(made), "--json").objects
    assert (bury["event"], bury["task_id"], bury["detail"]) == ("bury", str(made), "ValueError: boom\nTraceback …")
    assert "ValueError: boom" in program.on_terminal("events", str(made)).out


def test_events_of_a_task_to_which_nothing_happened(program: Program, client: Client) -> None:
    [made] = ids(client, "send")

    assert (program("events", str(made)).code, program("events", str(made)).out) == (0, "")


def test_events_of_an_unknown_task(program: Program) -> None:
    ran = program("events", str(uuid4()))

    assert (ran.code, ran.out) == (1, "")
    assert "no task" in ran.complaint


# -- stats


def test_stats_count_every_status(program: Program, client: Client, dead: Callable[..., UUID]) -> None:
    ids(client, "a", "b")
    dead()
    counts = dict.fromkeys((status.value for status in Status), 0) | {"pending": 2, "dead": 1, "total": 3}

    assert program("stats", "--json").objects == [counts]
    assert program("stats").rows == [[name, str(count)] for name, count in counts.items()]
    assert list(program("stats", "--json").objects[0]) == [*Status, "total"]
    shown = program.on_terminal("stats", env={"NO_COLOR": "1"}).out
    assert re.search(r"dead +1", shown)
