"""Root only: binaries that the server's user can reach.

Root's virtual environments often lie under /root, which is closed to others, and it must stay closed: a copy in a
directory of ours opens nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import replace
from pathlib import Path

from ..errors import EmbeddedError
from .account import Account
from .binaries import Binaries, run_version
from .failures import WAY_OUT
from .paths import Layout

_LEFT_OUT = shutil.ignore_patterns("include", "*.a", "*.py", "*.pyi", "__pycache__")
_OPEN = 0o755  # root's, readable by the server's user


def reachable(binaries: Binaries, account: Account, layout: Layout) -> Binaries:
    """The same binaries, or a copy of them that `account` can run.

    Raises:
        EmbeddedError: It cannot run them, and they are not of the kind that can be copied.
    """
    if not account.drop or _runs(binaries, account):
        return binaries
    copied = _copy(binaries, binaries.package, layout) if binaries.package else None
    if copied is None or not _runs(copied, account):
        raise EmbeddedError(
            f"uid {account.uid} cannot run {binaries.bindir}/postgres and initdb"
            f"{f', nor the copy in {copied.bindir}' if copied else ''}: "
            "install them where every user may go, or set PGQUEUE_HOME to a directory that every user may enter"
        )
    return copied


def _runs(binaries: Binaries, account: Account) -> bool:
    try:
        return all(
            run_version(binaries.bindir / name, uid=account.uid, gid=account.gid) for name in ("postgres", "initdb")
        )
    except PermissionError as error:
        raise EmbeddedError(
            f"root may not become uid {account.uid} here, and PostgreSQL does not run as root: {WAY_OUT}"
        ) from error


def _copy(binaries: Binaries, package: Path, layout: Layout) -> Binaries:
    if set('"$`\\') & set(str(layout.runtime)):
        raise EmbeddedError(
            f"binaries cannot be copied into {layout.runtime}, initdb would stumble over its name: "
            "set PGQUEUE_HOME to a directory without quotes, $ and backslashes"
        )
    target = layout.runtime / _fingerprint(package)
    if not target.is_dir():
        _fill(target, package)
    for other in layout.runtime.iterdir():
        if other != target:
            shutil.rmtree(other, ignore_errors=True)
    return replace(binaries, bindir=target / package.name / binaries.bindir.relative_to(package))


def _fill(target: Path, package: Path) -> None:
    target.parent.mkdir(exist_ok=True)
    os.chmod(target.parent, _OPEN)
    new = target.with_name(target.name + ".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    # The programs find their libraries beside the package, by a path relative to themselves.
    for tree in (package, package.with_name(package.name + ".libs")):
        if tree.is_dir():
            shutil.copytree(tree, new / tree.name, symlinks=True, ignore=_LEFT_OUT)
    _open_to_all(new)
    new.rename(target)


def _open_to_all(top: Path) -> None:
    for folder, _, files in os.walk(top):
        os.chmod(folder, _OPEN)
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, _OPEN if os.stat(path).st_mode & 0o100 else 0o644)


def _fingerprint(package: Path) -> str:
    digest = hashlib.sha256(os.fsencode(package))
    for folder, folders, files in os.walk(package):
        folders.sort()
        for name in sorted(files):
            info = os.lstat(os.path.join(folder, name))
            digest.update(f"{name}\0{info.st_size}\0{info.st_mtime_ns}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:16]
