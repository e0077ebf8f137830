"""Commands that serve until a signal (`server`, `controller`, `node`): their settings as options.

The names, kinds, help and checks of options are derived from the declarations of the settings.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from kvferry.base.errors import ConfigError
from kvferry.config.cache import CACHE
from kvferry.config.setting import Settings, specs
from kvferry.config.spec import Spec

__all__ = ["declared", "option_of", "serving", "setting_options"]

# A secret is no word of a command line.
_NOT_OPTIONS = ("token", "http_token", "password", "secret", "p2p_secret")

_METAVARS = {"tokens": "TOKENS", "GB": "GB", "seconds": "S"}


class _Checked(click.ParamType[Any]):
    """A text that a setting reads; a wrong one is a `ConfigError` that names the option."""

    name = "value"

    def __init__(self, spec: Spec) -> None:
        self._spec = spec

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return self._spec.parse(value, param.opts[0]) if isinstance(value, str) else value


def option_of(spec: Spec) -> str:
    """The option for a setting; empty: there is none."""
    if spec.name in _NOT_OPTIONS or spec.private:
        return ""
    name = (spec.flag if spec.kind is not bool else "") or spec.name.replace("_", "-")
    return f"--no-{name}" if spec.kind is bool and spec.default else f"--{name}"


def setting_options(of: type[Settings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for each setting of a class.

    An option that is not given is None, and one of a list, which may be repeated, is empty. What is
    on by default has an option that switches it off.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for name, advice in of.removed.items():
            command = _removed(name, advice)(command)
        for spec in sorted(declared(of), key=lambda spec: spec.guide):
            if option_of(spec):
                command = _option(spec)(command)
        return command

    return decorate


def declared(of: type[Settings]) -> list[Spec]:
    """The settings of a command: those of its class, and of a server some of its cache."""
    of_cache = [CACHE.known[name] for name in getattr(of, "of_cache", ())]
    return [*of_cache, *specs(of).values()]


def _removed(name: str, advice: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that is gone, with a value or without: an error that says what to do instead."""
    words = name.replace("_", "-")

    def refuse(ctx: click.Context, param: click.Parameter, value: object) -> None:
        if value is not None:
            raise ConfigError(f"--{words} {advice}")

    return click.option(
        *(f"--{words}", f"--no-{words}", f"gone_{name}"),
        is_flag=False,
        flag_value="",
        default=None,
        hidden=True,
        expose_value=False,
        callback=refuse,
    )


def _option(spec: Spec) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    option = option_of(spec)
    text = re.sub(r"[`\"]", "", spec.text)
    if spec.kind is bool and spec.default:
        return click.option(
            option,
            spec.name,
            flag_value=False,
            default=None,
            help=f"Do not {text[:1].lower()}{text[1:]}",
        )
    if spec.kind is bool:
        words = [option.removeprefix("--"), spec.flag]
        names = [f"--{each}/--no-{each}" for each in words if each]
        return click.option(*names, spec.name, default=None, help=f"{text}  [default: no]")
    if spec.words:
        text += f" Use {spec.wanted}."
    if spec.default not in (None, ()):
        default = f"{spec.default:g}" if spec.kind is float else spec.default
        if spec.kind is dict:
            default = json.dumps(default)
        elif spec.of_texts:
            default = ", ".join(default)
        text += f"  [default: {default}]"
    kind = _metavar(spec)
    return click.option(
        option,
        (spec.flag or spec.name).replace("-", "_"),
        type=str if spec.kind is tuple else _Checked(spec),
        multiple=spec.kind is tuple,
        callback=partial(_joined, spec) if spec.kind is tuple else None,
        metavar=kind,
        help=f"{text} It may be repeated." if spec.kind is tuple else text,
    )


def _joined(spec: Spec, ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """One list of all options of a name; an error says which one is wrong."""
    flag = param.opts[0]
    names = [flag if len(texts) == 1 else f"{flag} {n}" for n in range(1, len(texts) + 1)]
    lists = (spec.parse(text, name) for text, name in zip(texts, names, strict=True))
    return [item for each in lists for item in each] or None


def _metavar(spec: Spec) -> str:
    if spec.words:
        return "NAME"
    if spec.kind in (int, float):
        return _METAVARS.get(spec.unit, "NUMBER")
    if spec.kind in (tuple, dict):
        return "ADDRESS" if spec.name == "listen" else "JSON"
    return {"a path": "PATH"}.get(spec.use, "TEXT")


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
