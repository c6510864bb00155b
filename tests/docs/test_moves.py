"""The pages for those who come from elsewhere: their library's code, as far as it runs without that library."""

from __future__ import annotations

import ast
from typing import Any

import psycopg
import pytest

from tests.support import Sql

from .pages import ROOT, Block, all_blocks, blocks

THEIRS = list(all_blocks("py"))
PAGE = ROOT / "docs" / "from-procrastinate.md"


@pytest.mark.parametrize("block", THEIRS, ids=str)
def test_code_of_other_libraries_is_python(block: Block) -> None:
    ast.parse(block.text)


def test_jobs_of_procrastinate_are_moved_and_not_left_behind(
    database_url: str, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker skips locked rows when it fetches, so a job is in one world or in the other."""
    sql(
        "create table procrastinate_jobs (id bigint primary key, task_name text, args jsonb, status text,"
        " scheduled_at timestamptz, lock text, priority integer)"
    )
    ours, theirs = "shop.tasks.send_receipt", '{"order": 1, "to": "ada@example.org"}'
    for job, task, status, lock, priority in (
        (1, ours, "todo", None, 0),
        (2, ours, "todo", "berlin", 50),
        (3, ours, "doing", None, 0),
        (4, "shop.tasks.pack_order", "todo", None, 0),
        (5, ours, "todo", None, 0),
    ):
        later = "now() + interval '1 day'" if job == 2 else "null"
        sql(
            f"insert into procrastinate_jobs values (%s, %s, %s, %s, {later}, %s, %s)",
            *(job, task, theirs, status, lock, priority),
        )
    monkeypatch.setenv("PGQUEUE_DATABASE_URL", database_url)
    names: dict[str, Any] = {}
    exec(blocks(PAGE, "python")[0].text, names)  # noqa: S102 - our own pages
    exec(blocks(PAGE, "py")[1].text, names)  # noqa: S102

    with psycopg.connect(database_url) as fetching, psycopg.connect(database_url) as connection:
        fetching.execute("select 1 from procrastinate_jobs where id = 5 for update")
        names["move"](connection)

    left = sql("select id, status from procrastinate_jobs order by id")
    assert left == [(1, "cancelled"), (2, "cancelled"), (3, "doing"), (4, "todo"), (5, "todo")]
    moved = sql(
        "select action, agent, priority, not_before > now() + interval '1 h', payload ->> 'to' from pgqueue.tasks"
        " order by priority"
    )
    assert moved == [
        ("send_receipt", None, 0, False, "ada@example.org"),
        ("send_receipt", "berlin", 9, True, "ada@example.org"),
    ]
