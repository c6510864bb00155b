"""`worker`: how its command line becomes settings, and its end an exit code. What a worker does is tested elsewhere."""

import datetime
import importlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pgqueue.config import WorkerConfig

from .running import Program, Ran, room

# An App that says what it was told instead of working.
FAKE = """
import pgqueue

class Fake(pgqueue.App):
    def run_worker(self, **options):
        print(repr((options, self.client.database.masked, self.client.database.schema)))
        return {status}

app = Fake("postgresql://apps@own/database")
"""


@pytest.fixture
def worker(module: Callable[[str, str], str], lost: Program) -> Callable[..., Ran]:
    """`worker(*words, env=…)`: `pgqueue worker --app …` over an App that tells."""
    name = module("cli_work_fake", FAKE.format(status=0))

    def run(*words: str, env: dict[str, str | None] | None = None) -> Ran:
        return lost("worker", "--app", f"{name}:app", *words, env=env)

    return run


def told(ran: Ran) -> tuple[dict[str, Any], str, str]:
    assert ran.code == 0, ran.err
    options, database, schema = eval(ran.out, {"datetime": datetime})  # noqa: S307 - what our own fake printed
    return options, database, schema


def test_what_is_not_set_is_not_passed(worker: Callable[..., Ran]) -> None:
    options, database, schema = told(worker())

    assert options == {}
    assert (database, schema) == ("postgresql://apps@own/database", "pgqueue")


def test_every_option_is_a_field_of_the_config(worker: Callable[..., Ran]) -> None:
    words = (
        "-q mail,default -q slow -c 50 --lease 90s --poll 1s --no-listen --drain 5m --cancel-grace 2s"
        " --maintenance 500ms --burst --name web-2 --batch 10 --offer licence --offer gpu,gpu --retention 30d"
        " --process-tasks 7 --max-tasks 1000 --max-lifetime 1h --health-port 8080 --health-file live"
    )
    options, _, _ = told(worker(*words.split()))

    config = WorkerConfig.of(options)
    assert config.queues == ("mail", "default", "slow")
    assert config.offers == ("gpu", "licence")
    assert (config.concurrency, config.listen, config.burst, config.name, config.batch) == (
        50,
        False,
        True,
        "web-2",
        10,
    )
    assert config.retention == datetime.timedelta(days=30)
    assert config.process_tasks == 7
    assert (config.max_tasks, config.max_lifetime) == (1000, datetime.timedelta(hours=1))
    assert (config.health_port, config.health_file) == ("127.0.0.1:8080", "live")
    spans = (config.lease, config.poll, config.drain, config.cancel_grace, config.maintenance)
    assert [span.total_seconds() for span in spans] == [90, 1, 300, 2, 0.5]
    assert options.keys() == WorkerConfig.__dataclass_fields__.keys()


def test_variables_stand_for_options_and_yield_to_them(worker: Callable[..., Ran]) -> None:
    env: dict[str, str | None] = {
        "PGQUEUE_WORKER_QUEUES": "mail, two words",
        "PGQUEUE_WORKER_OFFERS": "gpu,licence",
        "PGQUEUE_WORKER_CONCURRENCY": "7",
        "PGQUEUE_WORKER_CANCEL_GRACE": "3s",
        "PGQUEUE_WORKER_BURST": "1",
        "PGQUEUE_WORKER_LEASE": "",
        "PGQUEUE_WORKER_RETENTION": "off",
    }
    options, _, _ = told(worker("-c", "9", env=env))

    assert options["queues"] == ["mail", "two words"]
    assert options["offers"] == ["gpu", "licence"]
    assert (options["concurrency"], options["burst"], options["cancel_grace"].seconds) == (9, True, 3)
    assert "lease" not in options
    assert options["retention"] == "off"
    assert WorkerConfig.of(options).retention is None


def test_the_app_may_come_from_a_variable(module: Callable[[str, str], str], lost: Program) -> None:
    name = module("cli_work_variable", FAKE.format(status=0))

    assert lost("worker", env={"PGQUEUE_WORKER_APP": f"{name}:app"}).code == 0


def test_database_of_the_command_line_wins(worker: Callable[..., Ran]) -> None:
    _, database, schema = told(worker("--database-url", "postgresql://u:pw@else/where", "--schema", "other"))

    assert (database, schema) == ("postgresql://u:***@else/where", "other")


def test_schema_of_the_command_line_wins(worker: Callable[..., Ran]) -> None:
    _, database, schema = told(worker("--schema", "other"))

    assert (database, schema) == ("postgresql://apps@own/database", "other")


@pytest.mark.parametrize("status", [0, 70])
def test_the_workers_status_is_the_exit_code(module: Callable[[str, str], str], lost: Program, status: int) -> None:
    name = module(f"cli_work_status_{status}", FAKE.format(status=status))

    assert lost("worker", "--app", f"{name}:app").code == status


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-c", "0"), "concurrency cannot be 0; give a number from 1 to 10,000"),
        (("-c", "x"), "'x' is not a valid integer"),
        (("--lease", "1ms"), "lease cannot be 1ms"),
        (("--lease", "400ms"), "renewed every third of it, and three renewals take 500ms; give 500ms to 1d"),
        (("--lease", "soon"), "lease cannot be 'soon'; write it like 30s"),
        (("--batch", "1001"), "batch cannot be 1001"),
        (("-q", "x" * 513), "queues has 513 bytes"),
        (("-q", ""), "queues is empty; give at least one name, or leave it out"),
        (("--offer", ""), "offers is empty; give at least one name, or leave it out"),
        (("--offer", "a\nb"), "offers holds a control character"),
        (("--name", ""), "name is empty"),
        (("--retention", "never"), "retention cannot be 'never'"),
        (("--retention=-1d",), "retention cannot be '-1d'"),
        (("--max-tasks", "0"), "max_tasks cannot be 0; give a number from 1"),
        (("--max-lifetime", "0s"), "max_lifetime cannot be 0s; give 1s to"),
        (("--health-port", "web"), "health_port cannot be 'web'; give a port up to 65535, such as 8080"),
        (("--health-port", ":80"), "health_port cannot be ':80'"),
        (("--log-format", "xml"), "'xml' is not one of 'auto', 'text', 'json'"),
        (("--log-level", "loud"), "'loud' is not one of 'debug', 'info'"),
        (("--schema", "1st"), "schema cannot be '1st'"),
        (("--app-dir", "no-such-directory"), "--app-dir no-such-directory is no directory"),
    ],
)
def test_worker_refuses_bad_settings(worker: Callable[..., Ran], words: tuple[str, ...], says: str) -> None:
    ran = worker(*words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint


def test_worker_needs_an_app(lost: Program) -> None:
    ran = lost("worker")

    assert ran.code == 2
    assert "--app" in ran.complaint


def test_worker_without_a_database_says_the_ways_out(module: Callable[[str, str], str], lost: Program) -> None:
    source = "import pgqueue\napp = pgqueue.App()\n@app.task\ndef send() -> None: ...\n"
    name = module("cli_work_lost", source)

    ran = lost("worker", "--app", f"{name}:app", "--burst")

    assert (ran.code, ran.out) == (3, "")
    assert "no database given" in ran.err


def test_worker_runs_a_task(program: Program, module: Callable[[str, str], str], client: Any, tmp_path: Any) -> None:
    module(
        "cli_work_real",
        "import pgqueue\napp = pgqueue.App()\n@app.task\ndef add(a: int, b: int) -> int:\n    return a + b\n",
    )
    made = client.enqueue("add", {"a": 2, "b": 3}).id

    ran = program.apart("worker", "--app", "cli_work_real:app", "--burst", cwd=tmp_path)

    assert ran.code == 0, ran.err
    assert client.get(made).result == 5
    assert json.loads(program("show", str(made), "--json").out)["status"] == "completed"


REAL = """
import logging
import pgqueue

{setup}
app = pgqueue.App()

@app.task
def add(a: int, b: int) -> int:
    logging.getLogger("shop").info("adding")
    return a + b
"""


def worked(program: Program, module: Callable[[str, str], str], setup: str, *words: str) -> tuple[Ran, str]:
    name = module("cli_work_logs", REAL.format(setup=setup))
    program("enqueue", "add", '{"a": 2, "b": 3}', "--app", f"{name}:app")
    ran = program.apart("worker", "--app", f"{name}:app", "--burst", *words, cwd=Path.cwd())
    assert ran.code == 0, ran.err
    return ran, next(line for line in ran.err.splitlines() if "adding" in line)


def test_log_is_json_lines_where_there_is_no_terminal(program: Program, module: Callable[[str, str], str]) -> None:
    ran, line = worked(program, module, "")

    lines = [json.loads(line) for line in ran.err.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
    assert {"action": "add", "attempt": 1, "queue": "default"}.items() <= json.loads(line).items()


def test_log_is_what_the_app_has_set_up_and_knows_the_task(program: Program, module: Callable[[str, str], str]) -> None:
    setup = "logging.basicConfig(level='INFO', format='MINE %(message)s of %(action)s')"

    assert worked(program, module, setup)[1] == "MINE adding of add"
    assert worked(program, module, setup, "--log-format", "text")[1].endswith("queue default]")
    ran = program.apart("worker", "--app", "cli_work_logs:app", "--burst", "--log-level", "warning", cwd=Path.cwd())
    assert (ran.code, ran.err) == (0, "")


def test_port_in_use_is_refused_at_the_start(program: Program, module: Callable[[str, str], str]) -> None:
    name = module("cli_work_port", REAL.format(setup=""))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ran = program("worker", "--app", f"{name}:app", "--burst", "--health-port", port)

    assert ran.code == 2
    assert f"health_port 127.0.0.1:{port} cannot be had (address already in use)" in ran.err


def test_import_that_takes_long_says_where_it_is(
    module: Callable[[str, str], str], lost: Program, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(room("locate"), "SLOW", 0.01)
    # It goes on when it has been talked about.
    module("cli_work_talk", "import threading\nsaid = threading.Event()\n")
    monkeypatch.syspath_prepend(tmp_path)
    talk = importlib.import_module("cli_work_talk")
    tell = room("locate").tell

    def told(text: str) -> None:
        tell(text)
        talk.said.set()

    monkeypatch.setattr(room("locate"), "tell", told)
    name = module("cli_work_long", f"import cli_work_talk\n\ncli_work_talk.said.wait(30)\n{FAKE.format(status=0)}")

    ran = lost("worker", "--app", f"{name}:app")

    assert ran.code == 0
    first = ran.err.splitlines()[0]
    assert first == f"still importing {name} after 0 s; it is at {tmp_path / name}.py, line 3"


def test_import_that_fails_deep_inside_shows_the_way_there(
    module: Callable[[str, str], str], lost: Program, tmp_path: Path
) -> None:
    module("cli_work_inner", "import json\n\ndef setup():\n    json.loads('{')\n\nsetup()\n")
    name = module("cli_work_outer", "import cli_work_inner\n")

    ran = lost("worker", "--app", f"{name}:app")

    assert ran.code == 2
    *way, refusal = ran.err.splitlines()
    inner = tmp_path / "cli_work_inner.py"
    assert way == [
        f"at {tmp_path / name}.py, line 1, in <module>: import cli_work_inner",
        f"at {inner}, line 6, in <module>: setup()",
        f"at {inner}, line 4, in setup: json.loads('{{')",
    ]
    assert refusal.startswith(f"Error: {name} could not be imported: JSONDecodeError: Expecting")
    assert refusal.endswith(f"({inner}, line 4); mend it, then try again")


DECLARED_WRONG = {
    "an action twice": (
        "@app.task\ndef send(): ...\n@app.task(name='send')\ndef other(): ...\n",
        "two handlers are called 'send'; give one of them a name: @app.task(name=…)",
        5,
    ),
    "positional-only": (
        "@app.task\ndef send(to, /): ...\n",
        "send: 'to' is positional-only, and a payload is by name; remove the / from the signature",
        3,
    ),
    "an odd annotation": (
        "import threading\n@app.task\ndef send(to: threading.Lock): ...\n",
        "send: the annotation of 'to' cannot be used",
        4,
    ),
    "a generator": ("@app.task\ndef send():\n    yield 1\n", "send: a handler cannot be a generator", 3),
}


@pytest.mark.parametrize("case", DECLARED_WRONG)
def test_handler_that_cannot_work_is_refused_with_its_place(
    module: Callable[[str, str], str], lost: Program, tmp_path: Path, case: str
) -> None:
    source, says, line = DECLARED_WRONG[case]
    name = module(
        f"cli_work_{case.replace(' ', '_').replace('-', '_')}", f"import pgqueue\napp = pgqueue.App()\n{source}"
    )

    ran = lost("worker", "--app", f"{name}:app")

    assert ran.code == 2
    assert says in ran.complaint
    assert f"({tmp_path / name}.py, line {line})" in ran.complaint
