"""One process of the contention test: does whatever clients do, at random, and prints its own record of it.

python -m tests.heavy.contender URL sync|async SEED SECONDS
"""

from __future__ import annotations

import asyncio
import collections
import inspect
import json
import sys
import time
import traceback
from random import Random
from typing import Any
from uuid import UUID

from pgqueue.client import AsyncClient, Client
from pgqueue.database import Database
from pgqueue.errors import KeyHeld, LeaseNotHeld, RetryTransaction, TransitionRefused
from pgqueue.lifecycle import Status
from pgqueue.options import NewTask
from pgqueue.task import Claimed

AGENTS = [f"agent-{n}" for n in range(8)]
KEYS = [f"key-{n}" for n in range(8)]


class Contender:
    """`made`: ids of tasks that it made. `held`: (agent, id, fence, from, to, what the task became), on one clock.

    `refused`: lawful refusals by kind. `failures`: everything else.
    """

    def __init__(self, client: Client | AsyncClient, random: Random) -> None:
        self._client = client
        self._random = random
        self._known: collections.deque[UUID] = collections.deque(maxlen=200)
        self.made: list[str] = []
        self.held: list[tuple[str | None, str, int, float, float, str]] = []
        self.refused: collections.Counter[str] = collections.Counter()
        self.failures: list[str] = []

    async def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            act = self._random.choice([self.enqueue, self.claim, self.claim, self.claim_batch, self.cancel, self.retry])
            try:
                await act()
            except (TransitionRefused, KeyHeld, RetryTransaction) as refusal:
                self.refused[type(refusal).__name__] += 1
            except Exception:  # noqa: BLE001 - all of them are what the test looks for
                self.failures.append(traceback.format_exc())

    async def _do(self, verb: str, *arguments: Any, **options: Any) -> Any:
        answer = getattr(self._client, verb)(*arguments, **options)
        return await answer if inspect.isawaitable(answer) else answer

    def _options(self) -> dict[str, Any]:
        agent = self._random.choice([*AGENTS, None])
        key = self._random.choice([*KEYS, None])
        return {"agent": agent, "dedupe_key": key, "priority": self._random.randint(-1, 1), "max_attempts": 2}

    async def enqueue(self) -> None:
        tasks = [NewTask("noop", None, self._options()) for _ in range(self._random.choice([1, 1, 4]))]  # type: ignore[arg-type]
        if len(tasks) == 1:
            answers = [await self._do("enqueue_new", tasks[0])]
        else:
            answers = await self._do("enqueue_many", tasks)
        self.made += [str(answer.id) for answer in answers if answer.created]
        self._known.extend(answer.id for answer in answers)

    async def claim(self) -> None:
        held = await self._do("claim", self._random.choice(AGENTS))
        if held is not None:
            await self._settle(held, time.monotonic())

    async def claim_batch(self) -> None:
        claims = await self._do("claim_batch", limit=self._random.choice([1, 5, 10]))
        since = time.monotonic()
        for held in claims:
            await self._settle(held, since)

    async def _settle(self, held: Claimed, since: float) -> None:
        self._known.append(held.id)
        cancelled = False
        if self._random.random() < 0.3:
            cancelled = (await self._do("renew", held)).cancel_requested
            await self._do("report_progress", held, 50)
        until = time.monotonic()
        ending = (
            "acknowledge_cancel"
            if cancelled
            else self._random.choice(["complete", "complete", "fail", "bury", "release", "snooze"])
        )
        arguments: dict[str, tuple[Any, ...]] = {"fail": ("boom",), "bury": ("no",), "snooze": (0,)}
        options = {"delay": 0} if ending == "fail" else {}
        try:
            settled = await self._do(ending, held, *arguments.get(ending, ()), **options)
        except LeaseNotHeld:
            self.failures.append(f"nobody takes leases away here, and yet: {traceback.format_exc()}")
            return
        self.held.append((held.agent, str(held.id), held.fence, since, until, str(settled.status)))

    async def cancel(self) -> None:
        if self._known:
            await self._do("cancel", self._random.choice(self._known))

    async def retry(self) -> None:
        for task in await self._do("list_tasks", status=Status.DEAD, limit=5):
            await self._do("retry", task.id)


async def main(url: str, face: str, seed: int, seconds: float) -> list[Contender]:
    database = Database(url, schema="pgqueue", pool_size=4)
    random = Random(seed)
    if face == "sync":
        contenders = [Contender(Client(database), random)]
    else:
        client = AsyncClient(database)
        contenders = [Contender(client, Random(random.random())) for _ in range(3)]
    await asyncio.gather(*(contender.run(seconds) for contender in contenders))
    await database.adispose()
    return contenders


if __name__ == "__main__":
    url, face, seed, seconds = sys.argv[1:]
    done = asyncio.run(main(url, face, int(seed), float(seconds)))
    print(
        json.dumps(
            {
                "made": [one for c in done for one in c.made],
                "held": [one for c in done for one in c.held],
                "refused": sum((c.refused for c in done), collections.Counter()),
                "failures": [one for c in done for one in c.failures],
            }
        )
    )
