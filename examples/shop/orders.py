"""The shop's own table, and the engine to it. The queue knows nothing of this file."""

from __future__ import annotations

import functools
import os
from datetime import UTC, date, datetime

from sqlalchemy import URL, DateTime, Engine, NullPool, create_engine, make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    """The shop's tables."""


class Order(Base):
    __tablename__ = "orders"

    number: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    warehouse: Mapped[str]
    cents: Mapped[int]
    placed_on: Mapped[date] = mapped_column(default=lambda: datetime.now(UTC).date())
    packed_at: Mapped[datetime | None] = mapped_column(DateTime(timezone=True))


def _url() -> URL:
    # Orders and tasks are in one database: that is what lets one transaction write both.
    return make_url(os.environ["PGQUEUE_DATABASE_URL"]).set(drivername="postgresql+psycopg")


@functools.cache
def engine() -> Engine:
    return create_engine(_url())


@functools.cache
def async_engine() -> AsyncEngine:
    # Without a pool: a connection belongs to the event loop that opened it.
    return create_async_engine(_url(), poolclass=NullPool)
