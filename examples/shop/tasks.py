"""What the shop does later: three actions, and the App that holds them."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from pgqueue import App, Context, Permanent

from .orders import Order, async_engine, engine

app = App()


@app.task(queue="mail", max_attempts=3, timeout=30)
def send_receipt(order: int, to: str) -> None:
    Path(f"outbox/{order}.txt").write_text(f"To: {to}\n\nThank you for order {order}.\n")


@app.task(queue="warehouse")
def pack_order(ctx: Context, number: int) -> None:
    """Mark an order as packed, in one transaction with the task's completion: it is packed once, or not at all.

    Enqueued with the warehouse as its agent: each warehouse packs one order at a time.
    """
    with Session(engine()) as session, session.begin():
        order = session.get(Order, number)
        if order is None:
            raise Permanent(f"there is no order {number}")
        order.packed_at = datetime.now(UTC)
        ctx.complete(connection=session)


@app.task(queue="reports")
async def daily_report(ctx: Context, day: date) -> dict[str, int]:
    """Count a day's sales. What a handler returns is the task's result."""
    ctx.progress(0, f"counting the orders of {day}")
    sales = select(func.count(), func.coalesce(func.sum(Order.cents), 0)).where(Order.placed_on == day)
    async with AsyncSession(async_engine()) as session:
        orders, cents = (await session.execute(sales)).one()
    return {"orders": orders, "cents": int(cents)}
