"""`pgqueue demo`: the queue at work on real files, with every total checked."""

from __future__ import annotations

import click

from .common import database_options, json_option


@click.command(
    epilog="\b\nExamples:\n  pgqueue demo\n  pgqueue demo ~/projects --workers 4\n  pgqueue demo --kill-one --json"
)
@click.argument("directory", metavar="[DIR]", type=click.Path(readable=False), required=False)
@click.option(
    "--workers", type=click.IntRange(1, 32), default=2, show_default=True, help="How many worker processes to start."
)
@click.option("--kill-one", is_flag=True, help="Kill a worker with SIGKILL when a third is done.")
@database_options
@json_option
def demo(directory: str | None, workers: int, kill_one: bool, database_url: str | None, schema: str | None) -> None:
    """See the queue at work on real files.

    Makes an inventory of DIR, by default of the running Python's standard library: one task per file, one at a time
    and in order in each folder; a summary per folder, which depends on its files; a total, which depends on the
    summaries. A few tasks must fail, and so be missing there. In the end every total is compared with a direct walk of
    the same files: exit code 0 says that all agree and that only those tasks are dead which had to be.

    Uses the embedded server, unless --database-url names another; variables are not asked. Its tasks wait in a queue
    of their own. Folders named __pycache__, site-packages or like a cache are skipped.
    """
    from .demo_run import Request, run
    from .demo_screen import show

    # Not what the environment names: nobody expects a demo in the database that they work with.
    request = Request(directory, workers, kill_one, database_url or "embedded", schema)
    report = run(request)
    show(report)
    if not report.matches:
        from .errors import REFUSED, complain

        complain(report.complaint())
        click.get_current_context().exit(REFUSED)
