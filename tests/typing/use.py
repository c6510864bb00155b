"""How users write it. Never run: the type checker reads it, and every line must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type
from uuid import UUID

import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session

from pgqueue import (
    App,
    AsyncClient,
    Claimed,
    Client,
    Context,
    Enqueued,
    Gated,
    NewTask,
    Parent,
    Permanent,
    Renewed,
    RetryAfter,
    Settled,
    Snooze,
    Status,
    Task,
)

app = App()


@app.task
def plain(to: str, subject: str = "hi") -> None: ...


@app.task(queue="mail", max_attempts=5, timeout=30)
def with_ctx(ctx: Context, to: str, *, subject: str) -> dict[str, int]:
    return {"a": 1}


@app.task(queue="mail", timeout=timedelta(minutes=1), backoff=lambda n: 10 * n)
async def coro(ctx: Context, n: int) -> int:
    return n


@app.task
async def bare_coro(n: int) -> None: ...


@app.task
def nothing() -> None: ...


@app.task
def only_ctx(ctx: Context) -> None: ...


@app.task
def rich(who: UUID, when: datetime, wait: timedelta, tags: list[str]) -> None: ...


@app.task
def mixed(ctx: Context, url: str) -> Snooze | None:
    if not url:
        raise Permanent("no url")
    if url == "busy":
        raise RetryAfter(timedelta(seconds=30), "429")
    ctx.check()
    ctx.sleep(0.1)
    ctx.progress(50, "half")
    assert_type(ctx.fence, int)
    assert_type(ctx.agent, str | None)
    assert_type(ctx.cancelled, bool)
    return Snooze(30)


@app.task
def gathers(ctx: Context, name: str) -> int:
    parents = ctx.parents()
    assert_type(parents, list[Parent])
    assert_type(parents[0].status, Status | None)
    return sum(parent.result == name for parent in parents)


@app.task
async def agathers(ctx: Context) -> int:
    return len([parent.last_error for parent in await ctx.aparents()])


assert_type(plain.enqueue(to="a"), Enqueued)
plain.enqueue("a", "b")
with_ctx.enqueue(to="a", subject="b")
nothing.enqueue()
only_ctx.enqueue()
rich.enqueue(who=UUID(int=1), when=datetime.now(UTC), wait=timedelta(1), tags=["a"])


def blocking(
    connection: Connection,
    session: Session,
    scoped: scoped_session[Session],
    raw: psycopg.Connection[Any],
    row: psycopg.Connection[dict[str, Any]],
) -> None:
    plain.using(priority=3, delay=timedelta(seconds=3)).enqueue(to="a")
    plain.using(agent="host-7", account="acme", queue="mail", max_attempts=9, timeout=None).enqueue(to="a")
    plain.using(not_before=datetime.now(UTC), trigger={"user": "u"}, metadata={"trace": "t"}).enqueue("a")
    made = plain.using(dedupe_key="x").enqueue_on(connection, to="a")
    plain.using(depends_on=[made, made.id], on_parent_failure="run", requires=["gpu"]).enqueue(to="a")
    plain.using(depends_on=(made,), requires=("gpu", "licence")).enqueue(to="a")
    plain.using(depends_on={made.id}, dedupe_key="x", dedupe="forever").enqueue(to="a")
    assert_type(made.id, UUID)
    assert_type(made.created, bool)
    plain.enqueue_on(session, to="a")
    plain.enqueue_on(scoped, to="a")
    plain.enqueue_on(raw, to="a")
    plain.enqueue_on(row, "a", subject="b")
    assert_type(plain.new(to="x"), NewTask)
    plain(to="x")
    assert_type(with_ctx(to="x", subject="y"), dict[str, int])
    assert_type(app.run_worker(concurrency=5), int)


async def asynchronous(
    connection: AsyncConnection,
    session: AsyncSession,
    scoped: async_scoped_session[AsyncSession],
    raw: psycopg.AsyncConnection[Any],
) -> None:
    assert_type(await plain.aenqueue(to="a"), Enqueued)
    await coro.aenqueue_on(session, n=3)
    await coro.aenqueue_on(scoped, n=3)
    await coro.using(priority=1).aenqueue_on(connection, n=3)
    await coro.aenqueue_on(raw, n=3)
    assert_type(await coro(n=3), int)


def client_verbs(client: Client, session: Session) -> None:
    made = client.enqueue("send", {"to": "a"}, priority=3, delay=60)
    assert_type(client.enqueue_many(plain.new(to=str(n)) for n in range(3)), list[Enqueued])
    claimed = client.claim("host-7", lease=30)
    if claimed is not None:
        assert_type(claimed, Claimed)
        assert_type(client.renew(claimed), Renewed)
        client.report_progress(claimed, 50, "half")
        assert_type(client.complete(claimed, {"n": 1}), Settled)
        client.fail(claimed.lease, "boom", delay=3)
    assert_type(client.claim_batch(["mail", "default"], limit=10), list[Claimed])
    assert_type(client.get(made.id), Task)
    assert_type(client.cancel(made.id, by="me"), Status)
    assert_type(client.stats(), dict[str, int])
    gated = client.set_gate(made.id, depends_on=[made], requires=["gpu"], on_parent_failure="run", by="me")
    assert_type(gated, Gated)
    assert_type(gated.status, Status | None)
    assert_type(client.parents(made.id, results=False), list[Parent])
    client.enqueue("send", depends_on=[made.id], dedupe_key="x", dedupe="active")
    client.on(session).complete(client.claim_batch()[0])


async def async_client_verbs(client: AsyncClient, session: AsyncSession) -> None:
    async def source() -> AsyncIterator[NewTask]:
        yield plain.new(to="a")

    made = await client.enqueue("send", {"to": "a"}, agent=None)
    assert_type(await client.enqueue_many(source()), list[Enqueued])
    assert_type(await client.claim("host-7"), Claimed | None)
    assert_type(await client.get(made.id), Task)
    assert_type(await client.on(session).retry(made.id), Task)
    assert_type(await client.set_gate(made.id), Gated)
    assert_type(await client.parents(made.id), list[Parent])
