"""What the pages print from the code. `python -m tests.docs.generate` writes it into them."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any

import click

from pgqueue import errors
from pgqueue.__main__ import command
from pgqueue.backoff import CAP, backoff_for
from pgqueue.client import Client
from pgqueue.config import DEFAULTS, Limits, WorkerConfig
from pgqueue.database.engines import CONNECT_DEFAULTS, SESSION
from pgqueue.keys import format_duration
from pgqueue.lifecycle import MOVES, Guard, diagram
from pgqueue.options import Options

from .pages import PAGES, name

_DEFAULTS: Mapping[str, str] = {
    "queue": "the queue of an action or an enqueue that names none",
    "schema": "where the tables are",
    "max_attempts": "how often a task runs before it is dead",
    "lease": "how long a claim holds without a renewal; a worker renews every third of it",
    "concurrency": "how many handlers of a worker run at once",
    "poll": "how long an idle worker sleeps when nothing wakes it, give or take a quarter",
    "poll_deaf": "the same where it cannot LISTEN",
    "maintenance": "how long a reaper sleeps at the most",
    "drain": "how long handlers may go on after the first signal",
    "cancel_grace": "how long a handler that was asked to stop may unwind",
    "retention": "how long completed and cancelled tasks are kept; dead ones are kept until told",
    "orphan_grace": "how long a parent that does not exist is waited for; `meta.orphan_grace` decides",
}
_LIMITS: Mapping[str, str] = {
    "PRIORITY": "priority, higher first",
    "MAX_ATTEMPTS": "executions of a task",
    "NAME_BYTES": "bytes of a queue, action, agent, account, dedupe key or owner; no control characters",
    "PAYLOAD_BYTES": "a payload as JSON text; `trigger` and `metadata` each too",
    "RESULT_BYTES": "a result as JSON text",
    "ERROR_BYTES": "`last_error`; what is longer is cut in the middle",
    "MESSAGE_BYTES": "a progress message; what is longer is cut in the middle",
    "BATCH": "tasks of one claim, and of one chunk of `enqueue_many`",
    "PARENTS": "tasks that one depends on",
}


def table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *([str(cell).replace("|", "\\|") for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def described(documentation: str | None) -> dict[str, str]:
    """The `name: text` and `name, name: text` items of a docstring, each possibly over several lines."""
    found: dict[str, str] = {}
    last: list[str] = []
    for line in inspect.cleandoc(documentation or "").splitlines():
        match = re.match(r"((?:\w+, )*\w+): (.*)", line)
        if match:
            last = match[1].split(", ")
            found |= dict.fromkeys(last, match[2])
        elif line.startswith(" ") and last:
            found |= {item: f"{found[item]} {line.strip()}" for item in last}
        else:
            last = []
    return found


def shown(value: object) -> str:
    match value:
        case timedelta():
            return f"`{format_duration(value)}`"
        case bool():
            return "on" if value else "off"
        case None | ():
            return ""
        case tuple():
            return f"{value[0]:,} … {value[1]:,}"
        case int() if value >= 1024 and value % 1024 == 0:
            return f"{value // 1024 // 1024} MiB" if value % 1024**2 == 0 else f"{value // 1024} KiB"
        case int():
            return f"{value:,}"
    return f"`{value}`"


def limits() -> Mapping[str, Any]:
    return {name: value for name, value in vars(Limits).items() if name.isupper()}


def _defaults() -> str:
    values = dataclasses.asdict(DEFAULTS)
    rows = [(f"`{name}`", shown(value), _DEFAULTS[name]) for name, value in values.items()]
    return table(("what", "default", "means"), rows)


def _worker() -> str:
    meanings = described(WorkerConfig.__doc__)
    params = {p.name: p for p in _subcommand("worker").params if isinstance(p, click.Option)}
    rows = []
    for field in dataclasses.fields(WorkerConfig):
        option = params[field.name]
        flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
        default = shown(field.default)
        rows.append((f"`{field.name}`", default, flags, f"`{option.envvar}`", meanings[field.name].rstrip(".")))
    return table(("field", "default", "option", "variable", "means"), rows)


def _limits() -> str:
    return table(("what", "limit"), [(_LIMITS[name], shown(value)) for name, value in limits().items()])


def _backoff() -> str:
    steps: list[timedelta] = []
    while not steps or steps[-1] < CAP:
        steps.append(backoff_for(len(steps) + 1))
    row = [format_duration(step) for step in steps]
    return table(["after attempt", *(str(n + 1) for n in range(len(row) - 1)), f"{len(row)} and later"], [["", *row]])


def _connect() -> str:
    return table(("libpq", "value"), [(f"`{key}`", f"`{value}`") for key, value in CONNECT_DEFAULTS.items()])


def _session() -> str:
    return table(("setting", "value"), [(f"`{key}`", f"`{value}`") for key, value in SESSION.items()])


def _options() -> str:
    meanings = described(Options.__doc__)
    return table(
        ("option", "means"), [(f"`{option}`", meanings[option].rstrip(".")) for option in Options.__annotations__]
    )


def _verbs() -> str:
    rows = []
    for verb, function in vars(Client).items():
        if verb.startswith("_"):
            continue
        first = (inspect.getdoc(function) or "").split("\n\n")[0].replace("\n", " ")
        rows.append((f"`{verb}`", first.split(". ")[0].rstrip(".")))
    return table(("verb", "does"), rows)


def _errors() -> str:
    tree = re.search(r"\n\n((?:    .*\n)+)", errors.__doc__ or "")
    assert tree is not None
    return f"```text\n{inspect.cleandoc(tree[1])}\n```\n"


def _events() -> str:
    rows = []
    for move in MOVES:
        condition = "" if move.guard is Guard.ALWAYS else move.guard.value
        rows.append((f"`{move.event}`", move.source, condition, move.target))
    return table(("event", "from", "if", "to"), rows)


def _diagram() -> str:
    return f"```mermaid\n{diagram()}```\n"


def _commands() -> str:
    group: Any = command()
    rows = []
    for verb, entry in group.table.items():
        rows += [(f"`{verb} {inner}`", e.help.rstrip(".")) for inner, e in getattr(entry, "commands", {}).items()] or [
            (f"`{verb}`", entry.help.rstrip("."))
        ]
    return table(("command", "does"), rows)


def _subcommand(verb: str) -> click.Command:
    group = command()
    found = group.get_command(click.Context(group), verb)
    assert found is not None
    return found


REGIONS: Mapping[str, Callable[[], str]] = {
    "backoff": _backoff,
    "commands": _commands,
    "connect": _connect,
    "defaults": _defaults,
    "diagram": _diagram,
    "errors": _errors,
    "events": _events,
    "limits": _limits,
    "options": _options,
    "session": _session,
    "verbs": _verbs,
    "worker": _worker,
}
REGION = re.compile(r"(?<=<!-- generated: )(\w+)( -->\n).*?(?=<!-- /generated -->)", re.DOTALL)


def rewritten(text: str) -> str:
    """The page with its regions as the code has them."""
    return REGION.sub(lambda found: f"{found[1]}{found[2]}{REGIONS[found[1]]()}", text)


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text()
        after = rewritten(before)
        if after != before:
            page.write_text(after)
            print(f"wrote {name(page)}")
