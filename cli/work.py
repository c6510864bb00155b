"""`pgqueue worker`: the daemon."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from pgqueue.config import WorkerConfig
from pgqueue.errors import InputError
from pgqueue.keys import format_duration

from .common import DURATION, DurationText, app_dir_option, database_options, hints_lead_here

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

_DEFAULTS: Final[dict[str, Any]] = {field.name: field.default for field in dataclasses.fields(WorkerConfig)}


class Names(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since Click 8.4
    """Names with commas between them; the option may be repeated."""

    name = "names"
    envvar_list_splitter = ","

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        names = tuple(name for part in value.split(",") if (name := part.strip()))
        if not names:  # --queues "$QUEUES" with nothing in it must not come to serve every queue
            field = param.name if param is not None else None
            raise InputError(f"{field or self.name} is empty; give at least one name, or leave it out", field=field)
        return names


class RetentionText(DurationText):
    """A duration, or `off`."""

    name = "retention"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "off" else super().convert(value, param, ctx)


def setting(field: str, *names: str, **attributes: Any) -> Callable[[Decorated], Decorated]:
    """An option for one field of WorkerConfig. Its variable is PGQUEUE_WORKER_<FIELD>; unset is not a default."""
    default = _DEFAULTS.get(field)
    if default is not None and not isinstance(default, bool) and default != ():
        shown = format_duration(default) if isinstance(attributes.get("type"), DurationText) else str(default)
        attributes["help"] = f"{attributes['help']}  [default: {shown}]"
    if not attributes.get("required"):
        attributes["default"] = None  # else a flag that nobody set would be False
    return click.option(*names, field, envvar=f"PGQUEUE_WORKER_{field.upper()}", show_envvar=True, **attributes)


@click.command(
    epilog="\b\nExamples:\n"
    "  pgqueue worker --app shop.tasks:app -q mail,default -c 50\n"
    "  pgqueue worker --app shop.tasks:app --offer gpu --offer licence\n"
    "  pgqueue worker --app shop.tasks:app --burst"
)
@setting("app", "--app", metavar="MODULE:NAME", required=True, help="The App whose actions it runs.")
@app_dir_option
@setting("queues", "-q", "--queues", type=Names(), multiple=True, help="Only these queues.  [default: its actions']")
@setting("offers", "--offer", type=Names(), multiple=True, help="A condition that holds here; may be repeated.")
@setting("concurrency", "-c", "--concurrency", type=int, help="How many handlers run at once.")
@setting("burst", "--burst/--no-burst", help="Stop when nothing is due.")
@setting("lease", "--lease", type=DURATION, help="How long a claim holds without a renewal.")
@setting("poll", "--poll", type=DURATION, help="How long it sleeps when nothing wakes it.")
@setting("listen", "--listen/--no-listen", help="Wake up by NOTIFY; without, it polls.")
@setting("drain", "--drain", type=DURATION, help="How long handlers may go on after the first signal.")
@setting("cancel_grace", "--cancel-grace", type=DURATION, help="How long a cancelled handler may unwind.")
@setting("maintenance", "--maintenance", type=DURATION, help="How often, at least, the reaper looks.")
@setting("name", "--name", help="What leases show as their owner.  [default: host:pid and some digits]")
@setting("batch", "--batch", type=int, help="How many tasks one claim takes at the most.")
@setting("retention", "--retention", type=RetentionText(), help="How long finished tasks are kept; or off.")
@database_options
def worker(app: str, app_dir: str | None, database_url: str | None, schema: str | None, **settings: Any) -> None:
    """Run a worker until it is told to stop.

    The first SIGTERM or SIGINT stops claiming and lets what runs finish; the second gives it back now. Ends in 70 when
    a handler's thread was stuck, for a supervisor to start it again.
    """
    import logging

    from .locate import aim, load_app

    for several in ("queues", "offers"):
        settings[several] = [name for names in settings[several] or () for name in names] or None
    options = {name: value for name, value in settings.items() if value is not None}
    WorkerConfig.of(options)  # a setting out of range is said before anything is imported
    found = load_app(app, app_dir)
    aim(found, database_url, schema)
    # Does nothing where the App's own modules have set up logging.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with hints_lead_here():
        status = found.run_worker(**options)
    click.get_current_context().exit(status)
