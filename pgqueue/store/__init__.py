"""The only room that executes: (Connection, …) -> values. Synchronous, written once; both clients run it.

Nothing here begins, commits or rolls back: the caller's `with` decides what belongs together. A verb that needs to
look again after locking says so; `Store.joinable` refuses it in a transaction that is not READ COMMITTED, where the
second look would be the first one's snapshot.
"""

from __future__ import annotations

from .claim import Claiming, default_owner
from .enqueue import Enqueueing
from .handshake import Handshaking
from .hold import Holding, not_held
from .operate import Operating
from .reap import Reaping
from .values import LONG_AGO, SLACK, AgentCursor, Claims, Held, Reaped, Settlement, claim_size, lease_of

__all__ = [
    "LONG_AGO",
    "SLACK",
    "AgentCursor",
    "Claims",
    "Held",
    "Reaped",
    "Settlement",
    "Store",
    "claim_size",
    "default_owner",
    "lease_of",
    "not_held",
]


class Store(Handshaking, Enqueueing, Claiming, Holding, Operating, Reaping):
    """The verbs over one schema. Holds no connection and no state."""
