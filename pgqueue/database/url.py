"""Which database: where its URL comes from, and how it is shown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ..errors import ConfigError, NoDatabase

EMBEDDED = "embedded"

_LIBPQ_VARIABLES = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGSERVICE", "PGPORT", "PGUSER")
_WAYS_OUT = (
    "set PGQUEUE_DATABASE_URL or pass --database-url postgresql://user@host/database,"
    " or ask for the embedded server with --database-url embedded"
)


def resolve_url(given: str | None, environ: Mapping[str, str] | None = None) -> str:
    """The database to use: what was given, else PGQUEUE_DATABASE_URL, DATABASE_URL, or libpq's PG* variables.

    Returns "embedded", a URL or keyword string for libpq, or "" for "as the PG* variables say". A driver part
    (`postgresql+asyncpg://`) is dropped. Raises NoDatabase when nothing names one: the embedded server is never a
    silent fallback.
    """
    environ = os.environ if environ is None else environ
    for source, url in (
        ("the database URL", given),
        ("PGQUEUE_DATABASE_URL", environ.get("PGQUEUE_DATABASE_URL")),
        ("DATABASE_URL", environ.get("DATABASE_URL")),
    ):
        if url:
            return _libpq_url(url.strip(), source)
    if any(environ.get(name) for name in _LIBPQ_VARIABLES):
        return ""
    raise NoDatabase(f"no database given: {_WAYS_OUT}")


def _libpq_url(url: str, source: str) -> str:
    if url == EMBEDDED:
        return url
    scheme, separator, rest = url.partition("://")
    if separator:
        base = scheme.partition("+")[0].lower()
        if base not in ("postgresql", "postgres"):
            raise ConfigError(
                f"{source}: {base}:// is not PostgreSQL; use postgresql://user@host/database", field="database_url"
            )
        url = f"postgresql://{rest}"
    try:
        conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        # libpq's own text repeats the URL, password included.
        raise ConfigError(
            f"{source} is neither a PostgreSQL URL nor a keyword string; write postgresql://user:password@host/database,"
            " with special characters in the password percent-encoded",
            field="database_url",
        ) from None
    return url


def mask(url: str) -> str:
    """The URL fit for a log: no password, wherever libpq would accept one."""
    try:
        return _masked(url)
    except ValueError:
        # Not even a URL: say nothing of it.
        return "postgresql://…"


def _masked(url: str) -> str:
    if "://" not in url:
        return re.sub(r"(?i)\b((?:ssl)?password)\s*=\s*('(?:[^'\\]|\\.)*'|\S+)", r"\1=***", url)
    parts = urlsplit(url)
    userinfo, at, hosts = parts.netloc.rpartition("@")
    user, colon, _ = userinfo.partition(":")
    query = [(k, "***" if k.lower() in ("password", "sslpassword") else v) for k, v in parse_qsl(parts.query)]
    netloc = f"{user}{':***' if colon else ''}{at}{hosts}"
    return urlunsplit((parts.scheme, netloc, parts.path, urlencode(query, safe="*/"), ""))


def with_database(url: str, name: str) -> str:
    """The same server, another database."""
    if "://" not in url:
        return make_conninfo(url, dbname=name)
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc, "/" + quote(name), parts.query, ""))
