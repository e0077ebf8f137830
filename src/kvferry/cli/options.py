"""Settings as options of a command line: their names, kinds, help and checks are derived."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import click

from kvferry.config.setting import Settings, specs
from kvferry.config.spec import Spec

__all__ = ["option_of", "setting_options"]

# A secret is no word of a command line, and `endpoints` are host, port and ipc in one.
_NOT_OPTIONS = ("token", "http_token", "password", "secret", "p2p_secret", "endpoints")

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
    if spec.name in _NOT_OPTIONS:
        return ""
    name = (spec.flag if spec.kind is not bool else "") or spec.name.replace("_", "-")
    return f"--no-{name}" if spec.kind is bool and spec.default else f"--{name}"


def setting_options(of: type[Settings]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator that adds an option for each setting of a class.

    An option that is not given is None, and one of a list, which may be repeated, is empty. What is
    on by default has an option that switches it off.
    """

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for spec in sorted(specs(of).values(), key=lambda spec: spec.guide):
            if option_of(spec):
                command = _option(spec)(command)
        return command

    return decorate


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
        spec.name,
        type=str if spec.kind is tuple else _Checked(spec),
        multiple=spec.kind is tuple,
        callback=partial(_joined, spec) if spec.kind is tuple else None,
        metavar=kind,
        help=f"{text} It may be repeated." if spec.kind is tuple else text,
    )


def _joined(spec: Spec, ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> Any:
    """One list of all; an error says which of them is wrong."""
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
