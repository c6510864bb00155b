"""state.json: what was started last, and how. Written under start.lock; the supervisor reads `keep` from it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from . import locks


@dataclass(frozen=True, kw_only=True)
class State:
    bindir: str
    version: str
    sockets: str
    keep: bool = False
    """Stay up when nobody is left, until `stop`."""
    linger: float = 0.0
    """Seconds to stay up when nobody is left."""

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def load(path: Path) -> State | None:
    """None when there is none, or none that this version understands."""
    try:
        descriptor = locks.open_transient(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fields = json.loads(os.read(descriptor, 65536))
        state = State(**{name: fields[name] for name in State.__dataclass_fields__})
        return state if state.major else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    finally:
        locks.close(descriptor)


def save(path: Path, state: State, *, readable: bool) -> None:
    """Replace the file in one step. `readable`: the server's user is another one and must be able to read it."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = locks.open_transient(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        os.write(descriptor, json.dumps(asdict(state)).encode())
        os.fchmod(descriptor, 0o644 if readable else 0o600)
    finally:
        locks.close(descriptor)
    os.replace(new, path)
