"""How much a transaction has read so far, by its own count: what other sessions did is told late, and to everybody."""

from __future__ import annotations

import sqlalchemy as sa


def rows_read(connection: sa.Connection) -> int:
    """Rows of our tables that this transaction has read, by scans of tables and of indexes. Take the difference."""
    return _sum(connection, "seq_tup_read + coalesce(idx_tup_fetch, 0)")


def scans(connection: sa.Connection) -> int:
    """How often this transaction has begun to read one of our tables from end to end."""
    return _sum(connection, "seq_scan")


def _sum(connection: sa.Connection, counter: str) -> int:
    query = f"select coalesce(sum({counter}), 0) from pg_stat_xact_user_tables where schemaname = 'pgqueue'"
    return int(connection.exec_driver_sql(query).scalar_one())
