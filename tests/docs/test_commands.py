"""Every `pgqueue …` in a console block is a command that there is, with options that it has."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from pgqueue.__main__ import command

from .pages import ROOT, Block, all_blocks

CONSOLES = list(all_blocks("console"))
ID = "01a227fa-1ce5-72cf-9f94-8f2c0cd8dd91"


def lines(block: Block) -> list[str]:
    return [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]


def commands(line: str) -> Iterator[list[str]]:
    """Find the arguments of each pgqueue in a line of shell: after a pipe, in a substitution, behind xargs."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    arguments: list[str] | None = None
    previous = ""
    for token in [*lexer, ";"]:
        if set(token) <= set(";|&()<>"):
            if arguments is not None:
                yield arguments
            arguments = None
        elif arguments is not None:
            arguments.append(token)
        elif token == "pgqueue":
            arguments = [ID] if previous == "xargs" else []
            if arguments:
                arguments = Behind(arguments)
        previous = token


class Behind(list[str]):
    """Arguments with an id that xargs puts at their end."""

    def append(self, token: str) -> None:
        self.insert(len(self) - 1, token)


def parse(arguments: list[str]) -> click.Context:
    """Parse a command line to the end, without running it. UsageError for what is not there."""
    group: click.Command = command()
    context = click.Context(group, info_name="pgqueue")
    rest = list(arguments)
    while isinstance(group, click.Group):
        if not rest:
            raise click.UsageError(f"{context.command_path} needs a command")
        word = rest.pop(0)
        found = group.get_command(context, word)
        if found is None:
            raise click.UsageError(f"{context.command_path} has no command {word}")
        group = found
        if isinstance(group, click.Group):
            context = click.Context(group, info_name=word, parent=context)
    return group.make_context(group.name, rest, parent=context)


@pytest.mark.parametrize("block", CONSOLES, ids=str)
def test_commands_of_a_block_exist(block: Block) -> None:
    for line in lines(block):
        for arguments in commands(line):
            with parse(arguments):
                pass


def test_pages_name_many_commands() -> None:
    """If the blocks were no longer found, the test above would pass too."""
    found = [arguments for block in CONSOLES for line in lines(block) for arguments in commands(line)]

    assert len(found) > 20
    assert len({arguments[0] for arguments in found}) > 8


@pytest.mark.parametrize(
    "line",
    ["pgqueue shwo d8dd91", "x | xargs pgqueue retry --nonsense", "A=$(pgqueue embedded strat)", "pgqueue list x"],
)
def test_wrong_command_is_noticed(line: str) -> None:
    [arguments] = commands(line)

    with pytest.raises(click.UsageError):
        parse(arguments)


def test_make_targets_of_the_pages_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for block in CONSOLES for line in lines(block) for word in re.findall(r"\bmake (\w+)", line)}

    assert {"demo", "test"} <= named <= targets
