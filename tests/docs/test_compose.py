"""docker-compose.yml, read without an engine: its shape, and that its times and commands fit the program's."""

from __future__ import annotations

import re
import shlex
from typing import Any

from pgqueue.config import DEFAULTS
from pgqueue.database import resolve_url

from .pages import ROOT
from .test_commands import parse

TEXT = (ROOT / "docker-compose.yml").read_text()


def read(lines: list[str]) -> dict[str, Any]:
    """Read the part of YAML that the file keeps to: mappings, scalars, block scalars, lists of scalars."""
    found: dict[str, Any] = {}
    while lines:
        line = lines.pop(0)
        key, colon, value = line.partition(":")
        assert colon, line
        assert not key.startswith((" ", "-")), line
        inner: list[str] = []
        while lines and lines[0].startswith("  "):
            inner.append(lines.pop(0)[2:])
        if value.strip() == "|":
            found[key] = "\n".join(inner).strip()
        elif value:
            assert not any(inner), line
            found[key] = value.strip()
        else:
            plain = all(line.startswith("- ") for line in inner)
            found[key] = [line[2:] for line in inner] if inner and plain else read(inner)
    return found


COMPOSE = read([line for line in TEXT.splitlines() if not re.match(r"\s*(#|$)", line)])
SERVICES = COMPOSE["services"]


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_services_wait_for_each_other() -> None:
    assert list(SERVICES) == ["postgres", "migrate", "worker"]
    assert SERVICES["migrate"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert SERVICES["worker"]["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}
    assert "pg_isready" in SERVICES["postgres"]["healthcheck"]["test"]
    assert "restart" not in SERVICES["migrate"]


def test_worker_is_given_longer_than_its_drain() -> None:
    longest = (DEFAULTS.drain + DEFAULTS.cancel_grace).total_seconds()

    assert seconds(SERVICES["worker"]["stop_grace_period"]) >= longest + 10


def test_commands_exist() -> None:
    for service in ("migrate", "worker"):
        program, *arguments = shlex.split(SERVICES[service]["command"])
        assert program == "pgqueue"
        with parse(arguments):
            pass


def test_programs_are_given_the_database_that_is_made() -> None:
    made = SERVICES["postgres"]["environment"]
    url = f"postgresql://{made['POSTGRES_USER']}:{made['POSTGRES_PASSWORD']}@postgres/{made['POSTGRES_DB']}"

    for service in ("migrate", "worker"):
        given = SERVICES[service]["environment"]["PGQUEUE_DATABASE_URL"]
        assert given == url
        assert resolve_url(given, {}) == url


def test_image_is_built_from_the_locked_requirements() -> None:
    recipe = SERVICES["migrate"]["build"]["dockerfile_inline"].splitlines()
    copied = [path for line in recipe if line.startswith("COPY") for path in line.split()[1:-1]]

    assert SERVICES["worker"]["image"] == SERVICES["migrate"]["image"]
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert {"pgqueue", "cli", "alembic", "README.md", "LICENSE"} <= set(copied)
    assert any("--require-hashes" in line for line in recipe)


def test_file_says_that_it_was_not_run() -> None:
    assert "Not run" in TEXT.partition("services:")[0]
