"""Who works, and what is paused: `workers`, `agents`, `pause`, `resume`."""

from __future__ import annotations

import dataclasses
import shlex
from typing import TYPE_CHECKING, Any, Final

import click

from pgqueue.ids import tail

from .common import json_option, operator, program, same_place, server_now, wants_json, with_client
from .errors import tell
from .words import clock, span

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from pgqueue.client import Client
    from pgqueue.fleet import AgentInfo, Pause, PauseKind, WorkerInfo

    from .output import Column

_KINDS: Final = ("queue", "agent")


@click.command(
    epilog="\b\nExample:\n  pgqueue workers\n\n"
    "Columns when piped: name, host, pid, version, queues, actions, offers, concurrency, started_at, seen_at, state."
)
@json_option
@with_client
def workers(client: Client) -> None:
    """List the workers.

    Each says every 15 s that it is there. One that was not seen for 45 s is stale: it was killed, or cannot reach the
    database. After an hour it leaves the list; one that is stopped leaves at once.
    """
    from .output import Column, listing

    found, now = client.workers(), server_now(client.database)
    columns: list[Column[WorkerInfo]] = [
        Column("name", lambda one: one.name, 10),
        Column("host", lambda one: one.host, 8, leave=6),
        Column("pid", lambda one: one.pid, 5, leave=7),
        Column("version", lambda one: one.version, 7, leave=5),
        Column("queues", lambda one: ",".join(one.queues), 8),
        Column("actions", lambda one: ",".join(one.actions), 8, leave=8),
        Column("offers", lambda one: ",".join(one.offers), 6, leave=4),
        Column("slots", lambda one: one.concurrency, 5, leave=3),
        Column("since", lambda one: one.started_at, 6, leave=2, short=lambda one: span(now - one.started_at)),
        Column("seen", lambda one: one.seen_at, 6, leave=1, short=lambda one: span(now - one.seen_at)),
        Column("state", lambda one: "stale" if one.stale else "alive", 5),
    ]
    listing(found, columns, dataclasses.asdict)
    if not found:
        tell("no worker is registered: pgqueue worker --app MODULE:APP starts one")


@click.command(
    epilog="\b\nExamples:\n  pgqueue agents\n  pgqueue agents --after host-7 --limit 20\n\n"
    "Columns when piped: agent, pending, running, action, owner, started_at, paused_at."
)
@click.option("--after", metavar="AGENT", help="Go on after this agent.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@json_option
@with_client
def agents(client: Client, after: str | None, limit: int) -> None:
    """List the agents that have anything pending or running, by name.

    Pending tasks are counted up to 1,000 a queue.
    """
    from .output import listing

    found = client.agents(after=after, limit=limit)
    listing(found, _agent_columns(server_now(client.database)), _agent_record)
    if len(found) == limit:
        tell(f"there may be more: --after {shlex.quote(found[-1].agent)}")


def _agent_columns(now: datetime) -> list[Column[AgentInfo]]:
    from .output import Column

    def ago(instant: datetime | None) -> str | None:
        return None if instant is None else span(now - instant)

    return [
        Column("agent", lambda one: one.agent, 8),
        Column("pending", lambda one: one.pending, 7),
        Column("running", lambda one: one.running, 7, short=lambda one: one.running and tail(one.running)),
        Column("action", lambda one: one.action, 8, leave=2),
        Column("owner", lambda one: one.owner, 8, leave=3),
        Column("since", lambda one: one.started_at, 5, leave=1, short=lambda one: ago(one.started_at)),
        Column("paused", lambda one: one.paused_at, 6, leave=4, short=lambda one: ago(one.paused_at)),
    ]


def _agent_record(one: AgentInfo) -> Mapping[str, Any]:
    return dataclasses.asdict(one)


@click.command(epilog="\b\nExamples:\n  pgqueue pause queue mail\n  pgqueue pause agent host-7\n  pgqueue pause")
@click.argument("kind", type=click.Choice(_KINDS), required=False)
@click.argument("name", required=False)
@json_option
@with_client
def pause(client: Client, kind: PauseKind | None, name: str | None) -> None:
    """Have nobody claim tasks of a queue or an agent.

    What runs goes on, and what is enqueued waits. Without a name, lists what is paused.
    """
    if kind is None:
        _list_pauses(client)
        return
    if name is None:
        raise click.UsageError(f"Which {kind}? Write: pgqueue pause {kind} NAME")
    by = operator()
    made = client.pause(kind, name, by=by)
    _report(made)
    if made.by != by:
        tell(f"{kind} {name} was paused before, by {made.by or 'somebody'}")


@click.command(epilog="\b\nExamples:\n  pgqueue resume queue mail\n  pgqueue resume agent host-7")
@click.argument("kind", type=click.Choice(_KINDS))
@click.argument("name")
@json_option
@with_client
def resume(client: Client, kind: PauseKind, name: str) -> None:
    """Have the tasks of a paused queue or agent claimed again."""
    from .output import cell, emit

    was = client.resume(kind, name)
    if wants_json():
        emit({"kind": kind, "name": name, "resumed": was})
    elif was:
        click.echo(f"{kind}\t{cell(name)}\tresumed")
    else:
        tell(f"{kind} {name} is not paused; see `{program()} pause{same_place()}`")


def _report(made: Pause) -> None:
    from .output import cell, emit

    if wants_json():
        emit(dataclasses.asdict(made))
    else:
        click.echo(f"{made.kind}\t{cell(made.name)}\tpaused")


def _list_pauses(client: Client) -> None:
    from .output import Column, listing

    now = server_now(client.database)
    columns: list[Column[Pause]] = [
        Column("kind", lambda one: one.kind, 5),
        Column("name", lambda one: one.name, 8),
        Column("since", lambda one: one.since, 9, short=lambda one: clock(one.since, now=now)),
        Column("by", lambda one: one.by, 8),
    ]
    found = client.pauses()
    listing(found, columns, dataclasses.asdict)
    if not found:
        tell("nothing is paused")
