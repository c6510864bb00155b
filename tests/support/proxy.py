"""Something between client and server that can stop passing anything on, as a frozen server or a cut line does."""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import struct
import threading
from pathlib import Path
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from .waiting import eventually

__all__ = ["CountingProxy", "Proxy"]

_PORT = 5432
_CHUNK = 65_536


class Proxy:
    """A socket in `directory` that leads to the server of `url`; `url` leads through it. Use it in a `with`.

    While it is frozen, connections are accepted and what is sent is taken, and nothing is ever answered. After `hush`
    that goes for the connections of that moment, for ever, while new ones are answered: a firewall that forgot them.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._target = conninfo_to_dict(url)
        self.url = make_conninfo(url, host=str(directory), hostaddr="", port=_PORT)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._flows = threading.Event()
        self._flows.set()
        self._ends = False
        self._hush = threading.Event()
        self._hushed: dict[socket.socket, socket.socket] = {}
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(directory / f".s.PGSQL.{_PORT}"))
        self._listening.listen(64)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._flows.set()
        self._thread.join(30)
        for end in (self._listening, *self._pairs, *self._hushed):
            end.close()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def hush(self) -> int:
        """Returns how many connections nobody will ever answer again."""
        count = len(self._pairs) // 2
        self._hush.set()
        eventually(lambda: not self._hush.is_set())
        return count

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            while not self._ends:
                self._flows.wait()
                if self._hush.is_set():
                    for one in self._pairs:
                        selector.unregister(one)
                    self._hushed |= self._pairs
                    self._pairs.clear()
                    self._hush.clear()
                for key, _ in selector.select(0.01):
                    if not self._flows.is_set():
                        break
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._listening:
                        self._accept(selector)
                    else:
                        self._pass_on(selector, end)

    def _passes(self, end: socket.socket, data: bytes) -> None:
        """`data` came from `end` and goes on."""

    def _accept(self, selector: selectors.BaseSelector) -> None:
        near, _ = self._listening.accept()
        host, port = str(self._target.get("host") or "localhost"), int(self._target.get("port") or _PORT)
        if host.startswith("/"):
            far = socket.socket(socket.AF_UNIX)
            far.connect(f"{host}/.s.PGSQL.{port}")
        else:
            far = socket.create_connection((host, port))
        for one, other in ((near, far), (far, near)):
            self._pairs[one] = other
            selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, selector: selectors.BaseSelector, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if end not in self._pairs:
                return
            data = end.recv(_CHUNK)
            if data:
                self._passes(end, data)
                self._pairs[end].sendall(data)
                return
        for one in (end, self._pairs[end]):
            selector.unregister(one)
            del self._pairs[one]
            one.close()


class CountingProxy(Proxy):
    """One that counts the statements that its clients send, by their text."""

    def __init__(self, url: str, directory: Path) -> None:
        super().__init__(url, directory)
        self.statements: collections.Counter[str] = collections.Counter()
        self._clients: dict[socket.socket, _Client] = {}

    def _accept(self, selector: selectors.BaseSelector) -> None:
        before = set(self._pairs)
        super()._accept(selector)
        near = next(end for end in self._pairs if end not in before)
        self._clients[near] = _Client(self.statements)

    def _passes(self, end: socket.socket, data: bytes) -> None:
        if end in self._clients:
            self._clients[end].says(data)


class _Client:
    """What one client says, in PostgreSQL's protocol: one message of no kind, then each has a letter and a length."""

    def __init__(self, statements: collections.Counter[str]) -> None:
        self._statements = statements
        self._rest = b""
        self._head = 0
        self._prepared: dict[bytes, bytes] = {}
        self._bound = b""

    def says(self, data: bytes) -> None:
        self._rest += data
        while len(self._rest) >= self._head + 4:
            size = self._head + struct.unpack_from("!i", self._rest, self._head)[0]
            if len(self._rest) < size:
                return
            message, self._rest = self._rest[:size], self._rest[size:]
            if self._head:
                self._hears(message[:1], message[5:])
            self._head = 1

    def _hears(self, kind: bytes, body: bytes) -> None:
        match kind:
            case b"Q":
                self._statements[body.rstrip(b"\0").decode()] += 1
            case b"P":
                name, text, _ = body.split(b"\0", 2)
                self._prepared[name] = text
            case b"B":
                self._bound = body.split(b"\0", 2)[1]
            case b"E":
                self._statements[self._prepared.get(self._bound, b"").decode()] += 1
