"""The one entry: the console script, `python -m pgqueue` and the tests come through `command`."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click


def command() -> "click.Group":
    """Find the command line by name: pgqueue.cli where pgqueue is installed, cli/ in a checkout that never was."""
    home = "pgqueue.cli" if find_spec("pgqueue.cli") else "cli"
    group: click.Group = import_module(home).main
    return group


def main() -> None:
    """Run the command line and exit with its code."""
    command().main(prog_name="pgqueue")


if __name__ == "__main__":
    main()
