"""What the commands have in common that serve until a signal: `server`, `controller`, `node`."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kvferry.cli.options import setting_options
from kvferry.config.setting import Settings

__all__ = ["serving"]

S = TypeVar("S")


def serving(
    of: type[Settings],
    sections: str,
    load: Callable[..., S],
    shown: Callable[[S], Mapping[str, Any]] | None = None,
) -> Callable[[Callable[[S, str], None]], Callable[..., None]]:
    """A decorator that makes a command of a function of the settings and the level of the log.

    Args:
        of: Its settings, each an option.
        sections: Of the file that has them too, for people.
        load: From the path of the file and the settings of the command line to all of them.
        shown: What `--check` prints of them; None: there is no such option.
    """
    options: list[Callable[[Any], Any]] = [
        click.option(
            "--config",
            type=click.Path(dir_okay=False, path_type=Path),
            metavar="FILE",
            help=f"YAML with {sections}.  [default: that of KVFERRY_CONFIG_FILE]",
        ),
        setting_options(of),
        click.option(
            "--log-level",
            type=click.Choice(["debug", "info", "warning", "error"]),
            default="info",
            show_default=True,
            help="The least level of lines in the log, which goes to stderr.",
        ),
    ]
    if shown is not None:
        options.append(
            click.option(
                "--check", is_flag=True, help="Print the settings as they take effect and end."
            )
        )

    def decorate(run: Callable[[S, str], None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(config: Path | None, log_level: str, check: bool = False, **given: Any) -> None:
            settings = load(config, **given)
            if check and shown is not None:
                click.echo(json.dumps(shown(settings), indent=1))
                return
            run(settings, log_level)

        found: Callable[..., None] = command
        for option in reversed(options):
            found = option(found)
        return found

    return decorate
