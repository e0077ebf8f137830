"""Groups of commands that are imported when they are called, and what they need besides."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping

import click

__all__ = ["check_installed", "lazy_group"]


def lazy_group(commands: Mapping[str, tuple[str, str]]) -> type[click.Group]:
    """A group of these: name -> (where it is, its line in --help)."""

    class LazyGroup(click.Group):
        def list_commands(self, ctx: click.Context) -> list[str]:
            return sorted(commands)

        def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
            if name not in commands:
                return None
            module, _, attribute = commands[name][0].partition(":")
            command: click.Command = getattr(importlib.import_module(module), attribute)
            return command

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl([(name, commands[name][1]) for name in self.list_commands(ctx)])

    return LazyGroup


def check_installed(who: str, *names: str, extra: str = "server") -> None:
    """Whether a program has the packages that it needs.

    Raises:
        ConfigError: One is missing; the text says what to install.
    """
    from kvferry.base.errors import ConfigError

    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"{who} needs {name}; run pip install 'kvferry[{extra}]'")
