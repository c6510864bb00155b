"""Ask a server whether it lets people in, in PostgreSQL's own words (protocol 3.0, "Start-up")."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

PORT = 5432
USER = "pgqueue"
_SECONDS = 2.0
_CANNOT_CONNECT_NOW = b"C57P03\0"


def answers(sockets: Path) -> bool:
    """Whether the server behind this socket directory takes connections now.

    A file that says `ready` may be a dead server's, and a process of that pid anybody's; an answer is an answer.
    Any error but "starting up" or "shutting down" counts as yes: too many clients is a living server.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_SECONDS)
        try:
            client.connect(os.fsencode(sockets / f".s.PGSQL.{PORT}"))
            body = struct.pack("!i", 196608) + f"user\0{USER}\0database\0postgres\0\0".encode()
            client.sendall(struct.pack("!i", len(body) + 4) + body)
            answer = client.recv(4096)
            if answer[:1] == b"R":
                client.sendall(b"X\0\0\0\4")  # a polite goodbye leaves no line in the log
            return bool(answer) and _CANNOT_CONNECT_NOW not in answer
        except OSError:
            return False
