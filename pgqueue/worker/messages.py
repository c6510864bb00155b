"""What a worker and a handler's process say to each other: msgpack, each message with its length in front."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

from ..task import Claimed

__all__ = [
    "Ask",
    "Broken",
    "Done",
    "Frames",
    "FromChild",
    "FromWorker",
    "Job",
    "Leave",
    "Progress",
    "Ready",
    "Start",
    "encode",
]

M = TypeVar("M")

_LENGTH = struct.Struct("!I")
_LONGEST = 16 * 1024 * 1024
"""Bytes of a message: a payload and its metadata are far below."""


class Start(msgspec.Struct, tag=True):
    """The first message: where the app is, and what the child shares with its worker.

    main: how `__main__` is made here ("path" or "name", and which), where a handler was declared there.
    app: the module and the name of the App, where a module has it as a name. modules: where the handlers are declared.
    database: URL, schema, pooler: those of the worker. worker: its name. log: what `logs.setup` was told there.
    """

    parent: int
    worker: str
    path: list[str]
    arguments: list[str]
    main: tuple[str, str] | None
    app: tuple[str, str] | None
    modules: list[str]
    database: tuple[str, str, bool]
    log: tuple[str, str] | None


class Job(msgspec.Struct, tag=True):
    """Run this task. action: the name under which it was declared; module, qualname: where its handler stands."""

    number: int
    claimed: Claimed
    action: str
    module: str
    qualname: str


class Ask(msgspec.Struct, tag=True):
    """The handler should stop, and why."""

    number: int
    reason: str


class Leave(msgspec.Struct, tag=True):
    """No more tasks: close what is open, and end."""


class Ready(msgspec.Struct, tag=True):
    """The app is imported."""


class Broken(msgspec.Struct, tag=True):
    """It cannot be; the process ends."""

    text: str


class Progress(msgspec.Struct, tag=True):
    """What the handler said by `ctx.progress`."""

    number: int
    percent: int
    message: str | None


class Done(msgspec.Struct, tag=True):
    """The settlement that the handler came to; event None: its lease is lost, there is nothing to settle."""

    number: int
    event: str | None
    detail: str | None
    delay: timedelta | None
    completed_itself: bool


FromWorker: TypeAlias = Start | Job | Ask | Leave
FromChild: TypeAlias = Ready | Broken | Progress | Done

_ENCODER = msgspec.msgpack.Encoder()


def encode(message: FromWorker | FromChild) -> bytes:
    """The message as it goes over the socket."""
    data = _ENCODER.encode(message)
    return _LENGTH.pack(len(data)) + data


class Frames(Generic[M]):
    """Puts messages together from bytes as they come. ValueError for what is none: the sender is not to be trusted."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(kind)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Take what came."""
        self._buffer += data

    def messages(self) -> Iterator[M]:
        """The messages that are complete by now, each once."""
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > _LONGEST:
                raise ValueError(f"a message of {length:,} bytes")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            message = self._decoder.decode(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield message
