"""A PostgreSQL of one's own: started on first use, shared by whoever uses it, gone when nobody does.

    from pgqueue import embedded

    with embedded.acquire() as server:
        connect(server.url)

One home directory has at most one server. It listens on a Unix socket in a private directory, never on TCP.
Who uses it holds a shared lock; a supervisor process waits until that lock is free and then stops the server.
The kernel drops the lock when a process ends, however it ends, so nothing here depends on a clean exit.

POSIX only. Elsewhere every function raises `EmbeddedError`, which names the way out.
"""

from __future__ import annotations

from .paths import default_home
from .server import Command, Server, Status, acquire, psql, start, status, stop

__all__ = ["Command", "Server", "Status", "acquire", "default_home", "psql", "start", "status", "stop"]
