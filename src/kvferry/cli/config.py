"""`kvferry config`: the settings of a cache as they take effect, and all that is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvferry.config import Examined

__all__ = ["config"]

_CODES = "Exit codes: 0 usable, 1 there are problems, 2 usage, or the file cannot be read."


@click.group(
    epilog="Example: kvferry config check kvferry.yaml && kvferry config show kvferry.yaml"
)
def config() -> None:
    """Look at the settings of a cache: a YAML file, the environment, and what wins."""


def _options(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
        click.option("--section", default="cache", show_default=True, help="Where in FILE."),
        click.argument("file", required=False),
    ):
        command = option(command)
    return command


@config.command(epilog=f"{_CODES}  Example: kvferry config show kvferry.yaml")
@_options
@click.pass_context
def show(ctx: click.Context, file: str | None, section: str, as_json: bool) -> None:
    """Print every setting with its value and where that comes from; secrets are masked.

    FILE is that of KVFERRY_CONFIG_FILE or LMCACHE_CONFIG_FILE where none is named. The environment
    takes part as it does for a cache.
    """
    found = _examined(file, section)
    if as_json:
        click.echo(json.dumps(_as_json(found), indent=1))
    else:
        _print(found)
    _say_troubles(found, err=True)
    ctx.exit(1 if found.problems else 0)


@config.command(epilog=f"{_CODES}  Example: kvferry config check lmcache.yaml")
@_options
@click.pass_context
def check(ctx: click.Context, file: str | None, section: str, as_json: bool) -> None:
    """Find everything that is wrong with the settings, and what of them has no effect."""
    found = _examined(file, section)
    if as_json:
        click.echo(json.dumps({name: _as_json(found)[name] for name in _VERDICT}, indent=1))
    else:
        _say_troubles(found, err=False)
        for text in found.notes:
            click.echo(f"note: {text}")
        count = len(found.problems)
        where = found.file or "the environment"
        click.echo(f"{where}: {count} problem{'' if count == 1 else 's'}")
    ctx.exit(1 if found.problems else 0)


_VERDICT = ("file", "problems", "warnings", "notes")


def _examined(file: str | None, section: str) -> Examined:
    """All findings; those that need a look into other files and sections too."""
    from kvferry.base.errors import ConfigError
    from kvferry.config import CacheConfig, ClientConfig, examine

    found = examine(file, section=section)
    try:
        _ = CacheConfig(**{name: value for name, (value, _) in found.values.items()}).secret
    except ConfigError as error:
        found.problems.append(str(error))
    try:
        ClientConfig(**ClientConfig.merged(found.client))
    except ConfigError as error:
        if str(error) not in found.problems:
            found.problems.append(str(error))
    return found


def _told(found: Examined) -> list[tuple[str, tuple[Any, str]]]:
    """The settings that users have."""
    return [(n, v) for n, v in (found.values | found.engine).items() if n != "tuning"]


def _as_json(found: Examined) -> dict[str, Any]:
    from kvferry.config.shown import shown_store

    return {
        "file": None if found.file is None else str(found.file),
        "settings": {
            name: {"value": value, "source": source} for name, (value, source) in _told(found)
        },
        "stores": [{**shown_store(store), "source": source} for store, source in found.stores],
        "problems": found.problems,
        "warnings": found.warnings,
        "notes": found.notes,
    }


def _print(found: Examined) -> None:
    from kvferry.cli.table import console, table
    from kvferry.config.shown import shown_store

    out = console()
    rows = [(name, _text(value), source) for name, (value, source) in _told(found)]
    for store, source in found.stores:
        rows.append((f"store {store.name}", f"{store.type} at {store.address}", source))
        flat = {name: value for name, value in shown_store(store).items() if name not in _HEAD}
        rows += [(f"  {name}", _text(value), "") for name, value in flat.items()]
    if not found.stores:
        rows.append(("stores", "none", "default"))
    out.print(table(("setting", "value", "source"), rows, right=False), soft_wrap=True)


_HEAD = ("name", "type", "address")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(one) for one in value)
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def _say_troubles(found: Examined, *, err: bool) -> None:
    for kind, texts in (("problem", found.problems), ("warning", found.warnings)):
        for text in texts:
            click.echo(f"{kind}: {text}", err=err)
