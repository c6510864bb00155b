"""What every command owes: help, an example, a light start; usage errors; versions; completion."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from pgqueue.__main__ import command
from pgqueue.errors import DatabaseError, InputError, NoDatabase, PgqueueError, Refused, SchemaMismatch, TaskNotFound

from .running import ROOT, Program, room


def paths() -> Iterator[tuple[tuple[str, ...], str]]:
    table: dict[str, Any] = command().table  # type: ignore[attr-defined]
    for name, entry in table.items():
        nested = getattr(entry, "commands", None)
        if nested is None:
            yield (name,), entry.help
        else:
            for inner, lazy in nested.items():
                yield (name, inner), lazy.help


PATHS = dict(paths())
ALIASES = {("migrate",)}


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_help_has_a_sentence_and_an_example(path: tuple[str, ...], lost: Program) -> None:
    for flag in ("--help", "-h"):
        ran = lost(*path, flag)
        assert ran.code == 0
        assert ran.out.startswith(f"Usage: pgqueue {' '.join(path)} ")
        assert "\n  Example" in ran.out
        assert "\n    pgqueue " in ran.out or "\n    export " in ran.out
        assert all(len(line) <= 80 for line in ran.out.splitlines() if "pgqueue " not in line)


@pytest.mark.parametrize("path", sorted(PATHS.keys() - ALIASES), ids=" ".join)
def test_the_table_and_the_command_say_the_same(path: tuple[str, ...], lost: Program) -> None:
    said = " ".join(lost(*path, "--help").out.split("\n\n")[1].split())

    assert said == PATHS[path]


def test_no_help_imports_machinery() -> None:
    heavy = ["alembic", "asyncio", "psycopg", "rich", "sqlalchemy"]
    code = (
        "import json, sys\nfrom pgqueue.__main__ import command\nfound = {}\n"
        f"for path in {[list(path) for path in PATHS]!r}:\n"
        "    try:\n        command().main([*path, '--help'], prog_name='pgqueue')\n"
        "    except SystemExit:\n        pass\n"
        f"    found[' '.join(path)] = [name for name in {heavy!r} if name in sys.modules]\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)

    assert json.loads(done.stdout.splitlines()[-1]) == {" ".join(path): [] for path in PATHS}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("lst",), "No such command 'lst'. Did you mean list? (see pgqueue --help)"),
        (("db", "upgrad"), "No such command 'upgrad'. Did you mean upgrade? (see pgqueue db --help)"),
        (("--nope",), "No such option '--nope'"),
        (("--json",), "Missing command"),
        (("db", "--json"), "Missing command"),
    ],
)
def test_usage_errors_are_one_line(lost: Program, words: tuple[str, ...], says: str) -> None:
    ran = lost(*words)

    assert (ran.code, ran.out) == (2, "")
    assert says in ran.complaint.replace("option: --nope", "option '--nope'")  # older Clicks


@pytest.mark.parametrize("words", [(), ("db",), ("embedded",)])
def test_nothing_asked_is_helped(lost: Program, words: tuple[str, ...]) -> None:
    ran = lost(*words)

    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(" ".join(("Usage: pgqueue", *words)))


def test_version(program: Program, lost: Program, client: Any) -> None:
    import psycopg
    import sqlalchemy

    [found] = program("version", "--json").objects
    assert (found["psycopg"], found["sqlalchemy"]) == (psycopg.__version__, sqlalchemy.__version__)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert int(found["server"].split(".")[0]) >= 15
    assert int(found["libpq"].split(".")[0]) >= 13
    assert lost("--version").out == f"pgqueue {found['pgqueue']}\n"

    none = lost("version", "--json")
    assert (none.code, none.objects[0]["server"], none.err) == (0, None, "")
    away = lost("version", "--database-url", "postgresql://u:hunter2@127.0.0.1:1/d")
    assert away.code == 0
    assert ["server", ""] in away.rows
    assert "cannot be reached" in away.err
    assert "hunter2" not in away.err


def test_completion_knows_commands_options_and_values(lost: Program) -> None:
    def completed(words: str, position: int) -> set[str]:
        env = {"_PGQUEUE_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(position)}
        return {line.partition(",")[2] for line in lost.apart(env=env).out.splitlines()}

    assert completed("pgqueue re", 1) == {"retry", "release", "reschedule", "reap"}
    assert completed("pgqueue db ", 2) == {"upgrade", "downgrade", "current", "check", "sql", "journal"}
    assert "--error-contains" in completed("pgqueue list --", 2)
    assert completed("pgqueue list --status d", 3) == {"dead"}


# -- endings


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("x"), 2),
        (SchemaMismatch("x"), 4),
        (DatabaseError("x"), 3),
        (NoDatabase("x"), 3),
        (TaskNotFound("x", task_id="x"), 1),
        (PgqueueError("x"), 1),
    ],
)
def test_every_error_has_a_code(error: PgqueueError, code: int) -> None:
    assert room("errors").code_of(error) == code


def test_a_message_is_one_line_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise PgqueueError("a\nb\x1b[2J\u202ec")

    assert room("errors").status_of(fail) == 1
    assert capsys.readouterr().err == "Error: a bc\n"


def test_a_bug_is_a_bug() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        room("errors").status_of(fail)


def test_refused_is_no_usage_error() -> None:
    assert not issubclass(Refused, InputError)


def test_interrupt_ends_in_130(program: Program, sql: Any) -> None:
    """While it waits for a row that somebody has locked."""
    import psycopg

    from pgqueue.client import Client

    from ..support import eventually

    with Client(program.url) as client:
        made = client.enqueue("send").id
    with psycopg.connect(program.url or "") as other:
        other.execute("select from pgqueue.tasks where id = %s for update", [made])
        process = subprocess.Popen(
            [sys.executable, "-m", "pgqueue", "cancel", str(made)],
            cwd=ROOT,
            env=os.environ | {"PGQUEUE_DATABASE_URL": program.url or ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        waiting = "select pid from pg_stat_activity where application_name = 'pgqueue-cli' and wait_event_type = 'Lock'"
        eventually(lambda: sql(waiting + " and datname = current_database()"))
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)

    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_a_closed_pipe_is_quiet(program: Program, client: Any) -> None:
    for _ in range(300):
        client.enqueue("x" * 500)
    process = subprocess.Popen(
        [sys.executable, "-m", "pgqueue", "list", "--limit", "300"],
        cwd=ROOT,
        env=os.environ | {"PGQUEUE_DATABASE_URL": program.url or ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)

    assert err == ""
