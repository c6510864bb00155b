"""sd_notify: tell systemd, or whoever speaks its protocol, that the worker is up, how it is, and that it lives."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Final

__all__ = ["Supervisor"]

_SEND_WITHIN: Final = 1.0


class Supervisor:
    """The socket of NOTIFY_SOCKET; without one, every word is dropped. What cannot be sent is no reason to fail.

    watchdog: seconds between signs of life, half of what WATCHDOG_USEC allows; None where nobody waits for them.
    """

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        address = environment.get("NOTIFY_SOCKET", "")
        # "@…" is a socket without a file, which the kernel spells with a NUL in front.
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.there = address.startswith(("/", "@"))
        # The variables are inherited, and meant for one process.
        mine = environment.get("WATCHDOG_PID") in (None, "", str(os.getpid()))
        micro = environment.get("WATCHDOG_USEC", "")
        self.watchdog = int(micro) / 2_000_000 if self.there and mine and micro.isdecimal() and int(micro) else None

    def tell(self, *words: str) -> None:
        """Send `READY=1`, `STATUS=…` and the like, in one datagram."""
        if not self.there:
            return
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            out.settimeout(_SEND_WITHIN)
            out.sendto("\n".join(word.replace("\n", " ") for word in words).encode(), self._address)
