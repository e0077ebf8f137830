"""`kvferry server`: one pool in shared memory for every engine process of this host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kvferry.server.config import ServerConfig

__all__ = ["server"]

_FILE = click.Path(dir_okay=False, path_type=Path)
# Options that are not settings of the server itself.
_NOT_SETTINGS = ("config", "l2_adapter", "new_curve_keys", "log_level", "check")


def _hidden(ctx: click.Context, param: click.Parameter, texts: tuple[str, ...]) -> list[Any]:
    """JSON with secrets in it, so that no report of an error shows it."""
    from kvferry.server.settings import AdapterText

    return [AdapterText(f"--l2-adapter {n}", text) for n, text in enumerate(texts, 1)]


def _group(*options: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_pool = _group(
    click.option(
        "--l1-size-gb",
        type=float,
        metavar="GB",
        help="Most memory of all chunks together, in GB of 2^30 bytes.  [default: 5]",
    ),
    click.option(
        "--eviction-policy",
        metavar="NAME",
        help="What leaves a full pool first: LRU, LFU, FIFO, S3-FIFO, ARC or W-TinyLFU.  "
        "[default: LRU]",
    ),
    click.option(
        "--chunk-size",
        type=int,
        metavar="TOKENS",
        help="Chunks of engines that name no size themselves.  [default: as they like]",
    ),
    click.option(
        "--l2-adapter",
        multiple=True,
        callback=_hidden,
        metavar="JSON",
        help="A store behind the pool, as a JSON object with a type: resp (redis, valkey), file, "
        "memory, plugin or native_plugin. Repeatable; stores are asked in this order.",
    ),
    click.option("--shm-name", metavar="NAME", help="How names of segments begin.  [kvferry]"),
    click.option(
        "--hugepages/--no-hugepages",
        "--l1-use-hugepages/--no-l1-use-hugepages",
        "hugepages",
        default=None,
        help="Put the pool on huge pages that the system has set aside.  [default: no]",
    ),
    click.option("--numa", type=int, metavar="NODE", help="Use memory of this NUMA node only."),
    click.option(
        "--state",
        "state_file",
        type=_FILE,
        metavar="FILE",
        help="Keep the index here over a restart, and the pool with it.",
    ),
    click.option(
        "--client-share",
        type=float,
        metavar="PART",
        help="Part of the pool that one engine may hold by leases, 0 to 1.  [default: 0.5]",
    ),
)
_listening = _group(
    click.option(
        "--host",
        metavar="ADDRESS",
        help="Where engines connect; beyond this host it needs --curve-key-file.  "
        "[default: localhost]",
    ),
    click.option("--port", type=int, metavar="PORT", help="0: any free one.  [default: 5555]"),
    click.option("--ipc", metavar="PATH", help="Listen at this Unix socket too."),
    click.option("--no-tcp", is_flag=True, help="Listen at the socket of --ipc only."),
    click.option("--curve-key-file", type=_FILE, metavar="FILE", help="Keys of CURVE, mode 0600."),
    click.option(
        "--new-curve-keys",
        type=click.Path(file_okay=False, path_type=Path),
        metavar="DIR",
        help="Write new server.key and client.key there and end.",
    ),
)
_http = _group(
    click.option(
        "--http-host",
        metavar="ADDRESS",
        help="Where HTTP listens; beyond this host it needs a token.  [default: localhost]",
    ),
    click.option("--http-port", type=int, metavar="PORT", help="0: none.  [default: 8080]"),
    click.option("--no-http", is_flag=True, help="The same as --http-port 0."),
    click.option(
        "--http-token-file", type=_FILE, metavar="FILE", help="Its content is asked of callers."
    ),
)
_times = _group(
    click.option(
        "--lease-s", type=float, metavar="S", help="Life of leases, in seconds.  [default: 60]"
    ),
    click.option(
        "--heartbeat-s", type=float, metavar="S", help="How often engines call.  [default: 1]"
    ),
    click.option(
        "--dead-after-s",
        type=float,
        metavar="S",
        help="Silence that ends the leases of an engine.  [default: 5]",
    ),
    click.option(
        "--drain-s",
        type=float,
        metavar="S",
        help="How long a shutdown waits for stores.  [default: 10]",
    ),
)


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
@_pool
@_listening
@_http
@_times
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
    if options["new_curve_keys"] is not None:
        _check_installed()
        _new_curve_keys(options["new_curve_keys"])
        return
    config = _config(options)
    if options["check"]:
        _show(config)
        return
    _check_installed()
    from kvferry.server.run import run_server

    run_server(config, log_level=options["log_level"])


def _check_installed() -> None:
    import importlib.util

    from kvferry.errors import ConfigError

    for name in ("zmq", "msgspec", "starlette", "uvicorn"):
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"a server needs {name}; run pip install 'kvferry[server]'")


def _config(options: dict[str, Any]) -> ServerConfig:
    """The settings of the command line over those of the environment and the file."""
    from kvferry.server.config import ServerConfig

    given = {name: value for name, value in options.items() if name not in _NOT_SETTINGS}
    given["l2_adapters"] = list(options["l2_adapter"]) or None
    given["tcp"] = False if given.pop("no_tcp") else None
    given["http"] = False if given.pop("no_http") else None
    return ServerConfig.load(options["config"], **given)


def _new_curve_keys(directory: Path) -> None:
    from kvferry.server.curve import new_keys

    for file in new_keys(directory):
        click.echo(file)


def _show(config: ServerConfig) -> None:
    import json

    from kvferry.server.shown import shown

    click.echo(json.dumps(shown(config), indent=1))
