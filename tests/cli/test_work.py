"""`worker`: how its command line becomes settings, and its end an exit code. What a worker does is tested elsewhere."""

import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from pgqueue.config import WorkerConfig

from .running import Program, Ran

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
        (("--lease", "soon"), "lease cannot be 'soon'; write it like 30s"),
        (("--batch", "1001"), "batch cannot be 1001"),
        (("-q", "x" * 513), "queues has 513 bytes"),
        (("-q", ""), "queues is empty; give at least one name, or leave it out"),
        (("--offer", ""), "offers is empty; give at least one name, or leave it out"),
        (("--offer", "a\nb"), "offers holds a control character"),
        (("--name", ""), "name is empty"),
        (("--retention", "never"), "retention cannot be 'never'"),
        (("--retention=-1d",), "retention cannot be '-1d'"),
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
