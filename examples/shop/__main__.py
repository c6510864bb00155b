"""`python -m shop`: place three orders, each in one transaction with the tasks that follow from it."""

from __future__ import annotations

from datetime import UTC, datetime

from sqlalchemy.orm import Session

from .orders import Base, Order, engine
from .tasks import app, daily_report, pack_order, send_receipt


def place_order(email: str, warehouse: str, cents: int) -> None:
    with Session(engine()) as session, session.begin():
        order = Order(email=email, warehouse=warehouse, cents=cents)
        session.add(order)
        session.flush()  # gives the order its number
        receipt = send_receipt.enqueue_on(session, order=order.number, to=email)
        packing = pack_order.using(agent=warehouse).enqueue_on(session, number=order.number)
        print(f"order {order.number}: receipt {receipt.id}, packing {packing.id}")


def main() -> None:
    Base.metadata.create_all(engine())
    place_order("ada@example.org", "berlin", 4200)
    place_order("grace@example.org", "berlin", 1700)
    place_order("edsger@example.org", "austin", 950)
    today = datetime.now(UTC).date()
    # However often the shop asks on one day: while a report is waiting or running, there is one.
    report = daily_report.using(dedupe_key=today.isoformat()).enqueue(day=today)
    print(f"report {report.id}{'' if report.created else ' (was asked for already)'}")
    app.client.close()
    engine().dispose()


if __name__ == "__main__":
    main()
