"""Whether this program, this schema and this transaction fit together."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy import Connection

from ..config import VERSION
from ..database import OLDEST_SERVER
from ..errors import DatabaseError, SchemaMismatch, WrongIsolation
from ..schema import REVISION, VERSION_TABLE
from .base import Base


class Handshaking(Base):
    def handshake(self, connection: Connection) -> None:
        """Whether this program and that schema fit. Raises SchemaMismatch (missing, older, or newer and unwilling).

        A newer schema may say that older programs still work on it (`meta.oldest_program`): expand, then contract.
        """
        number = connection.execute(sa.text("select current_setting('server_version_num')::int")).scalar_one()
        if number // 10_000 < OLDEST_SERVER:
            raise DatabaseError(
                f"PostgreSQL {number // 10_000} is too old: pgqueue needs {OLDEST_SERVER} or newer; upgrade the server"
            )
        found = connection.execute(
            sa.text("select to_regclass(:versions) is not null, to_regclass(:meta) is not null"),
            {"versions": f"{self.schema}.{VERSION_TABLE}", "meta": f"{self.schema}.meta"},
        ).one()
        if not all(found):
            raise SchemaMismatch(f"schema {self.schema!r} has no pgqueue tables yet: run `pgqueue db upgrade`")
        revision, oldest = connection.execute(
            sa.text(
                f"select (select version_num from {self.schema}.{VERSION_TABLE}), oldest_program"  # noqa: S608
                f" from {self.schema}.meta"
            )
        ).one()
        if revision is None or revision < REVISION:
            raise SchemaMismatch(
                f"schema {self.schema!r} is at revision {revision or 'none'}, this program needs {REVISION}:"
                " run `pgqueue db upgrade`"
            )
        if revision > REVISION and _version(oldest) > _version(VERSION):
            raise SchemaMismatch(
                f"schema {self.schema!r} is at revision {revision} and serves pgqueue {oldest} or newer; this is"
                f" {VERSION}: upgrade the program (pgqueue-tasks)"
            )

    def joinable(self, connection: Connection, verb: str) -> None:
        """Refuse a verb that looks again after locking in a transaction where the second look is the first."""
        level = connection.execute(sa.text("show transaction_isolation")).scalar_one()
        if level not in ("read committed", "read uncommitted"):
            raise WrongIsolation(
                f"{verb} was joined to a {level.upper()} transaction, where it cannot see what was committed since:"
                " use a READ COMMITTED one",
                field="connection",
            )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:3] if part.isdecimal())
