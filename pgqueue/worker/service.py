"""`Worker`: wires the parts, and is the loop itself: demand, claim, hand over, next delay."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from ..config import DEFAULTS, VERSION, WorkerConfig
from ..context import Context, Stop
from ..edges import Fate
from ..errors import ConfigError, LeaseNotHeld
from ..keys import format_duration
from ..lifecycle import Event, Status
from ..maintenance import Pruner, Reaper, Sweeper
from ..notify import Listener
from ..patience import Patience
from ..sanitize import one_line
from ..store import EDGES, Reaped, Settlement, Store
from ..task import Claimed, Lease
from .execute import Executor, Outcome, unknown_action
from .fetch import Fetcher, jittered
from .keep import Keeper
from .running import LOST, SHUTDOWN, Held, Running
from .settle import Settler

if TYPE_CHECKING:
    from ..app import App

__all__ = ["STUCK", "Worker", "run"]

log = logging.getLogger("pgqueue.worker")

STUCK = 70
"""Exit status when handlers in threads could not be stopped: the supervisor should start a new process."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_LOOK_AGAIN = (0.005, 0.025, 0.125)
"""Seconds between looks after a wake-up: a notification may have been muted because another was in flight."""
_UNWIND = 1.0
"""Seconds that handlers have to unwind where the worker is told twice to stop."""
_SETTLE_WITHIN = 5.0
"""Seconds in which the last outcomes must be written; what is not is reaped when its lease ends."""
_ANSWER_WITHIN = 3.0
"""Seconds that a call may still take, once the worker is to stop; but for outcomes, which get the above."""
_UNKNOWN_KEPT = 1000
"""Names of unknown actions to remember, so that each is in the log once a minute."""
_REASON = 300
"""Columns of a failure's reason in the log; the whole of it is in the task's row."""
_GATHER = 0.002
"""Seconds to wait for more free slots before claiming for a few."""


class Worker:
    """One worker of an app. `run` blocks until `stop` was called (from any thread, a signal handler too) and all is
    settled or released; a Worker runs once.
    """

    def __init__(self, app: App, config: WorkerConfig) -> None:
        self._app = app
        self._config = config
        self.name = config.name or f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:4]}"
        self.queues = config.queues or tuple(dict.fromkeys(action.queue for action in app.actions.values()))
        if not app.actions:
            raise ConfigError("this app has no actions: import the modules that declare them with @app.task")
        # The keeper and the listener must never wait for a pool; at the end claims are given up sooner than settles.
        self._database = app.database.sibling(pool_size=4, application_name="pgqueue worker")
        self._settling = app.database.sibling(pool_size=1, application_name="pgqueue worker")
        self._keeping = app.database.sibling(pool_size=1, application_name="pgqueue keeper")
        self._store = Store(app.database.schema)
        self._held = Held(config.concurrency)
        self._wake = threading.Event()
        self._woken = False
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._unknown_said: dict[str, float] = {}
        self._executor = Executor(
            threads=config.concurrency,
            done=self._done,
            lost=self._lost,
            make_context=self._context,
            close=self._app.aclose,
        )
        self._fetcher = Fetcher(
            self._database,
            self.queues,
            owner=self.name,
            lease=config.lease,
            batch=config.batch,
            offers=config.offers,
        )
        self._settler = Settler(
            self._settling,
            batch=2 * config.batch,
            settled=self._settled,
            refused=self._refused,
            others_running=self._held.__len__,
        )
        self._keeper = Keeper(
            self._keeping,
            self._held,
            lease=config.lease,
            grace=config.cancel_grace,
            interrupt=self._executor.interrupt,
            stuck=self._stuck,
        )
        self._reaper = Reaper(
            self._database, longest_sleep=config.maintenance, settle_in=config.lease / 3, reaped=self._reaped
        )
        self._sweeper = Sweeper(self._database, longest_sleep=config.maintenance)
        self._pruner = None if config.retention is None else Pruner(self._database, retention=config.retention)
        # Behind a pooler LISTEN is accepted and then hears nothing.
        listen = config.listen and not app.database.pooler
        self._listener = Listener(self._database, self._heard) if listen else None

    # -- life

    def stop(self) -> None:
        """Stop claiming, let running handlers finish for `drain`, release the rest. The second call: release now."""
        if self._stopping.is_set():
            self._hurry.set()
        # Nobody waits for what a frozen server may still answer to a claim.
        self._database.hurry(_ANSWER_WITHIN)
        self._stopping.set()
        self._wake.set()

    def run(self) -> int:
        """Work until stopped; returns the exit status: 0, or 70 when handlers in threads could not be stopped.

        Raises SchemaMismatch or DatabaseError when the first connection cannot be used; later outages are waited out.
        """
        try:
            with self._database.begin() as connection:
                self._store.handshake(connection)
        except BaseException:
            self._executor.stop()
            self._database.dispose()
            raise
        self._say_hello()
        for part in (self._executor, self._settler, self._keeper, self._reaper, self._sweeper, self._pruner):
            if part is not None:
                part.start()
        if self._listener is not None:
            self._listener.start()
        try:
            self._work()
        finally:
            status = self._shut_down()
        return status

    def _say_hello(self) -> None:
        log.info(
            "pgqueue %s worker %s: database %s, queues %s, actions %s, %sconcurrency %d",
            VERSION,
            self.name,
            self._app.database.masked,
            ", ".join(self.queues),
            ", ".join(sorted(self._app.actions)),
            f"offers {', '.join(self._config.offers)}, " if self._config.offers else "",
            self._config.concurrency,
        )

    # -- the loop

    def _work(self) -> None:
        patience = Patience(log, self._stopping)
        looks: Iterator[float] = iter(())
        idle = False
        while not self._stopping.is_set():
            room = self._room()
            if room == 0:
                continue
            self._wake.clear()
            woken, self._woken = self._woken, False
            # Asked before the look: what settles during it may free an agent that the look saw busy.
            last_look = self._config.burst and len(self._held) == 0 and idle
            try:
                claimed = self._fetcher.run_once(room, whole=last_look)
                patience.worked()
                idle = not claimed
                if claimed:
                    self._hand_over(claimed)
                    looks = iter(_LOOK_AGAIN)
                    continue
                if last_look:
                    if not any(edge.fate is not Fate.LATER for edge in self._sweeper.run_once()):
                        return
                    idle = False
                    continue
                if self._config.burst and len(self._held) == 0:
                    continue
                if woken:
                    looks = iter(_LOOK_AGAIN)
                self._pause(next(looks, None) or self._idle_wait())
            except Exception as error:  # noqa: BLE001 - whatever it is: handlers run here, and others' tasks wait
                patience.failed("cannot claim", error)

    def _pause(self, seconds: float) -> None:
        """Wait for a wake-up."""
        self._wake.wait(seconds)

    def _room(self) -> int:
        """How much to claim now; 0 after a wait in which no slot came free."""
        enough = max(1, min(self._config.batch, self._config.concurrency) // 2)
        room = self._held.room
        if room < enough:
            self._wake.clear()
            if self._held.room == room:
                self._pause(_GATHER if room > 0 else 0.1)
            room = max(self._held.room, 0)
        return room

    def _hand_over(self, claimed: Sequence[Claimed]) -> None:
        actions = self._app.actions
        runs = [Running(task, actions.get(task.action)) for task in claimed]
        for earlier in self._held.add(runs):
            log.warning("the lease on task %s was lost, and it is run here again", earlier.lease.task_id)
            self._executor.interrupt(earlier, LOST)
        known = [run for run in runs if run.action is not None]
        self._executor.submit(known)
        if len(known) < len(runs):
            for run in runs:
                if run.action is None:
                    self._say_unknown(run.claimed.action)
                    self._done(unknown_action(run))

    def _idle_wait(self) -> float:
        """Until the next poll, or until the next planned task is due, if that is sooner."""
        deaf = self._listener is None or not self._listener.listening.is_set()
        poll = jittered(
            min(self._config.poll, DEFAULTS.poll_deaf).total_seconds() if deaf else self._config.poll.total_seconds()
        )
        due = self._fetcher.next_due()
        return poll if due is None else min(poll, due + 0.001)

    # -- what the parts call

    def _done(self, settlement: Settlement) -> None:
        if settlement.event in (Event.FAIL, Event.BURY):
            self._say_failed(settlement)
        self._settler.put(settlement)

    def _say_failed(self, settlement: Settlement) -> None:
        run = self._held.get(settlement.lease)
        if run is None or run.completed_itself:
            # That one is refused where the handler's own completion was committed, and then nothing has failed.
            return
        log.warning(
            "task %s (%s) failed in attempt %d of %d: %s",
            run.lease.task_id,
            run.claimed.action,
            run.claimed.attempt,
            run.claimed.max_attempts,
            one_line((settlement.detail or "").partition("\n")[0], _REASON),
        )

    def _lost(self, run: Running) -> None:
        self._settled([run.lease])

    def _settled(self, leases: Iterable[Lease]) -> None:
        for run in self._held.remove(leases):
            if run.lease.agent is not None:
                self._fetcher.agent_free(run.lease.queue, run.lease.agent)
        self._wake.set()

    def _heard(self, queue: str | None) -> None:
        if queue is None or queue == EDGES:
            self._sweeper.wake()
        if queue is None or queue in self.queues:
            self._woken = True
            self._wake.set()

    def _reaped(self, reaped: Iterable[Reaped]) -> None:
        for one in reaped:
            if one.status is Status.PENDING and one.queue in self.queues:
                self._fetcher.came_back(one.queue)
                if one.agent is not None:
                    self._fetcher.agent_free(one.queue, one.agent)
        self._heard(None)

    def _context(self, run: Running, stop: Stop, deadline: datetime | None) -> Context:
        return Context(
            run.claimed,
            stop=stop,
            client=self._app.client,
            async_client=lambda: self._app.async_client,
            progress=lambda percent, message: self._keeper.report(run.lease, percent, message),
            deadline=deadline,
        )

    def _refused(self, settlement: Settlement, error: LeaseNotHeld) -> None:
        run = self._held.get(settlement.lease)
        if run is not None and run.completed_itself and error.status is Status.COMPLETED:
            # As it should be: `ctx.complete` was committed.
            return
        log.warning("%s refused: %s", settlement.event, error)

    def _stuck(self, run: Running) -> None:
        log.error(
            "the handler of task %s (%s) did not stop within %s of its timeout: this worker drains and ends, and its"
            " supervisor should start another; a hard limit needs a process",
            run.lease.task_id,
            run.claimed.action,
            format_duration(self._config.cancel_grace),
        )
        if not self._stopping.is_set():
            self.stop()
        self._wake.set()

    def _say_unknown(self, action: str) -> None:
        now = time.monotonic()
        if now - self._unknown_said.get(action, -60.0) >= 60.0:
            if len(self._unknown_said) >= _UNKNOWN_KEPT:
                self._unknown_said.clear()
            self._unknown_said[action] = now
            log.warning("no handler for action %r here; its tasks are given back and tried again later", action)

    # -- the end

    def _shut_down(self) -> int:
        """Stop in order: what has not started goes back, what runs may finish, leases are kept to the last."""
        for part in (self._reaper, self._sweeper, self._pruner, self._listener):
            if part is not None:
                part.stop()
        for run in self._executor.drop_waiting():
            run.ended = True
            self._done(Settlement(Event.RELEASE, run.lease))
        self._await(self._goes_on, self._config.drain.total_seconds(), unless=self._hurry)
        for run in self._held.all():
            self._executor.interrupt(run, SHUTDOWN)
        self._await(self._runs, self._config.cancel_grace.total_seconds(), unless=self._hurry)
        if self._hurry.is_set():
            self._await(self._runs, _UNWIND, unless=None)
        stuck = [run for run in self._held.all() if not run.ended]
        for run in stuck:
            # The handler goes on in its thread until the process ends, which is right after this.
            self._done(Outcome.of_stuck(run))
        stuck += [run for run in self._held.replaced() if not run.ended]
        if not self._settler.stop(_SETTLE_WITHIN):
            log.warning("could not settle everything before stopping; leases will run out and be reaped")
        self._keeping.hurry(_ANSWER_WITHIN)
        self._keeper.stop()
        self._executor.stop()
        for database in (self._database, self._settling, self._keeping):
            database.dispose()
        if stuck:
            log.warning("%d handler(s) did not stop in time; their tasks were released", len(stuck))
            return STUCK
        log.info("worker %s stopped", self.name)
        return 0

    def _await(self, what: Callable[[], bool], seconds: float, *, unless: threading.Event | None) -> None:
        ends = time.monotonic() + seconds
        while what() and (left := ends - time.monotonic()) > 0:
            if unless is not None and unless.is_set():
                return
            self._wake.clear()
            self._wake.wait(min(left, 0.1))

    def _goes_on(self) -> bool:
        """Whether anything is held that was not settled, but for handlers that are known to be stuck."""
        return any(not run.stuck for run in (*self._held.all(), *self._held.replaced()))

    def _runs(self) -> bool:
        """Whether any handler runs, but for those; what has ended waits for the settler, which gets time of its own."""
        return any(not run.stuck and not run.ended for run in (*self._held.all(), *self._held.replaced()))


def run(app: App, config: WorkerConfig) -> int:
    """Run a worker here, with SIGTERM and SIGINT stopping it where this is the main thread."""
    worker = Worker(app, config)
    with _signals(worker.stop):
        return worker.run()


@contextmanager
def _signals(stop: Callable[[], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    # A signal handler runs between two bytecodes of the main thread, which may hold the very lock that an Event's set()
    # takes. So it only hands the number over (SimpleQueue.put is reentrant), and a thread of its own stops the worker.
    numbers: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def obey() -> None:
        while (number := numbers.get()) is not None:
            log.info("%s: stopping", signal.Signals(number).name)
            stop()

    thread = threading.Thread(target=obey, name="pgqueue-signals", daemon=True)
    thread.start()
    before = {number: signal.signal(number, lambda number, _: numbers.put(number)) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        numbers.put(None)
        thread.join()
