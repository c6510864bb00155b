"""The only room that executes: (Connection, …) -> values. Synchronous, written once; both clients run it.

Nothing here begins, commits or rolls back: the caller's `with` decides what belongs together. A verb that needs to
look again after locking says so; `Store.joinable` refuses it in a transaction that is not READ COMMITTED, where the
second look would be the first one's snapshot.
"""

from __future__ import annotations

from .claim import Claiming, default_owner
from .depend import EDGES
from .enqueue import Enqueueing
from .handshake import Handshaking
from .hold import Holding, not_held
from .journal import Journalling
from .lookup import LookingUp
from .operate import Operating
from .prune import Pruning
from .reap import Reaping
from .values import (
    LONG_AGO,
    SLACK,
    AgentCursor,
    Claims,
    Held,
    Level,
    Met,
    MetLevel,
    Reaped,
    Settlement,
    Swept,
    claim_size,
    lease_of,
)

__all__ = [
    "EDGES",
    "LONG_AGO",
    "SLACK",
    "AgentCursor",
    "Claims",
    "Held",
    "Level",
    "Met",
    "MetLevel",
    "Reaped",
    "Settlement",
    "Store",
    "Swept",
    "claim_size",
    "default_owner",
    "lease_of",
    "not_held",
]


class Store(Handshaking, Enqueueing, Claiming, Holding, Operating, LookingUp, Reaping, Pruning, Journalling):
    """The verbs over one schema. Holds no connection and no state."""
