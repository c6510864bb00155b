"""What a process uses, as the kernel tells it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

__all__ = ["Use", "use_of"]

_TICKS = os.sysconf("SC_CLK_TCK")


class Use(NamedTuple):
    """cpu: seconds since its start; rss: MiB."""

    cpu: float
    rss: float
    threads: int
    files: int


def use_of(pid: int) -> Use:
    stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return Use(
        (int(stat[11]) + int(stat[12])) / _TICKS,
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["Threads"]),
        len(os.listdir(f"/proc/{pid}/fd")),
    )
