"""docs/fastapi.md is a project: its own tests pass, its worker runs, and an order is there with its tasks or not."""

from __future__ import annotations

from pathlib import Path

import pytest

from pgqueue.client import Client
from tests.support import Sql

from .pages import ROOT
from .project import Project

PLACE = """
import asyncio
import httpx2
from sqlalchemy import create_engine
from shop.models import Base, url
from shop.web import lifespan, web

async def place():
    transport = httpx2.ASGITransport(web, raise_app_exceptions=False)
    async with lifespan(web), httpx2.AsyncClient(transport=transport, base_url="http://shop") as browser:
        return await browser.post("/orders", json={"email": "ada@example.org"})

engine = create_engine(url.set(drivername="postgresql+psycopg"))
Base.metadata.create_all(engine)
engine.dispose()
print(asyncio.run(place()).status_code)
"""
HEALTH = """
from fastapi.testclient import TestClient
from shop.web import web

with TestClient(web) as browser:
    print(browser.get("/health").status_code)
"""
DEPENDENCY = """
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

async def committing():
    yield
    raise ZeroDivisionError

for scope in ("request", "function"):
    web = FastAPI()

    @web.post("/", status_code=201)
    async def order(session=Depends(committing, scope=scope)):
        return {}

    print(scope, TestClient(web, raise_server_exceptions=False).post("/").status_code)
"""


@pytest.fixture
def project(tmp_path: Path, database_url: str) -> Project:
    return Project(ROOT / "docs" / "fastapi.md", tmp_path, database_url)


def test_its_own_tests_pass(project: Project) -> None:
    assert "2 passed" in project.pytest("test_shop.py")


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_worker_runs_what_a_route_enqueued(project: Project, client: Client, driver: str) -> None:
    models = (project.folder / "shop" / "models.py").read_text()
    project.write("shop/models.py", models.replace('"postgresql+psycopg")', f'"postgresql+{driver}")'))
    placed = project.python("-c", PLACE)
    (project.folder / "outbox").mkdir()
    project.python("-m", "pgqueue", "worker", "--app", "shop.tasks:app", "--burst")

    assert placed == "201\n"
    assert {task.action: (str(task.status), task.attempts) for task in client.list_tasks()} == {
        "send_receipt": ("completed", 1),
        "pack_order": ("completed", 1),
    }
    assert [path.name for path in (project.folder / "outbox").iterdir()] == ["1.txt"]


def test_route_that_fails_leaves_neither_order_nor_task(project: Project, client: Client, sql: Sql) -> None:
    line = "        packing = await pack_order.aenqueue_on(session, number=number)\n"
    project.edit("shop/web.py", line, line + "        raise ZeroDivisionError\n")

    placed = project.python("-c", PLACE)

    assert placed == "500\n"
    assert client.count_tasks() == 0
    assert sql("select count(*) from orders") == [(0,)]


def test_health_of_a_queue_that_is_away_is_503(project: Project) -> None:
    here = project.python("-c", HEALTH)
    project.edit("shop/tasks.py", "App(lifespan", "App('host=/x', lifespan")

    assert (here, project.python("-c", HEALTH)) == ("200\n", "503\n")


def test_what_the_page_says_of_dependencies(project: Project) -> None:
    assert project.python("-c", DEPENDENCY) == "request 201\nfunction 500\n"
