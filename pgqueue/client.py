"""The lifecycle over one database, as Python calls: `Client`, and `AsyncClient`, its twin.

Both are made from the one synchronous `Store`: a verb runs in a transaction of its own, or, on a client that
`Client.on(connection)` returned, in the caller's. Signatures, docstrings and order are the same on both.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack

from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from .config import Limits
from .database import Database, translated
from .errors import DatabaseError, InputError, OutcomeUnknown, RetryTransaction
from .guest import ajoined, joined
from .ids import new_id
from .keys import refuse, shown
from .options import Enqueued, NewTask, Options
from .payload import JSON
from .store import Store
from .task import Gated

if TYPE_CHECKING:
    from uuid import UUID

    from .guest import AnyAsyncConnection, AnyConnection

__all__ = ["AsyncClient", "Client"]

P = ParamSpec("P")
T = TypeVar("T")

_ENDS_TASKS = frozenset(
    {"complete", "fail", "bury", "release", "snooze", "acknowledge_cancel", "cancel", "dismiss", "evict", "reap"}
    | {"set_gate", "sweep", "prune"}
)
"""Verbs that look again after locking, and so need a READ COMMITTED transaction when they join a caller's."""

_REPEATABLE = frozenset(
    {"complete", "fail", "bury", "release", "snooze", "acknowledge_cancel", "renew", "report_progress"}
    | {"get", "list_tasks", "count_tasks", "stats", "events", "find", "parents", "set_gate"}
    | {"find_by_dedupe_key", "find_pending", "has_active"}
    | {"journal", "set_journal", "audit"}
)
"""Verbs that may be sent again when the connection broke: they read, write the same twice, or recognise their own first
success.
"""


def _sync(
    verb: Callable[Concatenate[Store, Connection, P], T],
) -> Callable[Concatenate[Client, P], T]:
    @functools.wraps(verb)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(verb, *args, **kwargs)

    return method


def _async(
    verb: Callable[Concatenate[Store, Connection, P], T],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    @functools.wraps(verb)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(verb, *args, **kwargs)

    return method


def _sync_gate(
    verb: Callable[Concatenate[Store, Connection, P], Gated],
) -> Callable[Concatenate[Client, P], Gated]:
    @functools.wraps(verb)
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Gated:
        gated = self._run(verb, *args, **kwargs)
        self._look_at([gated.id] if gated else [])
        return gated

    return method


def _async_gate(
    verb: Callable[Concatenate[Store, Connection, P], Gated],
) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, Gated]]:
    @functools.wraps(verb)
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> Gated:
        gated = await self._run(verb, *args, **kwargs)
        await self._look_at([gated.id] if gated else [])
        return gated

    return method


class _Face:
    """What the twins share: which database, which schema, whose transaction."""

    def __init__(
        self,
        database: Database | str | None = None,
        *,
        schema: str | None = None,
        owner: str | None = None,
        pool_size: int = 10,
    ) -> None:
        """
        database: a URL or keyword string for libpq, "embedded", a `Database`; None: from the environment, on first use.
        schema: where the tables are (default PGQUEUE_SCHEMA, else "pgqueue").
        owner: what the leases it claims show as their holder (default host:pid).

        No I/O happens here.
        """
        if isinstance(database, Database):
            self.database = database
        else:
            self.database = Database(database, schema=schema, pool_size=pool_size)
        self.store = Store(self.database.schema)
        self.owner = owner
        # Processes in which the schema was found to fit; shared with what `on` returns.
        self._greeted: set[int] = set()
        self._caller: Any = None

    def _joined_to(self, connection: Any) -> Any:
        if connection is None:
            # None would mean "a transaction of my own", and a forgotten session would commit by itself.
            raise InputError("connection: expected a connection or session, not None; pass yours", field="connection")
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._caller = connection
        return twin

    def _adapted(self, verb: Callable[..., Any], kwargs: dict[str, Any]) -> Callable[..., Any]:
        """The verb, with what must be looked at first on this very connection."""
        name = verb.__name__
        kwargs.update({option: _kept(value) for option, value in kwargs.items()})
        if name in ("claim", "claim_batch"):
            kwargs.setdefault("owner", self.owner)
        must_join = self._caller is not None and name in _ENDS_TASKS
        must_greet = os.getpid() not in self._greeted
        if not must_join and not must_greet:
            return verb

        def adapted(store: Store, connection: Connection, *args: Any, **more: Any) -> Any:
            if must_greet:
                store.handshake(connection)
                self._greeted.add(os.getpid())
            if must_join:
                store.joinable(connection, name)
            return verb(store, connection, *args, **more)

        return adapted


class Client(_Face):
    """The lifecycle, synchronously. Safe to share between threads; after a fork it makes connections of its own.

    Every verb runs in a transaction of its own and has committed when it returns; on the client that `on` returns it
    joins the caller's transaction instead, and counts when the caller commits.
    """

    def on(self, connection: AnyConnection) -> Client:
        """The same client in the caller's transaction.

        connection: a SQLAlchemy Connection, Session or scoped_session on PostgreSQL, whatever its driver, or a psycopg
            Connection. It is never committed, rolled back, closed or changed. In autocommit, each verb gets a
            transaction of its own.
        """
        return self._joined_to(connection)  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the pooled connections, and let go of the embedded server."""
        self.database.dispose()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, *, autocommit: bool) -> Iterator[Connection]:
        if self._caller is not None:
            with translated(), joined(self._caller) as connection:
                yield connection
        elif autocommit:
            with self.database.autocommit() as connection:
                yield connection
        else:
            with self.database.begin() as connection:
                yield connection

    def _run(self, verb: Callable[Concatenate[Store, Connection, P], T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        adapted, kept = self._adapted(verb, kwargs), [_kept(one) for one in args]
        tries = _Tries(verb.__name__, joined=self._caller is not None)
        while True:
            try:
                with self._transaction(autocommit=verb.__name__ in _ONE_STATEMENT) as connection:
                    return adapted(self.store, connection, *kept, **kwargs)  # type: ignore[no-any-return]
            except (DatabaseError, RetryTransaction) as error:
                if not tries.again(error):
                    raise

    def enqueue(self, action: str, payload: JSON = None, /, **options: Unpack[Options]) -> Enqueued:
        """Make one task, or adopt the active one that holds the dedupe key.

        action: the name of the handler; not checked here (another program may know it). payload: any JSON value; an
        action's is the object of its arguments. options: see `Options`.

        One statement in a transaction of its own; it has committed when this returns. Repeated with the same `id` it
        returns the same task. Raises InputError, PayloadError (nothing written), OutcomeUnknown (look the id up, or
        call again with it), DatabaseError.
        """
        return self.enqueue_new(NewTask(action, payload, options))

    def enqueue_new(self, task: NewTask, /) -> Enqueued:
        """Make one task from a value (`Action.new`). As `enqueue`."""
        given, task = task, _with_id(task)
        minted = given is not task
        verb = Store.enqueue_child if task.options.get("depends_on") else Store.enqueue_new
        try:
            made = self._run(verb, task)
        except DatabaseError as error:
            if self._caller is not None or not _broken(error):
                raise
            try:
                made = _made(self._run(verb, task), task, minted=minted)
            except DatabaseError as again:
                if not _broken(again):
                    raise
                raise _unknown([task]) from again
        self._look_at(_children([made], [task]))
        return made

    def _look_at(self, children: Sequence[UUID]) -> None:
        """Edges that the commit had to leave are looked at right away; where that fails, the workers do it."""
        if children and self._caller is None:
            with suppress(DatabaseError, RetryTransaction):
                self._run(Store.sweep, children=children)

    def enqueue_many(self, tasks: Iterable[NewTask], /) -> list[Enqueued]:
        """Make many tasks from any iterable, of which it holds 1,000 at a time. Returns one `Enqueued` each, in order.

        On its own: one transaction per 1,000, so what is returned or raised may have been preceded by whole chunks that
        are committed. On `client.on(connection)`: all in the caller's transaction, sorted by key as a whole.
        """
        done: dict[int, Enqueued] = {}
        for positions, chunk, minted in _chunks(tasks, whole=self._caller is not None):
            done |= zip(positions, self._enqueue_chunk(chunk, minted), strict=True)
        return _in_order(done)

    def _enqueue_chunk(self, chunk: list[NewTask], minted: set[UUID]) -> list[Enqueued]:
        try:
            made = self._run(Store.enqueue_chunk, chunk)
        except DatabaseError as error:
            if self._caller is not None or not _broken(error):
                raise
            try:
                found = self._run(Store.enqueue_chunk, chunk)
            except DatabaseError as again:
                if not _broken(again):
                    raise
                raise _unknown(chunk) from again
            made = [_made(one, task, minted=one.id in minted) for one, task in zip(found, chunk, strict=True)]
        self._look_at(_children(made, chunk))
        return made

    claim = _sync(Store.claim)
    claim_batch = _sync(Store.claim_batch)
    renew = _sync(Store.renew)
    report_progress = _sync(Store.report_progress)
    complete = _sync(Store.complete)
    fail = _sync(Store.fail)
    bury = _sync(Store.bury)
    release = _sync(Store.release)
    snooze = _sync(Store.snooze)
    acknowledge_cancel = _sync(Store.acknowledge_cancel)
    cancel = _sync(Store.cancel)
    retry = _sync(Store.retry)
    dismiss = _sync(Store.dismiss)
    evict = _sync(Store.evict)
    reschedule = _sync(Store.reschedule)
    set_gate = _sync_gate(Store.set_gate)
    replace_pending_payload = _sync(Store.replace_pending_payload)
    find_by_dedupe_key = _sync(Store.find_by_dedupe_key)
    find_pending = _sync(Store.find_pending)
    has_active = _sync(Store.has_active)
    get = _sync(Store.get)
    parents = _sync(Store.parents)
    list_tasks = _sync(Store.list_tasks)
    count_tasks = _sync(Store.count_tasks)
    stats = _sync(Store.stats)
    events = _sync(Store.events)
    find = _sync(Store.find)
    reap = _sync(Store.reap)
    journal = _sync(Store.journal)
    set_journal = _sync(Store.set_journal)
    audit = _sync(Store.audit)
    sweep = _sync(Store.sweep)
    prune = _sync(Store.prune)


class AsyncClient(_Face):
    """The lifecycle for asyncio: the same verbs in the same order, awaited. One per event loop."""

    def on(self, connection: AnyAsyncConnection) -> AsyncClient:
        """The same client in the caller's transaction.

        connection: a SQLAlchemy AsyncConnection, AsyncSession or async_scoped_session on PostgreSQL, whatever its
            driver, or a psycopg AsyncConnection. It is never committed, rolled back, closed or changed. In autocommit,
            each verb gets a transaction of its own.
        """
        return self._joined_to(connection)  # type: ignore[no-any-return]

    async def close(self) -> None:
        """Close the pooled connections, and let go of the embedded server."""
        await self.database.adispose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @asynccontextmanager
    async def _transaction(self, *, autocommit: bool) -> AsyncIterator[AsyncConnection]:
        if self._caller is not None:
            with translated():
                async with ajoined(self._caller) as connection:
                    yield connection
        else:
            async with self.database.abegin(autocommit=autocommit) as connection:
                yield connection

    async def _run(
        self, verb: Callable[Concatenate[Store, Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        adapted, kept = self._adapted(verb, kwargs), [_kept(one) for one in args]

        def call(connection: Connection) -> T:
            return adapted(self.store, connection, *kept, **kwargs)  # type: ignore[no-any-return]

        tries = _Tries(verb.__name__, joined=self._caller is not None)
        while True:
            try:
                async with self._transaction(autocommit=verb.__name__ in _ONE_STATEMENT) as connection:
                    return await connection.run_sync(call)
            except (DatabaseError, RetryTransaction) as error:
                if not tries.again(error):
                    raise

    async def enqueue(self, action: str, payload: JSON = None, /, **options: Unpack[Options]) -> Enqueued:
        """Make one task, or adopt the active one that holds the dedupe key. See `Client.enqueue`."""
        return await self.enqueue_new(NewTask(action, payload, options))

    async def enqueue_new(self, task: NewTask, /) -> Enqueued:
        """Make one task from a value (`Action.new`). As `enqueue`."""
        given, task = task, _with_id(task)
        minted = given is not task
        verb = Store.enqueue_child if task.options.get("depends_on") else Store.enqueue_new
        try:
            made = await self._run(verb, task)
        except DatabaseError as error:
            if self._caller is not None or not _broken(error):
                raise
            try:
                made = _made(await self._run(verb, task), task, minted=minted)
            except DatabaseError as again:
                if not _broken(again):
                    raise
                raise _unknown([task]) from again
        await self._look_at(_children([made], [task]))
        return made

    async def _look_at(self, children: Sequence[UUID]) -> None:
        if children and self._caller is None:
            with suppress(DatabaseError, RetryTransaction):
                await self._run(Store.sweep, children=children)

    async def enqueue_many(self, tasks: Iterable[NewTask] | AsyncIterable[NewTask], /) -> list[Enqueued]:
        """Make many tasks, from any iterable or asynchronous iterable. See `Client.enqueue_many`."""
        if self._caller is not None:
            everything = [task async for piece in _listed(tasks) for task in piece]
            return await self._enqueue_pieces(everything, whole=True)
        done: list[Enqueued] = []
        async for piece in _listed(tasks):
            done += await self._enqueue_pieces(piece, whole=False)
        return done

    async def _enqueue_pieces(self, tasks: list[NewTask], *, whole: bool) -> list[Enqueued]:
        done: dict[int, Enqueued] = {}
        for positions, chunk, minted in _chunks(tasks, whole=whole):
            done |= zip(positions, await self._enqueue_chunk(chunk, minted), strict=True)
        return _in_order(done)

    async def _enqueue_chunk(self, chunk: list[NewTask], minted: set[UUID]) -> list[Enqueued]:
        try:
            made = await self._run(Store.enqueue_chunk, chunk)
        except DatabaseError as error:
            if self._caller is not None or not _broken(error):
                raise
            try:
                found = await self._run(Store.enqueue_chunk, chunk)
            except DatabaseError as again:
                if not _broken(again):
                    raise
                raise _unknown(chunk) from again
            made = [_made(one, task, minted=one.id in minted) for one, task in zip(found, chunk, strict=True)]
        await self._look_at(_children(made, chunk))
        return made

    claim = _async(Store.claim)
    claim_batch = _async(Store.claim_batch)
    renew = _async(Store.renew)
    report_progress = _async(Store.report_progress)
    complete = _async(Store.complete)
    fail = _async(Store.fail)
    bury = _async(Store.bury)
    release = _async(Store.release)
    snooze = _async(Store.snooze)
    acknowledge_cancel = _async(Store.acknowledge_cancel)
    cancel = _async(Store.cancel)
    retry = _async(Store.retry)
    dismiss = _async(Store.dismiss)
    evict = _async(Store.evict)
    reschedule = _async(Store.reschedule)
    set_gate = _async_gate(Store.set_gate)
    replace_pending_payload = _async(Store.replace_pending_payload)
    find_by_dedupe_key = _async(Store.find_by_dedupe_key)
    find_pending = _async(Store.find_pending)
    has_active = _async(Store.has_active)
    get = _async(Store.get)
    parents = _async(Store.parents)
    list_tasks = _async(Store.list_tasks)
    count_tasks = _async(Store.count_tasks)
    stats = _async(Store.stats)
    events = _async(Store.events)
    find = _async(Store.find)
    reap = _async(Store.reap)
    journal = _async(Store.journal)
    set_journal = _async(Store.set_journal)
    audit = _async(Store.audit)
    sweep = _async(Store.sweep)
    prune = _async(Store.prune)


_ONE_STATEMENT = frozenset(
    {"enqueue_new", "find_by_dedupe_key", "find_pending", "has_active"}
    | {"get", "list_tasks", "count_tasks", "stats", "events", "find", "parents", "journal"}
)
"""Verbs whose statements need no transaction around them: each is atomic by itself, and saves two round trips."""


_RACES = 5


class _Tries:
    """Whether a call may be sent again: once over a fresh connection, where the verb is repeatable, and a few times
    where its transaction lost a race. Never in a caller's transaction.
    """

    def __init__(self, verb: str, *, joined: bool) -> None:
        self._connections = 0 if joined or verb not in _REPEATABLE else 1
        self._races = 0 if joined else _RACES

    def again(self, error: DatabaseError | RetryTransaction) -> bool:
        if isinstance(error, RetryTransaction):
            # Rolled back whole: nothing of it happened.
            self._races -= 1
            return self._races >= 0
        self._connections -= _broken(error)
        return _broken(error) and self._connections >= 0


def _kept(value: Any) -> Any:
    """What can be read once only is listed: a verb that is sent again would find nothing left in it."""
    return tuple(value) if isinstance(value, Iterator) else value


def _with_id(task: NewTask) -> NewTask:
    """The id is minted before anything is sent: an enqueue that is sent twice then makes one task."""
    if not isinstance(task, NewTask):
        raise refuse("tasks", f"must hold NewTasks, not {shown(task)}", "make them with action.new(…) or NewTask(…)")
    if "id" in task.options:
        return task
    return NewTask(task.action, task.payload, {**task.options, "id": new_id()}, task.encoded)


def _made(found: Enqueued, task: NewTask, *, minted: bool) -> Enqueued:
    """What a repeated enqueue found: an id that was minted for this very call can only be its own first success."""
    return Enqueued(found.id, created=True) if minted and found.id == task.options["id"] else found


def _children(made: Sequence[Enqueued], tasks: Sequence[NewTask]) -> list[UUID]:
    return [one.id for one, task in zip(made, tasks, strict=True) if one.created and task.options.get("depends_on")]


def _broken(error: DatabaseError) -> bool:
    cause = error.__cause__
    return bool(getattr(cause, "connection_invalidated", False))


def _unknown(tasks: list[NewTask]) -> OutcomeUnknown:
    ids = [task.options["id"] for task in tasks]
    named = str(ids[0]) if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
    return OutcomeUnknown(
        f"the connection broke while {named} was being enqueued: it may or may not be there; look it up by id, or"
        " enqueue it again with the same id",
        task_ids=ids,
    )


def _chunks(tasks: Iterable[NewTask], *, whole: bool) -> Iterator[tuple[Sequence[int], list[NewTask], set[UUID]]]:
    """(positions, tasks, ids that were minted here) of at most 1,000. `whole`: all of them sorted by key first.

    In one transaction, two callers that insert the same keys in different orders would wait for each other in a circle.
    """
    numbered: Iterable[tuple[int, NewTask]] = enumerate(tasks)
    if whole:
        numbered = sorted(numbered, key=lambda pair: _key(pair[1]))
    iterator = iter(numbered)
    while chunk := list(itertools.islice(iterator, Limits.BATCH)):
        named = [_with_id(task) for _, task in chunk]
        minted = {new.options["id"] for (_, given), new in zip(chunk, named, strict=True) if new is not given}
        yield [position for position, _ in chunk], named, minted


async def _listed(tasks: Iterable[NewTask] | AsyncIterable[NewTask]) -> AsyncIterator[list[NewTask]]:
    """Pieces of at most 1,000, so that an asynchronous source is never held whole."""
    if not isinstance(tasks, AsyncIterable):
        iterator = iter(tasks)
        while piece := list(itertools.islice(iterator, Limits.BATCH)):
            yield piece
        return
    piece = []
    async for task in tasks:
        piece.append(task)
        if len(piece) == Limits.BATCH:
            yield piece
            piece = []
    if piece:
        yield piece


def _key(task: NewTask) -> tuple[str, str]:
    # Unchecked as yet, and so not always text.
    options = getattr(task, "options", {})
    return (str(options.get("agent") or ""), str(options.get("dedupe_key") or ""))


def _in_order(done: Mapping[int, Enqueued]) -> list[Enqueued]:
    return [done[position] for position in sorted(done)]
