"""SIGSTOP past the lease, SIGCONT, 50 times: the late holder is refused whatever it tries, by name, and writes nothing.

First as a program with the client, every verb that a holder has; then as workers, whose handlers end in every way.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import pytest

from pgqueue import App, Client, Context, LeaseNotHeld, Snooze, Task
from pgqueue.database import Database

from ..support import Sql, eventually
from ..support.figures import percentile

pytestmark = [pytest.mark.stress, pytest.mark.timeout(180)]

ROOT = Path(__file__).resolve().parents[2]
ROUNDS, AT_ONCE, LEASE = 10, 5, 0.5
VERBS = ("complete", "fail", "renew", "report_progress", "release", "snooze", "bury", "acknowledge_cancel")
WORKERS, WORKER_LEASE = 5, 1.0
ENDINGS = ("returns", "raises", "snoozes", "reports", "waits")

WRITTEN = "select t::text, t.xmin::text, t.ctid::text from pgqueue.tasks t order by id"
RUNNING = "select count(*) from pgqueue.tasks where status = 'running' and not starts_with(lease_owner, 'heir-')"
REFUSED = "not yours any more"
TOLD = "select e::text, e.xmin::text from pgqueue.task_events e order by id"


def hold(url: str) -> None:
    """On a line: claim an agent's tasks and name them. On the next: try everything, and say what the answers were."""
    client = Client(Database(url))
    for agent in sys.stdin:
        claimed = [client.claim(f"{agent.strip()}-{verb}", owner=f"late-{os.getpid()}", lease=LEASE) for verb in VERBS]
        print(json.dumps([str(one.id) for one in claimed if one is not None]), flush=True)
        sys.stdin.readline()
        answers: dict[str, tuple[str, str | None, str]] = {}
        for held in claimed:
            assert held is not None
            for verb in VERBS:
                more: dict[str, tuple[Any, ...]] = {
                    "fail": ("x",),
                    "report_progress": (7,),
                    "snooze": (1,),
                    "bury": ("x",),
                }
                try:
                    getattr(client, verb)(held, *more.get(verb, ()))
                except LeaseNotHeld as error:
                    answers[f"{held.id} {verb}"] = ("refused", error.owner, str(error))
                else:
                    answers[f"{held.id} {verb}"] = ("accepted", None, "")
        print(json.dumps(answers), flush=True)


def declare(url: str, go: Path) -> App:
    app = App(url)

    def wait() -> None:
        while not go.exists():
            time.sleep(0.01)

    @app.task
    def returns() -> str:
        wait()
        return "late"

    @app.task
    def raises() -> None:
        wait()
        raise ValueError("late")

    @app.task
    def snoozes() -> Snooze:
        wait()
        return Snooze(1)

    @app.task
    def reports(ctx: Context) -> None:
        wait()
        ctx.progress(50, "late")
        ctx.sleep(5)

    @app.task
    def waits(ctx: Context) -> None:
        # It is still there when the worker stops, and would be released.
        ctx.sleep(60)
        ctx.check()

    return app


def serve(url: str, go: str) -> None:
    import logging

    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(message)s")
    sys.exit(declare(url, Path(go)).run_worker(concurrency=10, lease=WORKER_LEASE, drain=1, cancel_grace=2))


class Program:
    """Another process that runs a function of this module, with lines in and lines out."""

    def __init__(self, function: str, *args: str, stderr: IO[str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; from {__name__} import {function}; {function}(*sys.argv[1:])", *args],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the program ended"
        return json.loads(line)

    def stop(self) -> None:
        """Returns when it stands still."""
        self.process.send_signal(signal.SIGSTOP)
        eventually(lambda: _state(self.process.pid) == "T")

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture
def holders(database_url: str) -> Iterator[list[Program]]:
    made = [Program("hold", database_url) for _ in range(AT_ONCE)]
    yield made
    for one in made:
        one.end()


def taken_over(client: Client, agents: list[str], owner: str) -> dict[UUID, Task | None]:
    """Wait until those leases have run out, give the tasks to `owner` instead."""
    taken: dict[UUID, Task | None] = {}

    def all_taken() -> bool:
        client.reap()
        for agent in agents:
            claimed = client.claim(agent, owner=owner, lease=600)
            if claimed is not None:
                taken[claimed.id] = client.get(claimed.id)
        return len(taken) == len(agents)

    eventually(all_taken)
    return taken


def test_fifty_stopped_holders_are_refused_everything_and_told_who_holds_it(
    holders: list[Program], client: Client, sql: Sql
) -> None:
    refused = 0
    waits = []
    for number in range(ROUNDS):
        agents = [[f"round-{number}-{h}-{verb}" for verb in VERBS] for h in range(AT_ONCE)]
        names = list(itertools.chain(*agents))
        for name in names:
            client.enqueue("work", None, agent=name)
        ids = []
        for h, holder in enumerate(holders):
            holder.say(f"round-{number}-{h}")
            ids.append(holder.hear())
            holder.stop()
        began = time.monotonic()
        taken = taken_over(client, names, f"heir-{number}")
        waits.append(time.monotonic() - began)
        before = sql(WRITTEN), sql(TOLD)
        for holder in holders:
            holder.say("try")
            holder.go_on()
        for holder, mine in zip(holders, ids, strict=True):
            answers = holder.hear()
            assert len(answers) == len(VERBS) ** 2
            assert {key.split()[0] for key in answers} == set(mine)
            for what, (answer, owner, text) in answers.items():
                assert answer == "refused", what
                assert owner == f"heir-{number}", what
                assert f"heir-{number} holds it since" in text, what
            refused += len(answers)
        assert (sql(WRITTEN), sql(TOLD)) == before, "a holder that had lost its lease wrote something"
        assert {UUID(one) for one in itertools.chain(*ids)} == set(taken)
    print(
        f"\n{ROUNDS * AT_ONCE} holders stopped past a lease of {LEASE:g} s: {refused} writes refused, each naming the"
        f" new holder; all taken over {percentile(waits, 50):.2f} s (p50), {max(waits):.2f} s (most) after the stop"
    )


def test_stopped_workers_settle_nothing_and_log_who_holds_it(
    database_url: str, client: Client, sql: Sql, tmp_path: Path
) -> None:
    lines = 0
    for number in range(WORKERS):
        go, log = tmp_path / f"go-{number}", tmp_path / f"log-{number}"
        app = declare(database_url, go)
        mine = {app.action(end).using(agent=f"{end}-{number}").enqueue().id: end for end in ENDINGS}
        app.client.close()
        with log.open("w") as stderr:
            worker = Program("serve", database_url, str(go), stderr=stderr)
        try:
            eventually(lambda: sql(RUNNING) == [(len(ENDINGS),)])
            worker.stop()
            taken = taken_over(client, [f"{end}-{number}" for end in ENDINGS], f"heir-{number}")
            assert set(taken) == set(mine)
            before = sql(WRITTEN), sql(TOLD)
            go.touch()
            worker.go_on()
            eventually(lambda log=log: log.read_text().count(REFUSED) >= len(ENDINGS))  # type: ignore[misc]
            worker.process.terminate()
            assert worker.process.wait(30) == 0
        finally:
            worker.end()
        assert (sql(WRITTEN), sql(TOLD)) == before, "a worker that had lost its leases wrote something"
        said = log.read_text()
        for task_id, end in mine.items():
            about = [line for line in said.splitlines() if str(task_id)[-6:] in line and REFUSED in line]
            assert about, f"nothing was said about {end}: {said}"
            assert all(f"heir-{number} holds it since" in line for line in about)
        lines += said.count(REFUSED)
    print(f"\n{WORKERS} workers stopped past a lease of {WORKER_LEASE:g} s: {lines} refusals logged, nothing written")
