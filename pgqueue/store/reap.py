"""What becomes of leases that have run out."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Connection

from .. import keys
from ..config import Limits
from ..lifecycle import TERMINAL, Event, Status
from ..options import Duration
from .depend import Depending
from .values import LONG_AGO, Reaped


class Reaping(Depending):
    def reap(
        self,
        connection: Connection,
        *,
        limit: int = 100,
        floor: datetime = LONG_AGO,
        settled: Duration = 0,
    ) -> list[Reaped]:
        """Return what expired leases hold: pending, dead (attempts used up) or cancelled (if requested).

        settled: only once the server has been up for so long; after an outage, holders renew first. A row that cannot
        be moved does not stop the others. Returns what was reaped, longest expired first; fewer than `limit` means all.
        """
        keys.check_int(limit, field="limit", low=1, high=Limits.BATCH)
        wait = keys.check_duration(settled, field="settled")
        expired = connection.execute(self.sql.expired, {"floor": floor, "settled": wait, "limit": limit}).all()
        if not expired:
            return []
        rows = {row.id: row for row in expired}
        moved = self._each_isolated(connection, [row.id for row in expired], self._expire)
        self._record(
            connection,
            Event.EXPIRE,
            [(m.id, m.status, m.attempts, m.fence, rows[m.id].lease_owner, None) for m in moved],
        )
        self._ended(connection, {m.id: Status(m.status) for m in moved if Status(m.status) in TERMINAL})
        back = sorted({m.queue for m in moved if m.status == Status.PENDING})
        if back:
            connection.execute(self.sql.hint, {"queues": back}).all()
        return [
            Reaped(m.id, Status(m.status), rows[m.id].lease_owner, rows[m.id].agent, rows[m.id].queue) for m in moved
        ]

    def _expire(self, connection: Connection, ids: Sequence[UUID]) -> list[Any]:
        return list(connection.execute(self.sql.apply(Event.EXPIRE), {"ids": list(ids)}))

    def earliest_expiry(
        self, connection: Connection, *, floor: datetime = LONG_AGO
    ) -> tuple[float | None, datetime | None]:
        """(seconds until the earliest lease expires, the instant), or (None, None) when nothing runs."""
        row = connection.execute(self.sql.earliest_expiry, {"floor": floor}).one()
        return row.wait, row.earliest
