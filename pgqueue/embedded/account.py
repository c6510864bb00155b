"""The user that the server runs as. PostgreSQL refuses root."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from ..errors import EmbeddedError
from .failures import WAY_OUT

if sys.platform != "win32":
    import pwd

_CANDIDATES = ("postgres", "_postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """Ids of the server's processes. `drop`: this process is root and must become that user first."""

    uid: int
    gid: int
    drop: bool


def server_account(cluster: Path) -> Account:
    """Who runs the server: this user; for root $PGQUEUE_EMBEDDED_USER, the owner of the data, or a known account.

    Raises:
        EmbeddedError: No such account, or not the one that owns the data.
    """
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), drop=False)
    named = os.environ.get("PGQUEUE_EMBEDDED_USER")
    owner = _owner(cluster)
    if named:
        account = _named(named)
        if account is None or account.uid == 0:
            raise EmbeddedError(
                f"PGQUEUE_EMBEDDED_USER={named} is not an account that can run PostgreSQL: name an ordinary user"
            )
        return account
    if owner is not None:
        # Not the first candidate: that one may have been installed after the data was made.
        return _by_uid(owner, cluster)
    for name in _CANDIDATES:
        account = _named(name)
        if account is not None and account.uid != 0:
            return account
    raise EmbeddedError(
        "PostgreSQL does not run as root, and there is no user "
        f"{', '.join(_CANDIDATES)}: set PGQUEUE_EMBEDDED_USER to an ordinary user, or {WAY_OUT}"
    )


def _owner(cluster: Path) -> int | None:
    try:
        uid = os.lstat(cluster).st_uid
    except FileNotFoundError:
        return None
    return uid or None


def _named(name: str) -> Account | None:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return None
    return Account(entry.pw_uid, entry.pw_gid, drop=True)


def _by_uid(uid: int, cluster: Path) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"{cluster} belongs to uid {uid}, which no user has: chown -R it to one and set PGQUEUE_EMBEDDED_USER"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid, drop=True)
