"""What users import: an `App` holds actions; an `Action` is a handler under its name.

Declaring actions does no I/O: the database is looked for when something is enqueued or a worker starts.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import threading
import traceback
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from . import keys
from .arguments import Arguments
from .backoff import Backoff
from .client import AsyncClient, Client
from .config import DEFAULTS, Limits, WorkerConfig
from .context import Context
from .database import Database
from .errors import ConfigError, InputError, PgqueueError, UnknownAction
from .options import Duration, Enqueued, NewTask, Options, checked
from .sanitize import clean, one_line

if TYPE_CHECKING:
    from datetime import timedelta

    from .guest import AnyAsyncConnection, AnyConnection
    from .worker import Worker

__all__ = ["Action", "App", "Lifespan", "Middleware"]

P = ParamSpec("P")
R = TypeVar("R")

Lifespan: TypeAlias = Callable[["App"], AbstractAsyncContextManager[Any] | AbstractContextManager[Any]]
"""What `App(lifespan=…)` takes: called with the App, it gives a context manager; what that yields is `ctx.state`."""
Middleware: TypeAlias = Callable[[Context, Callable[[], Any]], Any]
"""One of `App(middleware=[…])`: gets the context and the rest of the call, which it makes, and returns its value.

`async def` goes around `async def` handlers and awaits the call; `def` around `def` handlers.
"""


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
    isolation: str
    memory: int | None
    aliases: tuple[str, ...]


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
    def isolation(self) -> str:
        """Where the handler runs: "loop" (the event loop of its worker), "thread" or "process"."""
        return self._declared.isolation

    @property
    def memory(self) -> int | None:
        """Bytes of data that the process of its handler may have, or None."""
        return self._declared.memory

    @property
    def handler(self) -> Callable[..., Any]:
        return self._declared.handler

    @property
    def arguments(self) -> Arguments:
        return self._declared.arguments

    @property
    def aliases(self) -> tuple[str, ...]:
        """Names that it had before: rows that carry one of them run it too."""
        return self._declared.aliases

    @property
    def options(self) -> Options:
        """What `using` has set, and only that."""
        return cast("Options", dict(self._options))

    @property
    def app(self) -> App:
        return self._app

    @property
    def needs_context(self) -> bool:
        """Whether a call is made with a Context: the handler takes one, or middleware stands around it."""
        return self._declared.arguments.injected is not None or bool(self._app.around(self._declared.is_async))

    def bound(
        self, context: Context | None, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> Callable[[], Any]:
        """The one call of the handler with its middleware around it: for `async def`, what it returns is awaited.

        context: None only where `needs_context` is false.
        """
        # Partials leave no frame of ours in the traceback of a handler's error.
        call: Callable[[], Any] = functools.partial(self._declared.handler, *args, **kwargs)
        for around in reversed(self._app.around(self._declared.is_async)):
            call = functools.partial(around, cast("Context", context), call)
        return call

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the handler here, in this process, now: no task is made. A Context is made up where it asks for one.

        The bare handler: no middleware, and nothing that a lifespan opened.
        """
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
        return self._app._waitable(self._app.client.enqueue_new(self._new(args, kwargs)))

    def enqueue_on(self, connection: AnyConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """Make a task in the caller's transaction: it exists when, and only when, the caller commits."""
        return self._app._waitable(self._app.client.on(connection).enqueue_new(self._new(args, kwargs)))

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue` for asyncio."""
        return self._app._waitable(await self._app.async_client.enqueue_new(self._new(args, kwargs)))

    async def aenqueue_on(self, connection: AnyAsyncConnection, /, *args: P.args, **kwargs: P.kwargs) -> Enqueued:
        """`enqueue_on` for an asynchronous connection."""
        made = await self._app.async_client.on(connection).enqueue_new(self._new(args, kwargs))
        return self._app._waitable(made)

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
    lifespan: opens what handlers share: a function that takes the App and gives a context manager, asynchronous or not.
        Entered on the event loop of each worker, and in each child process, before its first handler; left after its
        last. What it yields is `ctx.state`.
    middleware: functions `(ctx, call)` around every handler, the first of them outermost; see `Middleware`.
    imports: modules that declare actions with `@app.task`, imported when somebody first needs the actions.
    """

    def __init__(
        self,
        database: str | None = None,
        *,
        schema: str | None = None,
        lifespan: Lifespan | None = None,
        middleware: Iterable[Middleware] = (),
        imports: Iterable[str] = (),
    ) -> None:
        self.database = Database(database, schema=schema)
        self.lifespan = _checked_lifespan(lifespan)
        around = _checked_middleware(middleware)
        self._around = (
            tuple(one for one in around if not _is_async(one)),
            tuple(one for one in around if _is_async(one)),
        )
        self._imports = _checked_imports(imports)
        self._importing: set[int] = set()
        self._actions: dict[str, Action[..., Any]] = {}
        self._names: dict[str, Action[..., Any]] = {}
        self._client: Client | None = None
        self._lent: tuple[Client, AsyncClient] | None = None
        self._here = weakref.ref(self)
        # An engine's connections belong to the event loop that opened them.
        self._async_clients: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncClient] = (
            weakref.WeakKeyDictionary()
        )

    @property
    def client(self) -> Client:
        """The synchronous client over this app's database; one per app."""
        if self._lent is not None:
            return self._lent[0]
        if self._client is None:
            self._client = Client(self.database)
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """The asynchronous client of the running event loop. RuntimeError outside of one."""
        loop = asyncio.get_running_loop()
        if self._lent is not None:
            return self._lent[1]
        if loop not in self._async_clients:
            self._async_clients[loop] = AsyncClient(self.database.sibling())
        return self._async_clients[loop]

    @property
    def actions(self) -> Mapping[str, Action[..., Any]]:
        """The actions by name, in the order in which they were declared. First imports the modules of `imports`."""
        self._import()
        return self._actions

    @property
    def names(self) -> Mapping[str, Action[..., Any]]:
        """The actions by every name that a row may carry: their own, and their aliases."""
        self._import()
        return self._names

    def around(self, is_async: bool) -> tuple[Middleware, ...]:
        """What stands around `async def` handlers, or around `def` handlers; the first is outermost."""
        return self._around[is_async]

    def _waitable(self, made: Enqueued) -> Enqueued:
        """The same value, which now knows whom to ask in `Enqueued.wait`."""
        return made._of(self._here)

    @contextmanager
    def lending(self, client: Client, async_client: AsyncClient) -> Iterator[None]:
        """Within the block, these are `client` and `async_client`, in every thread: for tests in a transaction."""
        before, self._lent = self._lent, (client, async_client)
        try:
            yield
        finally:
            self._lent = before

    def _import(self) -> None:
        me = threading.get_ident()
        if not self._imports or me in self._importing:
            # A module that asks for the actions while it is imported sees those that are declared by then.
            return
        self._importing.add(me)
        try:
            for name in self._imports:
                try:
                    import_module(name)
                except PgqueueError:
                    raise
                except (Exception, SystemExit) as error:
                    raise ConfigError(_unimported(name, error), field="imports") from error
            self._imports = ()
        finally:
            self._importing.discard(me)

    def action(self, name: str) -> Action[..., Any]:
        """The action of that name, or that had it (its aliases). UnknownAction names the ones there are."""
        try:
            return self.names[name]
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
        isolation: Literal["thread", "process"] | None = None,
        memory: int | None = None,
        aliases: Iterable[str] = (),
    ) -> Decorator: ...
    def task(self, handler: Callable[..., Any] | None = None, /, **options: Any) -> Any:
        """Declare a handler as an action; bare, or with options.

        name: what rows call it (default: the function's name); keep it when the function moves or is renamed.
        queue: the line its tasks wait in. max_attempts: how often a task runs before it is dead.
        timeout: how long one attempt may run (seconds or a timedelta). backoff: attempt number (from 1) to the delay
        before the next, instead of 5 s doubling up to 5 min. aliases: names that it had before; rows under them run it
        too.
        isolation: "process" runs it in a process that can be killed: a timeout is a hard limit, and a crash is a failed
        attempt. Default: `def` in a thread, `async def` on the event loop. memory: how many bytes that process may
        have, the interpreter's and the app's own with them; with "process" only.

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
        is_async = inspect.iscoroutinefunction(handler)
        isolation = _isolation(options.pop("isolation", None), is_async=is_async)
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
            is_async=is_async,
            isolation=isolation,
            memory=_memory(options.pop("memory", None), isolation),
            aliases=_names(options.pop("aliases", ()), field="aliases"),
        )
        if options:
            raise ConfigError(f"@app.task has no option {min(options)!r}; see its docstring", field=min(options))
        if inspect.isasyncgenfunction(handler) or inspect.isgeneratorfunction(handler):
            raise ConfigError(f"{name}: a handler cannot be a generator; return the values instead", field="handler")
        earlier = self._actions.get(declared.name)
        if earlier is not None and not _same_place(earlier.handler, handler):
            earlier = None
        for one in (declared.name, *declared.aliases):
            other = self._names.get(one)
            if other is not None and other is not earlier:
                raise _taken(declared, one, other)
        action: Action[..., Any] = Action(self, declared, Options())
        for one in earlier.aliases if earlier is not None else ():
            del self._names[one]
        self._actions[declared.name] = action
        self._names |= dict.fromkeys((declared.name, *declared.aliases), action)
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

    def worker(self, **options: Any) -> AbstractContextManager[Worker]:
        """`with app.worker(…) as worker:` runs a worker in threads of this process: for tests and small programs.

        options: the fields of `pgqueue.config.WorkerConfig`. Inside the block it claims; what kept it from starting is
        raised there. At the end it stops claiming, drains like after a signal, and what ended it before its time is
        raised. It takes no signals: those are the program's. `worker.status` is what `run_worker` would have returned.
        """
        from .worker import background

        return background(self, WorkerConfig.of(options))


def _config(check: Callable[..., Any], value: Any, **bounds: Any) -> Any:
    try:
        return check(value, **bounds)
    except InputError as error:
        raise ConfigError(str(error), field=error.field) from None


def _isolation(value: object, *, is_async: bool) -> str:
    if value is None:
        return "loop" if is_async else "thread"
    if value == "process" or (value == "thread" and not is_async):
        return str(value)
    ways = '"process"; an async def runs on the event loop otherwise' if is_async else '"thread" or "process"'
    raise ConfigError(f"isolation cannot be {keys.shown(value)}; give {ways}, or leave it out", field="isolation")


def _memory(value: object, isolation: str) -> int | None:
    if value is None:
        return None
    if isolation != "process":
        raise ConfigError('memory limits a process; add isolation="process", or leave it out', field="memory")
    low, high = Limits.MEMORY
    return cast("int", _config(keys.check_int, value, field="memory", low=low, high=high))


def _names(names: object, *, field: str) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ConfigError(f"{field} must be a sequence of names, not {keys.shown(names)}; write [name]", field=field)
    return tuple(dict.fromkeys(_config(keys.check_name, name, field=field) for name in names))


def _taken(declared: _Declared, name: str, other: Action[..., Any]) -> ConfigError:
    if name == declared.name == other.name:
        return ConfigError(
            f"two handlers are called {name!r}; give one of them a name: @app.task(name=…)", field="name"
        )
    what = "an alias" if name in other.aliases else "the name"
    return ConfigError(
        f"{declared.name}: {name!r} is {what} of the action {other.name!r} already; take it away from one of them",
        field="aliases" if name in declared.aliases else "name",
    )


def _checked_lifespan(lifespan: Lifespan | None) -> Lifespan | None:
    if inspect.isasyncgenfunction(lifespan) or inspect.isgeneratorfunction(lifespan):
        decorator = "asynccontextmanager" if inspect.isasyncgenfunction(lifespan) else "contextmanager"
        raise ConfigError(
            f"lifespan must give a context manager, and {lifespan.__name__} is a generator; decorate it with"
            f" @contextlib.{decorator}",
            field="lifespan",
        )
    if lifespan is not None and not callable(lifespan):
        raise ConfigError(
            f"lifespan must be a function that takes the App, not {keys.shown(lifespan)}; pass the function itself",
            field="lifespan",
        )
    return lifespan


def _checked_middleware(middleware: Iterable[Middleware]) -> tuple[Middleware, ...]:
    found = tuple(middleware) if isinstance(middleware, Iterable) else (middleware,)
    for one in found:
        if not callable(one) or inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise ConfigError(
                f"middleware must be functions (ctx, call), not {keys.shown(one)}; give a list of def or async def",
                field="middleware",
            )
    return found


def _checked_imports(imports: Iterable[str]) -> tuple[str, ...]:
    found = _names(imports, field="imports")
    for name in found:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"imports: {name!r} is no module's name; write it like shop.tasks", field="imports")
    return found


def _is_async(function: object) -> bool:
    return any(inspect.iscoroutinefunction(one) for one in (function, getattr(type(function), "__call__", None)))  # noqa: B004 - an object's


def _unimported(name: str, error: BaseException) -> str:
    missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    if missing and (name == error.name or name.startswith(f"{error.name}.")):  # type: ignore[attr-defined]
        return f"App(imports=…): no module {name!r} on Python's path; name it as an import would, or mend the path"
    what = one_line(clean(f"{type(error).__name__}: {error}", limit=1000), 500)
    return f"App(imports=…): {name} could not be imported: {what}{_place(error)}; mend it, then try again"


def _place(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "importlib" not in frame.filename]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if len(frames) > 1 else ""


def _timeout(value: Duration | None) -> timedelta | None:
    return None if value is None else cast("timedelta", _config(keys.check_duration, value, field="timeout", low=0.001))


def _same_place(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """The same function seen twice: a module imported under two names (`__main__`), or reloaded."""
    codes = getattr(one, "__code__", None), getattr(other, "__code__", None)
    if None in codes or getattr(one, "__qualname__", one) != getattr(other, "__qualname__", other):
        return False
    here, there = ((code.co_filename, code.co_firstlineno) for code in codes)  # type: ignore[union-attr]
    return bool(here == there)
