"""What --help says: every option says what it is by itself, without the ones around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from kvferry.cli.main import cli

# Their options are made of settings, whose words the guide to the configuration has as well.
OF_SETTINGS = ("server", "node", "controller")


def options(command: click.Command, *path: str) -> Iterator[tuple[str, str]]:
    """Of a command and all below it: its name and the option's, and the words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, *path, name)
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden and path[:1] not in NOT_HERE:
            yield f"{' '.join(path)} {option.opts[-1]}", option.help or ""


NOT_HERE = [(name,) for name in OF_SETTINGS]
WORDS = dict(options(cli))


def test_commands_have_options() -> None:
    assert len(WORDS) > 150


@pytest.mark.parametrize("option", WORDS)
def test_an_option_says_what_it_is(option: str) -> None:
    words = re.sub(r"\[default.*", "", WORDS[option], flags=re.DOTALL).strip()
    assert re.match(r"[A-Z][^.]*\w.*\.$", words, re.DOTALL), f"{option}: no sentence: {words!r}"
    assert not re.match(r"(Of|At|For|By|In|As|That) ", words), f"{option}: of what? {words!r}"
