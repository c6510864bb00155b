"""Where things lie, and who may own them.

<home>/            0700 (root: 0755, root's)
  start.lock       exclusive, short: look, create, start, stop
  users.lock       shared while a process uses the server; exclusive by the supervisor: nobody is left
  server.lock      exclusive, inherited by initdb, the postmaster and its backends
  supervisor.lock  exclusive by the supervisor, and holds its pid
  state.json       what was started, and how
  server.log       what initdb and the server said
  cluster/pg18/    data, the server user's
  run/             the socket, the server user's
  runtime/<hash>/  root only: a copy of binaries that the server user could not reach
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import EmbeddedError
from .failures import explained, require_posix

logger = logging.getLogger("pgqueue.embedded")

# sun_path holds 104 bytes on macOS; "/.s.PGSQL.5432" and room for its ".lock" go with the directory.
_SOCKET_DIRECTORY_BYTES = 85
# A list of directories for PostgreSQL, a list of hosts for libpq: these would end or quote an entry.
_SOCKET_UNSAFE = frozenset(",\"'\\")


@dataclass(frozen=True)
class Layout:
    """The names inside one home. Makes nothing."""

    home: Path

    @property
    def start_lock(self) -> Path:
        return self.home / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.home / "users.lock"

    @property
    def server_lock(self) -> Path:
        return self.home / "server.lock"

    @property
    def supervisor_lock(self) -> Path:
        return self.home / "supervisor.lock"

    @property
    def state(self) -> Path:
        return self.home / "state.json"

    @property
    def log(self) -> Path:
        return self.home / "server.log"

    @property
    def cluster(self) -> Path:
        return self.home / "cluster"

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def runtime(self) -> Path:
        return self.home / "runtime"

    def data(self, major: int) -> Path:
        return self.cluster / f"pg{major}"

    def major(self) -> int | None:
        """The major version whose data is here, the newest if there are several; None before the first start."""
        try:
            names = os.listdir(self.cluster)
        except FileNotFoundError:
            return None
        found = [int(match[1]) for name in names if (match := re.fullmatch(r"pg([1-9][0-9]+)", name))]
        return max(found, default=None)

    def sockets(self, uid: int) -> Path:
        """The socket directory of a server that runs as `uid`: the same for every caller."""
        run = str(self.run)
        if len(os.fsencode(run)) <= _SOCKET_DIRECTORY_BYTES and _is_plain(run):
            return self.run
        # /tmp and not $TMPDIR: short on macOS, and the same for all who share the server.
        name = f"pgqueue-{uid}-{hashlib.sha256(os.fsencode(self.home)).hexdigest()[:12]}"
        return Path("/tmp") / name  # noqa: S108 - its owner and mode are looked at before use


def locate(home: Path | None) -> Layout:
    """The layout of `home`, or of the default home."""
    chosen = default_home() if home is None else Path(home)
    text = os.path.realpath(chosen)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise EmbeddedError("the embedded server's directory has a control character in its name: choose another one")
    return Layout(Path(text))


def default_home() -> Path:
    """Where the embedded server lives unless told otherwise.

    $PGQUEUE_HOME; else /var/lib/pgqueue for root, the user's data directory for others; else, when that cannot be
    written, a private directory under the system's temporary one, which is then created.

    Raises:
        EmbeddedError: The temporary directory of that name belongs to somebody else, or cannot be made.
    """
    require_posix()
    named = os.environ.get("PGQUEUE_HOME")
    if named:
        return Path(os.path.abspath(os.path.expanduser(named)))
    usual = _usual_home()
    if _can_write(usual):
        return usual
    with explained(usual):
        fallback = Path(tempfile.gettempdir()) / f"pgqueue-{os.geteuid()}"
        _make_private(fallback)
    logger.info(
        "%s cannot be written; the embedded server uses %s, which lasts until the system clears it. Set PGQUEUE_HOME.",
        usual,
        fallback,
    )
    return fallback


def prepare(layout: Layout) -> None:
    """Make the home, or refuse one that another user owns or could tamper with."""
    home = layout.home
    if not os.path.lexists(home):
        home.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # another starter made it just now
            home.mkdir(mode=0o700)
            os.chmod(home, _home_mode())
    info = os.lstat(home)
    if not stat.S_ISDIR(info.st_mode):
        raise EmbeddedError(f"{home} is not a directory: set PGQUEUE_HOME to one")
    if info.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{home} belongs to uid {info.st_uid}, and this is uid {os.geteuid()}: "
            "run as its owner, or set PGQUEUE_HOME to a directory of your own"
        )
    if info.st_mode & (0o022 if os.geteuid() == 0 else 0o002):
        raise EmbeddedError(
            f"{home} can be written by other users: take that right away, or set PGQUEUE_HOME to another directory"
        )
    # An empty directory was made for us. One with other contents (PGQUEUE_HOME=/root) keeps its mode.
    if stat.S_IMODE(info.st_mode) != _home_mode() and not os.listdir(home):
        os.chmod(home, _home_mode())
    # Looked at once more: another starter gives its new home the right mode before it puts anything in.
    elif os.geteuid() == 0 and not os.lstat(home).st_mode & 0o001:
        raise EmbeddedError(
            f"{home} is closed to the user that runs the server for root: chmod o+x it, "
            "or set PGQUEUE_HOME to a directory of its own"
        )


def give_directory(path: Path, *, uid: int, gid: int) -> None:
    """Make `path` a 0700 directory of the server's user. Its parent must be ours alone."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode):
        raise EmbeddedError(f"{path} is not a directory: move it away")
    if info.st_uid == uid:
        return
    if info.st_uid != os.geteuid():
        raise EmbeddedError(
            f"{path} belongs to uid {info.st_uid}, but the server would run as uid {uid}: "
            f"chown -R it, or set PGQUEUE_EMBEDDED_USER to its owner"
        )
    os.chown(path, uid, gid, follow_symlinks=False)


def _is_plain(path: str) -> bool:
    # Surrogates stand for bytes that are no UTF-8; psycopg decodes the host that libpq gives back.
    return not any(character in _SOCKET_UNSAFE or "\ud800" <= character <= "\udfff" for character in path)


def _home_mode() -> int:
    # The server of root runs as another user, who must pass through.
    return 0o755 if os.geteuid() == 0 else 0o700


def _usual_home() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/pgqueue")
    from platformdirs import user_data_path

    return user_data_path("pgqueue")


def _can_write(path: Path) -> bool:
    """Whether `path` is, or could become, a directory that this process may write."""
    for place in (path, *path.parents):
        if os.path.lexists(place):
            return os.path.isdir(place) and os.access(place, os.W_OK | os.X_OK, effective_ids=_EFFECTIVE)
        # lexists() also says no when a parent cannot be searched; that parent then exists and is refused.
    return False


_EFFECTIVE = os.access in os.supports_effective_ids


def _make_private(path: Path) -> None:
    """A directory in a place where anybody may write: ours, and nobody else's."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
        os.chmod(path, _home_mode())
    info = os.lstat(path)
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise PermissionError(errno.EPERM, "not a private directory of this user", str(path))
