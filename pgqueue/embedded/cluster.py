"""The command lines of initdb and postgres."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import EmbeddedError
from .binaries import Binaries
from .probe import PORT, USER

# Ours: the file system is the access check, and it holds only while nothing listens elsewhere.
_FIXED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "logging_collector",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)


def check_settings(settings: Mapping[str, str]) -> None:
    """
    Raises:
        EmbeddedError: A name that is none, a value that is not text, or a setting that the embedded server decides.
    """
    for name, value in settings.items():
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*", name):
            raise EmbeddedError(f"{name!r} is not the name of a PostgreSQL setting: correct it")
        if not isinstance(value, str) or "\0" in value:
            raise EmbeddedError(f"the setting {name} must be text, as in postgresql.conf: pass a str")
        if name.lower() in _FIXED:
            raise EmbeddedError(f"the embedded server decides {name} itself: leave it out of settings")


def initdb_command(binaries: Binaries, settings: Mapping[str, str]) -> list[str]:
    """Everything but `-D directory`."""
    command = [
        str(binaries.bindir / "initdb"),
        f"--username={USER}",
        "--auth-local=trust",  # whoever reaches the socket has passed a 0700 directory
        "--auth-host=reject",
        "--encoding=UTF8",
        "--no-instructions",
    ]
    if binaries.major >= 17:
        command += ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    else:
        command += ["--no-locale"]
    if settings.get("fsync") == "off":
        command += ["--no-sync"]
    return command


def postgres_command(binaries: Binaries, data: Path, sockets: Path, settings: Mapping[str, str]) -> list[str]:
    chosen = {"shared_buffers": "128MB", "max_connections": "200"}
    if binaries.major >= 18:
        chosen["io_method"] = "sync"  # three processes fewer
    chosen |= settings
    chosen |= {
        "listen_addresses": "",
        "port": str(PORT),  # else PGPORT or a compiled-in default names the socket
        "unix_socket_directories": f'"{sockets}"',
        "unix_socket_permissions": "0700",
        "log_destination": "stderr",
        "logging_collector": "off",
    }
    command = [str(binaries.bindir / "postgres"), "-D", str(data)]
    for name, value in chosen.items():
        command += ["-c", f"{name}={value}"]
    return command
