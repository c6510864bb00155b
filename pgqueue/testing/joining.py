"""An app whose clients, both of them, are in one transaction of the caller's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection

from ..client import AsyncClient, Client
from ..store import Store

if TYPE_CHECKING:
    from ..app import App
    from ..guest import AnyAsyncConnection, AnyConnection

__all__ = ["in_transaction"]

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def in_transaction(app: App, connection: AnyConnection) -> Iterator[App]:
    """Within the block, all that the app does joins the caller's transaction: `app.client`, `app.async_client`, and the
    `enqueue` and `aenqueue` of its actions, in handlers too, in every thread.

    connection: as for `client.on`, synchronous, READ COMMITTED. It is never committed, rolled back or closed here. One
    thread may use it at a time.

    What is given a connection (`enqueue_on`, `ctx.complete`) uses that one: bind your sessions to the same connection.
    """
    client = Client(app.database).on(connection)
    with app.lending(client, _Awaited(client)):
        yield app


class _Awaited(AsyncClient):
    """The verbs of a synchronous client, awaited: they block the loop, which a test can bear."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.database)
        self.__dict__.update(client.__dict__)
        self._blocking = client

    def on(self, connection: AnyAsyncConnection) -> AsyncClient:
        return AsyncClient(self.database).on(connection)

    async def _run(
        self, verb: Callable[Concatenate[Store, Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return self._blocking._run(verb, *args, **kwargs)
