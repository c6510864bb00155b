"""Planted mistakes: every line that ends in the mark, and no other, must be refused."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pgqueue import Context
from tests.typing.use import app, coro, plain, with_ctx

plain.enqueue(too="a")  # E
plain.enqueue(to=3)  # E
plain.enqueue()  # E
with_ctx.enqueue(ctx=Context(None), to="a", subject="b")  # E
with_ctx.enqueue("a", "b")  # E
plain.using(prority=3).enqueue(to="a")  # E
plain.using(priority="high").enqueue(to="a")  # E
plain.using(timeout="30s").enqueue(to="a")  # E
plain.using(depends_on=plain.enqueue(to="a")).enqueue(to="a")  # E
plain.using(depends_on=["0195f2b4-7c31-7b4a-9f00-0123456789ab"]).enqueue(to="a")  # E
plain.using(on_parent_failure="ignore").enqueue(to="a")  # E
plain.using(dedupe="for ever", dedupe_key="k").enqueue(to="a")  # E
plain.using(requires=[1]).enqueue(to="a")  # E
app.client.set_gate(plain.enqueue(to="a"))  # E


async def f(s: AsyncSession, t: Session) -> None:
    plain.enqueue_on(s, to="a")  # E
    await plain.aenqueue_on(t, to="a")  # E
    coro.aenqueue(n=1)  # E
    plain.enqueue_on(3, to="a")  # E


@app.task(queu="x")  # E
def g() -> None: ...
