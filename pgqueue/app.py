"""What users import: an `App` holds actions; an `Action` is a handler under its name.

Declaring actions does no I/O: the database is looked for when something is enqueued or a worker starts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, Unpack, cast, overload

from . import keys
from .arguments import Arguments
from .backoff import Backoff
from .client import AsyncClient, Client
from .config import DEFAULTS, Limits, WorkerConfig
from .context import Context
from .database import Database
from .errors import ConfigError, InputError, UnknownAction
from .options import Duration, Enqueued, NewTask, Options, checked

if TYPE_CHECKING:
    from datetime import timedelta

    from .guest import AnyAsyncConnection, AnyConnection

__all__ = ["Action", "App"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True)
class _Declared:
    """What `@app.task` was told, and what was read off the handler."""

    handler: Callable[..., Any]
    name: str
    queue: str
    max_attempts: int
    timeout: timedelta | None
    backoff: Backoff | None
    arguments: Arguments
    is_async: bool


class Action(Generic[P, R]):
    """A handler under its name: what `@app.task` returns. Calling it runs the handler here and now.

    Everything that enqueues converts the arguments by the handler's annotations, and refuses (PayloadError) what the
    worker could not give back to it.
    """

    def __init__(self, app: App, declared: _Declared, options: Options) -> None:
        self._app = app
        self._declared = declared
        self._options = options
        self.__doc__ = declared.handler.__doc__
        self.__name__ = declared.name
        self.__wrapped__ = declared.handler

    def __repr__(self) -> str:
        return f"Action({self._declared.name!r}, queue={self._declared.queue!r})"

    @property
    def name(self) -> str:
        return self._declared.name

    @property
    def queue(self) -> str:
        return self._declared.queue

    @property
    def max_attempts(self) -> int:
        return self._declared.max_attempts

    @property
    def timeout(self) -> timedelta | None:
        return self._declared.timeout

    @property
    def backoff(self) -> Backoff | None:
        return self._declared.backoff

    @property
    def is_async(self) -> bool:
        return self._declared.is_async

    @property
    def handler(self) -> Callable[..., Any]:
        return self._declared.handler

    @property
    def arguments(self) -> Arguments:
        return self._declared.arguments

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here, in this process, now: no task is made. A Context is made up where it asks for one."""
        arguments = self._declared.arguments
        if arguments.injected is None:
            return cast("R", self._declared.handler(*args, **kwargs))
        before, named = arguments.inject(Context(None, action=self.name), dict(kwargs))
        return cast("R", self._declared.handler(*before, *args, **named))

    def using(self, **options: Unpack[Options]) -> Action[P, R]:
        """The same action with options for what it enqueues; later ones win. InputError for a value out of range."""
        earlier: dict[str, Any] = dict(self._options)
        if options.keys() & {"delay", "not_before"}:
            earlier.pop("delay", None)
            earlier.pop("not_before", None)
        return Action(self._app, self._declared, checked(cast("Options", {**earlier, **options})))

    def new(self, /, *args: P.args, **kwargs: P.kwargs) -> NewTask:
        """The request as a value, converted and checked: what `client.enqueue_many` takes."""
        return self._new(args, kwargs)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a task of these arguments. It has committed when this returns. See `Client.enqueue`."""
        return self._app.client.enqueue_new(self._new(args, kwargs))

    def enqueue_on(self, connection: AnyConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a task in the caller's transaction: it exists when, and only when, the caller commits."""
        return self._app.client.on(connection).enqueue_new(self._new(args, kwargs))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` for asyncio."""
        return await self._app.async_client.enqueue_new(self._new(args, kwargs))

    async def aenqueue_on(self, connection: AnyAsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue_on` for an asynchronous connection."""
        return await self._app.async_client.on(connection).enqueue_new(self._new(args, kwargs))

    def _new(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> NewTask:
        d = self._declared
        text = d.arguments.encode(args, kwargs, limit=Limits.PAYLOAD_BYTES)
        options: Any = {"queue": d.queue, "max_attempts": d.max_attempts, **self._options}
        return NewTask(d.name, text, options, encoded=True)


class Decorator(Protocol):
    """What `@app.task(…)` with options returns."""

    @overload
    def __call__(self, handler: Callable[Concatenate[Context, P], R], /) -> Action[P, R]: ...
    @overload
    def __call__(self, handler: Callable[P, R], /) -> Action[P, R]: ...


class App:
    """The actions of one program, over one database.

    database: a URL or keyword string for libpq; "embedded" for the embedded server; None: PGQUEUE_DATABASE_URL, else
        DATABASE_URL, else libpq's PG* variables, looked up on first use.
    schema: where the tables are (default PGQUEUE_SCHEMA, else "pgqueue").
    """

    def __init__(self, database: str | None = None, *, schema: str | None = None) -> None:
        self.database = Database(database, schema=schema)
        self._actions: dict[str, Action[..., Any]] = {}
        self._client: Client | None = None
        # An engine's connections belong to the event loop that opened them.
        self._async_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def client(self) -> Client:
        """The synchronous client over this app's database; one per app."""
        if self._client is None:
            self._client = Client(self.database)
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The asynchronous client of the running event loop. RuntimeError outside of one."""
        loop = asyncio.get_running_loop()
        if loop not in self._async_clients:
            self._async_clients[loop] = AsyncClient(self.database.sibling())
        return self._async_clients[loop]

    @property
    def actions(self) -> Mapping[str, Action[..., Any]]:
        """The actions by name, in the order in which they were declared."""
        return self._actions

    def action(self, name: str) -> Action[..., Any]:
        """The action of that name. UnknownAction names the ones there are."""
        try:
            return self._actions[name]
        except KeyError:
            known = ", ".join(sorted(self._actions)) or "none: declare one with @app.task"
            raise UnknownAction(f"unknown action {name!r}; this app's actions are: {known}", action=name) from None

    @overload
    def task(self, handler: Callable[Concatenate[Context, P], R], /) -> Action[P, R]: ...
    @overload
    def task(self, handler: Callable[P, R], /) -> Action[P, R]: ...
    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        queue: str = DEFAULTS.queue,
        max_attempts: int = DEFAULTS.max_attempts,
        timeout: Duration | None = None,
        backoff: Backoff | None = None,
    ) -> Decorator: ...
    def task(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a handler as an action; bare, or with options.

        name: what rows call it (default: the function's name); keep it when the function moves or is renamed.
        queue: the line its tasks wait in. max_attempts: how often a task runs before it is dead.
        timeout: how long one attempt may run (seconds or a timedelta). backoff: attempt number (from 1) to the delay
        before the next, instead of 5 s doubling up to 5 min.

        ConfigError for what cannot work: a name that is taken, a signature that JSON cannot carry, a value out of
        range.
        """
        if handler is not None:
            return self._declare(handler, {})
        return lambda handler: self._declare(handler, options)

    def _declare(self, handler: Callable[..., Any], options: dict[str, Any]) -> Action[..., Any]:
        if isinstance(handler, Action):
            raise ConfigError(f"{handler.name!r} is an action already; decorate the function once", field="handler")
        name = options.pop("name", None) or getattr(handler, "__name__", "")
        declared = _Declared(
            handler=handler,
            name=_config(keys.check_name, name, field="name"),
            queue=_config(keys.check_name, options.pop("queue", DEFAULTS.queue), field="queue"),
            max_attempts=_config(
                keys.check_int,
                options.pop("max_attempts", DEFAULTS.max_attempts),
                field="max_attempts",
                low=Limits.MAX_ATTEMPTS[0],
                high=Limits.MAX_ATTEMPTS[1],
            ),
            timeout=_timeout(options.pop("timeout", None)),
            backoff=options.pop("backoff", None),
            arguments=Arguments.of(handler, context_type=Context, name=name),
            is_async=inspect.iscoroutinefunction(handler),
        )
        if options:
            raise ConfigError(f"@app.task has no option {min(options)!r}; see its docstring", field=min(options))
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise ConfigError(f"{name}: a handler cannot be a generator; return the values instead", field="handler")
        other = self._actions.get(declared.name)
        if other is not None and not _same_place(other.handler, handler):
            raise ConfigError(
                f"two handlers are called {declared.name!r}; give one of them a name: @app.task(name=…)", field="name"
            )
        action: Action[..., Any] = Action(self, declared, Options())
        self._actions[declared.name] = action
        return action

    async def aclose(self) -> None:
        """Close the asynchronous client of the running event loop, if there is one."""
        client = self._async_clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.close()

    def run_worker(self, **options: Any) -> int:
        """Run a worker here until it is told to stop; returns its exit status (0, or 70 for a stuck thread).

        options: the fields of `pgqueue.config.WorkerConfig`. In the main thread the first SIGTERM or SIGINT stops
        claiming and drains; the second releases what still runs.
        """
        from .worker import run

        return run(self, WorkerConfig.of(options))


def _config(check: Callable[..., Any], value: Any, **bounds: Any) -> Any:
    try:
        return check(value, **bounds)
    except InputError as error:
        raise ConfigError(str(error), field=error.field) from None


def _timeout(value: Duration | None) -> timedelta | None:
    return None if value is None else cast("timedelta", _config(keys.check_duration, value, field="timeout", low=0.001))


def _same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function seen twice: a module imported under two names (`__main__`), or reloaded."""
    codes = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if None in codes or getattr(one, "__qualname__", one) != getattr(other, "__qualname__", other):
        return False
    here, there = ((code.co_filename, code.co_firstlineno) for code in codes)  # type: ignore[union-attr]
    return bool(here == there)
