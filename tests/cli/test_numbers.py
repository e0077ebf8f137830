"""Numbers on the command line: what is no finite number is refused, with exit code 2."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from kvferry.cli.main import cli, main


def options(command: click.Command, *path: str) -> Iterator[tuple[str, str]]:
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, *path, name)
        return
    for option in command.params:
        if isinstance(option.type, click.types.FloatParamType):
            yield " ".join(path), option.opts[-1]


NUMBERS = list(options(cli))


def test_commands_take_numbers() -> None:
    assert len(NUMBERS) > 20


@pytest.mark.parametrize(("command", "option"), NUMBERS)
@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e999"])
def test_a_number_is_finite(
    command: str, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), option, value]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize(
    "line",
    ["tune --chunks inf", "tune --chunks 1,nan", "bench codec --tokens 99999999999999999999"],
)
def test_what_is_too_large_is_refused(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 2
    assert line.split()[-2] in capsys.readouterr().err
