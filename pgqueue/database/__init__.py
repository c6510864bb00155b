"""Which database, and how to it: the URL, the engines, the sessions' settings, and errors in our words.

The URL goes to libpq verbatim through a creator function. SQLAlchemy's own parser refuses what libpq accepts
(several hosts, `postgres://`, keyword strings), and would be a second place that might print a password.
Engines are made per process on first use, so that importing, forking and preloading do no I/O.
"""

from __future__ import annotations

from .engines import Database
from .translate import translate, translated
from .url import EMBEDDED, mask, resolve_url, with_database

__all__ = ["EMBEDDED", "OLDEST_SERVER", "Database", "mask", "resolve_url", "translate", "translated", "with_database"]

OLDEST_SERVER = 15
