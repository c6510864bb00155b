"""SQL as values: arguments in, an executable statement out, no I/O. Run only in `store`.

Four rules hold in this room.

- `move(event)` is the only builder that writes `tasks.status`. It reads the lifecycle's rows and compiles their
  guards to one CASE, so that the server decides from the row as it is under the lock.
- A status is written as a literal, never bound: under a generic plan a bound one loses the partial indexes.
- No settling statement names a status in its WHERE. The planner then hashes the whole `running` index, dead
  entries included (28 ms instead of 0.1); the lease token with `lease_expires_at is not null`, which a CHECK ties
  to running, goes by primary key whatever the statistics say.
- `now()` in conditions, because `clock_timestamp()` is no index condition; `clock_timestamp()` in values, because
  a caller's transaction may have begun long ago.

Statements are built once per schema name and cached: SQLAlchemy then finds their compiled form by identity.
"""

from __future__ import annotations

import functools

from ..config import DEFAULTS
from ..schema import schema_for
from .arrays import text_array
from .claim import Claiming
from .depend import Depending
from .enqueue import Enqueueing
from .hold import Holding
from .inspect import Inspecting
from .journal import Journalling
from .lookup import Lookups
from .moves import CLAIM_SIZES, LEVELS, backoff_sql, channel
from .operate import Operating
from .prune import Pruning

__all__ = ["CLAIM_SIZES", "LEVELS", "Statements", "backoff_sql", "channel", "statements_for", "text_array"]


class Statements(Depending, Enqueueing, Claiming, Holding, Operating, Pruning, Lookups, Inspecting, Journalling):
    """All statements over one schema."""


@functools.cache
def statements_for(schema: str = DEFAULTS.schema) -> Statements:
    """The statements over that schema name; the same object for the same name."""
    return Statements(schema_for(schema))
