"""Tasks that depend on others: how a parent may end, and what must hold of the edges whatever happened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from pgqueue.client import Client
from pgqueue.edges import Fate
from pgqueue.ids import new_id
from pgqueue.lifecycle import Status
from pgqueue.task import Claimed

from .databases import Sql

MISCOUNTED = """
    select t.id, t.status, t.waiting_on from pgqueue.tasks t
    where waiting_on <> (select count(*) from pgqueue.task_dependencies d where d.child_id = t.id and lifted_at is null)
"""
"""Tasks whose counter is not the number of their edges."""

STRANDED = """
    select t.id from pgqueue.tasks t where t.status = 'pending' and t.waiting_on > 0 and not exists (
      select from pgqueue.task_dependencies d left join pgqueue.tasks p on p.id = d.parent_id
      where d.child_id = t.id and d.lifted_at is null
        and (p.active or p.id is null and d.look_at > clock_timestamp()))
"""
"""Tasks that wait, and nobody will ever come to let them go."""


def parent(client: Client, **options: Any) -> UUID:
    """A task that `take` finds."""
    return client.enqueue("parent", None, **{"agent": f"agent-{new_id()}", "queue": "parents", **options}).id


def take(client: Client, task_id: UUID, *, lease: float = 60) -> Claimed:
    """Claim this very task."""
    task = client.get(task_id)
    assert task.agent is not None
    claimed = client.claim(task.agent, queue=task.queue, owner="holder", lease=lease)
    assert claimed is not None
    assert claimed.id == task_id
    return claimed


def completed(client: Client, sql: Sql, task_id: UUID) -> None:
    client.complete(take(client, task_id), {"n": 1})


def buried(client: Client, sql: Sql, task_id: UUID) -> None:
    client.bury(take(client, task_id), "no use")


def exhausted(client: Client, sql: Sql, task_id: UUID) -> None:
    sql("update pgqueue.tasks set max_attempts = 1 where id = %s", task_id)
    client.fail(take(client, task_id), "out of paper")


def cancelled(client: Client, sql: Sql, task_id: UUID) -> None:
    client.cancel(task_id)


def acknowledged(client: Client, sql: Sql, task_id: UUID) -> None:
    held = take(client, task_id)
    client.cancel(task_id)
    client.acknowledge_cancel(held)


def snoozed_away(client: Client, sql: Sql, task_id: UUID) -> None:
    held = take(client, task_id)
    client.cancel(task_id)
    client.snooze(held, 1)


def evicted(client: Client, sql: Sql, task_id: UUID) -> None:
    take(client, task_id)
    client.cancel(task_id)
    client.evict(task_id)


def expired(client: Client, sql: Sql, task_id: UUID) -> None:
    take(client, task_id)
    sql(
        "update pgqueue.tasks set max_attempts = 1, lease_expires_at = now() - interval '1 s' where id = %s",
        task_id,
    )
    assert [one.id for one in client.reap()] == [task_id]


ENDS: Mapping[str, Callable[[Client, Sql, UUID], None]] = {
    end.__name__: end for end in (completed, buried, exhausted, cancelled, acknowledged, snoozed_away, evicted, expired)
}
"""Every way in which a task can end for the first time."""
BADLY = tuple(name for name in ENDS if name != "completed")


def sweep(client: Client) -> int:
    """Sweep until nothing is left that can be done now; how many edges that were."""
    count = 0
    while done := [edge for edge in client.sweep(limit=1000) if edge.fate is not Fate.LATER]:
        count += len(done)
    return count


def is_free(client: Client, task_id: UUID) -> bool:
    """Pending, and nothing holds it back but time."""
    task = client.get(task_id)
    return task.status is Status.PENDING and task.waiting_on == 0


def waits(client: Client, task_id: UUID) -> bool:
    task = client.get(task_id)
    return task.status is Status.PENDING and task.waiting_on > 0
