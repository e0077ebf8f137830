"""What --help says: every option says what it is by itself, without the ones around it."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from kvferry.cli.main import cli
from kvferry.config import CacheConfig, ClientConfig, EvictionConfig, StoreConfig, integrations
from kvferry.config.controller import ControllerConfig
from kvferry.config.node import NodeSettings
from kvferry.config.server import ServerSettings
from kvferry.config.setting import Settings, specs
from kvferry.config.stores import StoreSettings

SETTINGS: tuple[type[Settings], ...] = (
    *(CacheConfig, ClientConfig, EvictionConfig, StoreConfig, StoreSettings, ControllerConfig),
    *(NodeSettings, ServerSettings, integrations.VllmConnectorSettings),
    *(integrations.VllmServerSettings, integrations.VllmTierSettings),
    *(integrations.SglangSettings, integrations.LmcacheSettings),
)


def options(command: click.Command, *path: str) -> Iterator[tuple[str, str]]:
    """Of a command and all below it: its name and the option's, and the words."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, *path, name)
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            yield f"{' '.join(path)} {option.opts[-1]}", option.help or ""


WORDS = dict(options(cli))
SETTING_WORDS = {
    f"{kind.__name__}.{name}": spec.text for kind in SETTINGS for name, spec in specs(kind).items()
}
EVERY = {**WORDS, **SETTING_WORDS}


def test_commands_have_options() -> None:
    assert len(WORDS) > 200
    assert len(SETTING_WORDS) > 100


@pytest.mark.parametrize("option", EVERY)
def test_an_option_says_what_it_is(option: str) -> None:
    words = re.sub(r"\[default.*", "", EVERY[option], flags=re.DOTALL).strip()
    assert re.match(r"[A-Z][^.]*\w.*\.$", words, re.DOTALL), f"{option}: no sentence: {words!r}"
    assert not re.match(r"(Of|At|For|By|In|As|That) ", words), f"{option}: of what? {words!r}"


@pytest.mark.parametrize("setting", SETTING_WORDS)
def test_a_setting_says_so_without_the_title_of_its_section(setting: str) -> None:
    words = SETTING_WORDS[setting]
    assert not re.match(r"(Where|What|How|Which|Whether|Silence|Part|Most) ", words), words
    assert "None" not in words, f"nobody writes None on a command line: {words!r}"
    assert not re.search(r"[;.] \w+: ", words), f"no sentence: {words!r}"
