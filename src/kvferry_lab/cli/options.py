"""Options of commands, made from the fields of the dataclass that a command works with.

    @dataclass(frozen=True, kw_only=True)
    class Plan:
        prompts: int = option(2, "Prompts in a round.", least=1)

    @click.command()
    @options_of(Plan)
    def ask(ctx: click.Context, plan: Plan) -> None: ...

An option has the name of its field. Its kind follows from the field's type: a whole number, a
number, a text, a path, the words of a `Literal`, a flag, or, of a tuple, a list with commas. A
default that is not None, empty or off is shown. Fields that are not declared by `option` have none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import MISSING, field, fields, replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import click
from click.core import ParameterSource

from kvferry.cli.numbers import Number

__all__ = ["REQUIRED", "option", "options_of", "typed", "under"]

REQUIRED = MISSING
_DECLARED = "option"
T = TypeVar("T")


def option(default: Any, text: str, *names: str, kind: Any = None, **more: Any) -> Any:
    """Declare a field that is an option.

    Args:
        default: Of the field; `REQUIRED`: it has to be given.
        text: Its help.
        names: Of the option, where they are not that of the field.
        kind: A type of click, where it does not follow from that of the field; of a list, a
            function that reads one word, and raises ValueError.
        more: `least`, `most` and `above`, bounds of a number; `like`, an example of a list, empty
            where the option is repeated instead; and what else `click.option` takes.
    """
    return field(default=default, metadata={_DECLARED: {"text": text, "names": names, **more}
                                            | ({"kind": kind} if kind else {})})  # fmt: skip


def options_of(*declared: type) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that declares the options of dataclasses; the function gets one object of each.

    Before them stands the context, and behind them, by name, what else is declared of the command.
    """

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(run)
        def command(ctx: click.Context, /, **given: Any) -> None:
            made = [kind(**{name: given.pop(name) for name in _options(kind)}) for kind in declared]
            rest = [given]
            del given  # it may carry a password, and error reporters show variables
            run(ctx, *made, **rest.pop())

        found: Callable[..., None] = command
        for kind in reversed(declared):
            for decorator in reversed(list(_options(kind).values())):
                found = decorator(found)
        return click.pass_context(found)

    return decorate


def typed(ctx: click.Context, name: str) -> bool:
    """Whether the command line has this option."""
    return ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def under(ctx: click.Context, plan: T, preset: Mapping[str, Any]) -> T:
    """The plan with the values of a preset, but for what the command line says."""
    chosen = {name: value for name, value in preset.items() if not typed(ctx, name)}
    return replace(plan, **chosen)  # type: ignore[type-var]


def _options(of: type) -> dict[str, Callable[[Any], Any]]:
    """A decorator for each option of a dataclass."""
    hints = get_type_hints(of)
    return {
        each.name: _decorator(each.name, hints[each.name], each.default, **each.metadata[_DECLARED])
        for each in fields(of)
        if _DECLARED in each.metadata
    }


def _decorator(
    field_name: str, hint: Any, default: Any, *, text: str, names: tuple[str, ...], **more: Any
) -> Callable[[Any], Any]:
    word = field_name.replace("_", "-")
    kinds = [one for one in get_args(hint) if one is not NoneType]
    hint = kinds[0] if NoneType in get_args(hint) else hint
    settings: dict[str, Any] = {"help": text, "default": default}
    if default is MISSING:
        settings = {"help": text, "required": True}
    elif hint is bool and default and not names:
        names = (f"--{word}/--no-{word}",)
    if hint is bool and not default:
        settings["is_flag"] = True
    elif hint is not bool:
        settings["type"] = _kind(hint, **_bounds(more))
    settings["show_default"] = isinstance(default, int | float | str) and (
        default is not False and default != ""
    )
    return click.option(*(names or (f"--{word}",)), field_name, **{**settings, **more})


def _bounds(more: dict[str, Any]) -> dict[str, Any]:
    """What says of which kind the values are, taken out."""
    return {
        name: more.pop(name) for name in ("kind", "least", "most", "above", "like") & more.keys()
    }


def _kind(
    hint: Any,
    kind: Any = None,
    least: Any = None,
    most: Any = None,
    above: float | None = None,
    like: str = "1,2,4",
) -> Any:
    if get_origin(hint) is tuple and like:
        return _Listed(kind or get_args(hint)[0], like)
    if kind is not None:
        return kind
    if get_origin(hint) is Literal:
        return click.Choice(list(get_args(hint)))
    if hint is float:
        return Number(least if above is None else above, most, min_open=above is not None)
    if hint is int and (least, most) != (None, None):
        return click.IntRange(least, most)
    return click.Path(path_type=Path) if hint is Path else hint


class _Listed(click.ParamType[Any]):
    """A list with commas; it becomes a tuple."""

    name = "list"

    def __init__(self, read: Callable[[str], Any], like: str) -> None:
        self._read, self._like = read, like

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return tuple(self._read(word.strip()) for word in value.split(","))
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no list like {self._like}", param, ctx)
