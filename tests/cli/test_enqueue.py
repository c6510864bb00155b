"""`enqueue`: one task from the shell."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from pgqueue.client import Client

from .running import Program

APP = """
from datetime import timedelta
from uuid import UUID
from pgqueue import App

app = App({database!r})

@app.task(queue="mail", max_attempts=7)
def send(order_id: UUID, to: str, wait: timedelta = timedelta(0)) -> None: ...
"""
ORDER = "0195f2b4-7c31-7b4a-9f00-0123456789ab"


def made(program: Program, *words: str, stdin: str | bytes | None = None) -> UUID:
    ran = program("enqueue", *words, stdin=stdin)
    assert ran.code == 0, ran.err
    return UUID(ran.out.strip())


def test_enqueue_prints_the_id(program: Program, client: Client) -> None:
    task = client.get(made(program, "send", '{"to": "ada"}'))

    assert (task.action, task.queue, task.payload) == ("send", "default", {"to": "ada"})


def test_enqueue_without_a_payload(program: Program, client: Client) -> None:
    assert client.get(made(program, "send")).payload_text is None
    assert client.get(made(program, "send", "null")).payload is None


def test_every_option_arrives(program: Program, client: Client) -> None:
    wanted = uuid4()
    words = "--queue mail --agent host-7 --account acme --priority -3 --delay 2h --max-attempts 5 --timeout 1m30s"
    task = client.get(made(program, "send", "[1]", *words.split(), "--dedupe-key", "k 1", "--id", str(wanted)))

    assert task.id == wanted
    assert (task.queue, task.agent, task.account, task.priority) == ("mail", "host-7", "acme", -3)
    assert (task.max_attempts, task.timeout, task.dedupe_key) == (5, timedelta(seconds=90), "k 1")
    assert timedelta(minutes=119) < task.not_before - task.created_at < timedelta(minutes=121)


def test_payload_from_standard_input(program: Program, client: Client) -> None:
    assert client.get(made(program, "send", "-", stdin='{"to": "ádá"}\n')).payload == {"to": "ádá"}


def test_enqueue_as_json(program: Program) -> None:
    [first] = program("enqueue", "send", "--dedupe-key", "k", "--json").objects
    [second] = program("enqueue", "send", "--dedupe-key", "k", "--json").objects

    assert (first["created"], second) == (True, first | {"created": False})


def test_an_adopted_task_is_said(program: Program) -> None:
    first = made(program, "send", "--dedupe-key", "k")

    ran = program("enqueue", "send", "--dedupe-key", "k")

    assert (ran.code, ran.out) == (0, f"{first}\n")
    assert "nothing new was made" in ran.err


def test_an_adopted_id_is_said(program: Program) -> None:
    first = made(program, "send")

    assert "nothing new was made" in program("enqueue", "send", "--id", str(first)).err


def test_an_adopted_forever_key_is_said(program: Program, client: Client) -> None:
    words = ("send", "--dedupe-key", "k", "--dedupe", "forever")
    first = made(program, *words)
    client.cancel(first)

    ran = program("enqueue", *words)

    assert (ran.out, client.get(first).dedupe_forever) == (f"{first}\n", True)
    assert ran.err.endswith(f"see `pgqueue show {first}`\n")


# -- what it depends on


def test_parents_are_named_by_whole_ids_starts_and_tails(program: Program, client: Client) -> None:
    one, two, three = sorted(client.enqueue(action, agent=action).id for action in ("a", "b", "c"))
    held = client.claim("a")
    assert held is not None
    client.complete(held)  # of whatever status
    words = ["--depends-on", str(one), "--depends-on", two.hex[-6:], "--depends-on", f"…{three.hex[-6:]}"]

    child = made(program, "send", *words, "--depends-on", str(one).upper(), "--on-parent-failure", "run")

    assert [parent.id for parent in client.parents(child)] == [one, two, three]
    task = client.get(child)
    assert (task.waiting_on, task.on_parent_failure) == (2, "run")


def test_a_parent_that_is_not_there_yet_is_taken_by_its_whole_id(program: Program, client: Client) -> None:
    absent = uuid4()

    ran = program("enqueue", "send", "--depends-on", str(absent))

    child = UUID(ran.out.strip())
    assert (ran.code, client.get(child).waiting_on) == (0, 1)
    assert ran.err.startswith(f"{absent} does not exist (yet)")
    assert ran.err.endswith(f"`pgqueue show {child}`\n")
    made(program, "resize", "--id", str(absent))
    assert [parent.action for parent in client.parents(child)] == ["resize"]


def test_conditions_arrive(program: Program, client: Client) -> None:
    task = client.get(made(program, "send", "--requires", "licence", "--requires", "gpu", "--requires", "gpu"))

    assert task.requires == ("gpu", "licence")


NO_PARENT = {
    "an unknown tail": (("--depends-on", "abcdef"), 1, "no task 'abcdef' among those of the last 7 days; see `pgqueue"),
    "no id": (("--depends-on", "yesterday"), 2, "'yesterday' is no task id: give the whole id"),
    "an empty id": (("--depends-on", ""), 2, "'' is no task id"),
    "itself": (("--depends-on", ORDER, "--id", ORDER), 2, "cannot depend on itself; leave it out"),
    "another reaction": (("--on-parent-failure", "weep"), 2, "'weep' is not one of 'cancel', 'run'"),
    "an empty condition": (("--requires", ""), 2, "requires"),
    "a condition with a line break": (("--requires", "a\nb"), 2, "requires"),
    "another dedupe": (("--dedupe", "twice", "--dedupe-key", "k"), 2, "'twice' is not one of 'active', 'forever'"),
    "a dedupe without a key": (("--dedupe", "forever"), 2, "needs a dedupe_key; give one"),
}


@pytest.mark.parametrize("case", NO_PARENT)
def test_enqueue_refuses_gates_that_cannot_be(program: Program, client: Client, case: str) -> None:
    words, code, says = NO_PARENT[case]

    ran = program("enqueue", "send", *words)

    assert (ran.code, ran.out) == (code, "")
    assert says in ran.complaint
    assert client.count_tasks() == 0


def test_an_ambiguous_parent_names_the_candidates(program: Program, client: Client) -> None:
    one = client.enqueue("resize").id
    two = client.enqueue("resize", id=UUID(int=one.int ^ (1 << 60))).id

    ran = program("enqueue", "send", "--depends-on", one.hex[-6:])

    assert (ran.code, ran.out, client.count_tasks()) == (1, "", 2)
    assert all(str(parent) in ran.complaint for parent in (one, two))


def test_a_circle_is_refused(program: Program, client: Client) -> None:
    """A parent may come later: one that waits for the very child closes a circle."""
    child = client.enqueue("send", depends_on=[UUID(ORDER)]).id

    ran = program("enqueue", "resize", "--id", ORDER, "--depends-on", str(child))

    assert (ran.code, ran.out, client.count_tasks()) == (1, "", 1)
    assert "would wait for itself" in ran.complaint


SECRET = "hunter2"
REFUSED = {
    "not JSON": ((f'{{"password": "{SECRET}"',), "payload is not JSON: Expecting ',' delimiter at line 1, column 23"),
    "unquoted": (("{to:1}",), "payload is not JSON"),
    "NaN": (("NaN",), "nan, which JSON does not have"),
    "Infinity": (("-Infinity",), "JSON does not have"),
    "NUL": ((r'"a\u0000b"',), "payload"),
    "lone surrogate": ((r'["\ud800"]',), "payload $[0]"),
    "too deep": (("[" * 101 + "]" * 101,), "deeper than 100"),
    "much too deep": (("[" * 100_000,), "payload"),
    "long number": (("9" * 5000,), "digits"),
    "too large": (('"' + "x" * 1_048_577 + '"',), "1,048,576"),
    "priority": (("--priority", "10"), "priority cannot be 10; give a number from -9 to 9"),
    "priority not a number": (("--priority", "high"), "'high' is not a valid integer"),
    "attempts": (("--max-attempts", "0"), "max_attempts cannot be 0; give a number from 1 to 1,000"),
    "delay": (("--delay", "2x"), "delay cannot be '2x'; write it like 30s"),
    "delay too long": (("--delay", "4000d"), "delay cannot be"),
    "negative delay": (("--delay", "-5s"), "delay cannot be '-5s'"),
    "timeout": (("--timeout", "0"), "timeout cannot be 0s"),
    "id": (("--id", "d8dd91"), "id is not a whole task id"),
    "empty queue": (("--queue", ""), "queue is empty"),
    "long agent": (("--agent", "x" * 513), "agent has 513 bytes; the limit is 512"),
    "control character": (("--account", "a\x1bb"), "account holds a control character"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_enqueue_refuses_bad_input(program: Program, client: Client, case: str) -> None:
    words, says = REFUSED[case]

    ran = program("enqueue", "send", "--", *words) if len(words) == 1 else program("enqueue", "send", *words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint
    assert SECRET not in ran.err
    assert client.count_tasks() == 0


def test_enqueue_refuses_bytes_that_are_no_text(program: Program, client: Client) -> None:
    ran = program("enqueue", "send", "-", stdin=b'"\xff"')

    assert (ran.code, client.count_tasks()) == (2, 0)
    assert "payload is not UTF-8 at byte 1" in ran.complaint


def test_enqueue_refuses_an_empty_action(program: Program) -> None:
    ran = program("enqueue", "")

    assert ran.code == 2
    assert "action is empty" in ran.complaint


def test_enqueue_needs_an_action(program: Program) -> None:
    ran = program("enqueue")

    assert (ran.code, ran.complaint) == (2, "Error: Missing argument 'ACTION'. (see pgqueue enqueue --help)")


def test_parents_are_looked_for_in_the_apps_database(
    lost: Program, client: Client, module: Callable[[str, str], str], database_url: str
) -> None:
    shop = module("cli_enqueue_parents", APP.format(database=database_url)) + ":app"
    parent = client.enqueue("resize").id
    payload = f'{{"order_id": "{ORDER}", "to": "ada"}}'

    child = made(lost, "send", payload, "--app", shop, "--depends-on", parent.hex[-6:], "--requires", "gpu")

    assert [one.id for one in client.parents(child)] == [parent]
    assert (client.get(child).queue, client.get(child).requires) == ("mail", ("gpu",))


# -- with the App


@pytest.fixture
def app(module: Callable[[str, str], str], database_url: str) -> str:
    return module("cli_enqueue_shop", APP.format(database=database_url)) + ":app"


def test_the_app_brings_its_options_and_its_database(lost: Program, client: Client, app: str) -> None:
    task = client.get(made(lost, "send", f'{{"order_id": "{ORDER}", "to": "ada", "wait": "PT5S"}}', "--app", app))

    assert (task.queue, task.max_attempts) == ("mail", 7)
    assert task.payload == {"order_id": ORDER, "to": "ada", "wait": "PT5S"}


def test_options_win_over_the_apps(lost: Program, client: Client, app: str) -> None:
    payload = f'{{"order_id": "{ORDER}", "to": "ada"}}'
    task = client.get(made(lost, "send", payload, "--app", app, "--queue", "slow", "--max-attempts", "2"))

    assert (task.queue, task.max_attempts) == ("slow", 2)


def test_the_command_lines_database_wins(
    lost: Program, client: Client, module: Callable[[str, str], str], database_url: str
) -> None:
    elsewhere = module("cli_enqueue_elsewhere", APP.format(database="postgresql://nobody@127.0.0.1:1/none")) + ":app"
    payload = f'{{"order_id": "{ORDER}", "to": "ada"}}'

    assert client.get(made(lost, "send", payload, "--app", elsewhere, "--database-url", database_url)).queue == "mail"


@pytest.mark.parametrize(
    ("action", "payload", "says"),
    [
        ("sned", "{}", "unknown action 'sned'; this app's actions are: send"),
        ("send", "{}", "'order_id'"),
        ("send", '{"order_id": "x", "to": "ada"}', "order_id"),
        ("send", f'{{"order_id": "{ORDER}", "to": "ada", "cc": "x"}}', "'cc'"),
        ("send", f'{{"order_id": "{ORDER}", "to": 3}}', "to"),
        ("send", "[1]", "JSON object"),
        ("send", "null", "JSON object"),
    ],
)
def test_the_app_refuses_what_its_handler_does_not_take(
    lost: Program, client: Client, app: str, action: str, payload: str, says: str
) -> None:
    ran = lost("enqueue", action, payload, "--app", app)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint
    assert client.count_tasks() == 0
