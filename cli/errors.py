"""What went wrong, as one line on stderr and an exit code. The only place that maps the one to the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from pgqueue.errors import DatabaseError, InputError, PgqueueError, SchemaMismatch

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
MISFIT: Final = 4
INTERRUPTED: Final = 130

# The first that fits.
CODES: Final[tuple[tuple[type[PgqueueError], int], ...]] = (
    (InputError, USAGE),
    (SchemaMismatch, MISFIT),
    (DatabaseError, UNREACHABLE),
    (PgqueueError, REFUSED),
)

_WIDEST: Final = 4000


def code_of(error: PgqueueError) -> int:
    """The exit code that stands for the error."""
    return next(code for kind, code in CODES if isinstance(error, kind))


def tell(text: object) -> None:
    """A message for the person: one line on stderr, whatever is in it."""
    from pgqueue.sanitize import one_line

    click.echo(one_line(text, _WIDEST), err=True)


def complain(error: object) -> None:
    """A refusal for the person: one line on stderr."""
    tell(f"Error: {error}")


def status_of(run: Callable[[], Any]) -> int:
    """Run the program; its exit code. What nobody foresaw passes through, with its traceback: it is a bug."""
    try:
        code = run()
    except PgqueueError as error:
        complain(error)
        return code_of(error)
    except click.ClickException as error:
        complain(_with_way_out(error))
        return error.exit_code
    except click.Abort as error:
        # Click's name for Ctrl-C, and for the end of input at a question.
        if isinstance(error.__cause__ or error.__context__, KeyboardInterrupt):
            return INTERRUPTED
        complain("no answer; nothing was done")
        return REFUSED
    return code if isinstance(code, int) else DONE


def _with_way_out(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    text = error.format_message()
    return text if context is None else f"{text} (see {context.command_path} --help)"
