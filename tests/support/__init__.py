"""What tests share and pytest does not give: a server, the moment that they wait for, both faces of the client."""

from __future__ import annotations

from .databases import Sql, connect, somebody_waits
from .faces import Blocking
from .waiting import eventually

__all__ = ["Blocking", "Sql", "connect", "eventually", "somebody_waits"]
