"""`kvferry server`: one pool in shared memory for every engine process of this host."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvferry.cli.lazy import check_installed
from kvferry.cli.options import setting_options
from kvferry.config.server import ServerSettings

if TYPE_CHECKING:
    from kvferry.config.server import ServerConfig

__all__ = ["server"]

_FILE = click.Path(dir_okay=False, path_type=Path)
# Options that are not settings of the server itself.
_NOT_SETTINGS = ("config", "log_level", "check")


@click.command(
    epilog="Every setting is also KVFERRY_SERVER_ and its name in capitals "
    "(KVFERRY_SERVER_L1_SIZE_GB, KVFERRY_SERVER_L2_ADAPTER), and a line in the section 'server' of "
    "the file. User and password of a resp store: KVFERRY_RESP_USERNAME, KVFERRY_RESP_PASSWORD.  "
    "SIGTERM and Ctrl-C drain and end, a second time at once; SIGHUP reads the settings again.  "
    "Exit codes: 0 drained and ended, 1 failed, 2 usage.  "
    "Example: kvferry server --l1-size-gb 10 --eviction-policy LRU --l2-adapter "
    '\'{"type":"resp","host":"localhost","port":6379,"max_capacity_gb":10}\' --port 6555'
)
@click.option(
    "--config",
    type=_FILE,
    metavar="FILE",
    help="YAML with the sections 'server' and 'engine'.  [default: that of KVFERRY_CONFIG_FILE]",
)
@setting_options(ServerSettings)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option("--check", is_flag=True, help="Print the settings as they take effect and end.")
def server(**options: Any) -> None:
    """Own one pool of KV chunks for every engine process of this host.

    Engines map it as shared memory and copy their chunks straight in and out; the socket carries
    names and page numbers only. It outlives them, so a restarted engine finds its chunks.
    """
    config = _config(options)
    if options["check"]:
        _show(config)
        return
    check_installed("a server", "starlette", "uvicorn")
    from kvferry.server.run import run_server

    run_server(config, log_level=options["log_level"])


def _config(options: dict[str, Any]) -> ServerConfig:
    """The settings of the command line over those of the environment and the file."""
    from kvferry.config.server import ServerConfig

    given = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
    return ServerConfig.load(options["config"], **given)


def _show(config: ServerConfig) -> None:
    import json

    from kvferry.config.shown import shown_server

    click.echo(json.dumps(shown_server(config), indent=1))
