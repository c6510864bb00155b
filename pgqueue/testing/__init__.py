"""For tests of programs that use pgqueue: run what is due here and now, look at what was enqueued, and undo all of it.

    with in_transaction(app, connection):       # what the app does joins your transaction
        place_order(...)                        # your code
        assert_enqueued(send_receipt, to="ada@example.com")
        drain(app)                              # runs it, in this thread

`pgqueue.testing.pytest` has fixtures. Nothing here imports pytest.
"""

from __future__ import annotations

from .draining import Ran, drain
from .joining import in_transaction
from .looking import assert_enqueued, enqueued

__all__ = ["Ran", "assert_enqueued", "drain", "enqueued", "in_transaction"]
