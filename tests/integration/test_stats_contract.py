"""The stats contract: one map, whoever is asked; all five statuses, zeros included, then the total, in that order."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
import sqlalchemy as sa

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.lifecycle import Status
from tests.cli.running import Program
from tests.support import rows

T = TypeVar("T")
KEYS = ["pending", "running", "completed", "dead", "cancelled", "total"]

FILLED: list[dict[Status, int]] = [
    {},
    *({status: 1} for status in Status),
    dict(zip(Status, (5, 4, 3, 2, 1), strict=True)),
]


@pytest.mark.parametrize("there", FILLED, ids=lambda there: "-".join(there) or "empty")
def test_every_surface_gives_the_same_map(
    client: Client,
    async_client: Callable[[Callable[[AsyncClient], Awaitable[dict[str, int]]]], dict[str, int]],
    database: Database,
    database_url: str,
    there: dict[Status, int],
) -> None:
    with database.begin() as connection:
        for status, count in there.items():
            for n in range(count):
                rows.insert(connection, rows.row(status, agent=f"a{n}"))
    expected = [(status.value, there.get(status, 0)) for status in Status] + [("total", sum(there.values()))]

    from_python = client.stats()
    from_asyncio = async_client(lambda twin: twin.stats())
    program = Program(database_url)
    as_json = program("stats", "--json")
    as_text = program("stats")

    assert [name for name, _ in expected] == KEYS
    assert list(from_python.items()) == expected
    assert list(from_asyncio.items()) == expected
    assert list(json.loads(as_json.out).items()) == expected
    assert as_text.rows == [[name, str(count)] for name, count in expected]
    assert (as_json.code, as_text.code) == (0, 0)


def test_json_is_one_object_of_numbers(database_url: str) -> None:
    """What a script reads: `jq .dead`."""
    [counts] = Program(database_url)("stats", "--json").objects

    assert {type(count) for count in counts.values()} == {int}


def test_nobody_can_take_the_map_from_another(client: Client) -> None:
    client.stats().clear()

    assert list(client.stats()) == KEYS


def test_row_of_another_status_cannot_be_and_so_need_not_be_counted(client: Client, database: Database) -> None:
    """task's total counts statuses that it does not know; here a CHECK keeps them out."""
    row = rows.row()
    with pytest.raises(sa.exc.IntegrityError, match="status"), database.begin() as connection:
        rows.insert(connection, row | {"status": "parked"})

    assert client.stats() == dict.fromkeys(KEYS, 0)


def test_page_of_the_contract_names_the_keys_in_their_order() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "seeds.md").read_text()

    assert ", ".join(f"`{key}`" for key in KEYS) in page
