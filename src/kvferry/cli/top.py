"""`kvferry top`: a running server, or caches in processes of this host, live in the terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvferry.cli.numbers import Number

if TYPE_CHECKING:
    from kvferry.cli.top_watch import Watch

__all__ = ["top"]

_URL = "http://127.0.0.1:8080"
_TOKEN = "KVFERRY_SERVER_HTTP_TOKEN"


@click.command(
    epilog="The token comes from --token-file, KVFERRY_SERVER_HTTP_TOKEN_FILE, or "
    "KVFERRY_SERVER_HTTP_TOKEN.  Exit codes: 0 shown, 1 the server did not answer (--once), "
    "2 usage, 130 ended with Ctrl-C.  Example: kvferry top http://127.0.0.1:8080 --interval 5"
)
@click.argument("url", required=False)
@click.option("--once", is_flag=True, help="Print one frame and end.")
@click.option(
    "--interval",
    type=Number(0.1, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@click.option(
    "--token-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Holds the token of the server.",
)
@click.pass_context
def top(
    ctx: click.Context, url: str | None, once: bool, interval: float, token_file: Path | None
) -> None:
    """Watch a cache: pool, hit rates, tokens and bytes a second, engines, stores.

    URL is the HTTP side of a cache server. Without one, the vLLM engines of this host and user are
    shown that have KvferryConnector, and so a cache in their processes; where there is none, the
    server at http://127.0.0.1:8080. Rates are those since the look before;
    with --once, those of two looks 0.5 s apart. A server that is away is shown as away until it is
    back.
    """
    from kvferry.cli.table import console
    from kvferry.cli.top_page import page

    watch = _watch(url, token_file)
    if once:
        watch.look()
        if watch.problem is None:
            time.sleep(0.5)
            watch.look()
        console().print(page(watch))
        ctx.exit(0 if watch.problem is None else 1)
    _live(watch, interval)


def _watch(url: str | None, token_file: Path | None) -> Watch:
    from kvferry.cli.top_watch import Watch, WatchHere

    if url is None:
        here = WatchHere()
        here.look()
        if here.problem is None:
            return here
    return Watch(url or _URL, _token(token_file))


def _live(watch: Watch, interval_s: float) -> None:
    from rich.live import Live

    from kvferry.cli.table import console
    from kvferry.cli.top_page import page

    out = console()
    with Live(console=out, screen=out.is_terminal, auto_refresh=False) as live:
        while True:
            watch.look()
            live.update(page(watch), refresh=True)
            time.sleep(interval_s)


def _token(file: Path | None) -> str | None:
    """The token, as the server itself would read it."""
    from kvferry.config.file import read_token

    if file is None and (named := os.environ.get(f"{_TOKEN}_FILE")):
        file = Path(named)
    return read_token(file) if file is not None else os.environ.get(_TOKEN) or None
