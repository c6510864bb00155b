"""The worker: threads that claim, run, renew, settle, listen and reap, wired together and stopped in order.

    claim ──▶ run ──▶ settle          fetch.py · execute.py · settle.py
       └─── renew ─────┘              keep.py, with a connection of its own; it stops last

One process, many handlers at once. Everything that decides about a task is in the database, so a worker may die at any
moment: what it held comes back when the leases end.
"""

from __future__ import annotations

from .service import Worker, run

__all__ = ["Worker", "run"]
