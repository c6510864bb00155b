"""Planted mistakes: every line that ends in the mark, and no other, must be refused."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pgqueue import App, Context
from pgqueue.testing import assert_enqueued, drain, in_transaction
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
App(lifespan=lambda app: 3)  # E
App(middleware=[lambda ctx: 3])  # E
App(imports="shop.tasks", middleware=plain)  # E
app.task(aliases=3)(lambda: None)  # E
app.client.wait(plain.enqueue(to="a"))  # E
app.client.wait("0195f2b4-7c31-7b4a-9f00-0123456789ab", timeout=3)  # E
plain.enqueue(to="a").wait("3s")  # E
assert_enqueued("plain", to="a")  # E


async def f(s: AsyncSession, t: Session) -> None:
    plain.enqueue_on(s, to="a")  # E
    await plain.aenqueue_on(t, to="a")  # E
    coro.aenqueue(n=1)  # E
    plain.enqueue_on(3, to="a")  # E
    drain(app, connection=s)  # E
    with in_transaction(app, s):  # E
        pass


@app.task(queu="x")  # E
def g() -> None: ...
