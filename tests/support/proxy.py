"""Something between client and server that can stop passing anything on, as a frozen server or a cut line does."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict, make_conninfo

__all__ = ["Proxy"]

_PORT = 5432
_CHUNK = 65_536


class Proxy:
    """A socket in `directory` that leads to the server of `url`; `url` leads through it. Use it in a `with`.

    While it is frozen, connections are accepted and what is sent is taken, and nothing is ever answered.
    """

    def __init__(self, url: str, directory: Path) -> None:
        self._target = conninfo_to_dict(url)
        self.url = make_conninfo(url, host=str(directory), hostaddr="", port=_PORT)
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._flows = threading.Event()
        self._flows.set()
        self._ends = False
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(directory / f".s.PGSQL.{_PORT}"))
        self._listening.listen(64)
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)

    def __enter__(self) -> Proxy:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends = True
        self._flows.set()
        self._thread.join(30)
        for end in (self._listening, *self._pairs):
            end.close()

    def freeze(self) -> None:
        self._flows.clear()

    def thaw(self) -> None:
        self._flows.set()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listening, selectors.EVENT_READ)
            while not self._ends:
                self._flows.wait()
                for key, _ in selector.select(0.01):
                    if not self._flows.is_set():
                        break
                    end = key.fileobj
                    assert isinstance(end, socket.socket)
                    if end is self._listening:
                        self._accept(selector)
                    else:
                        self._pass_on(selector, end)

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
                self._pairs[end].sendall(data)
                return
        for one in (end, self._pairs[end]):
            selector.unregister(one)
            del self._pairs[one]
            one.close()
