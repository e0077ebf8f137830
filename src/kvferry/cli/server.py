"""`kvferry server`: one pool in shared memory for every engine process of this host."""

from __future__ import annotations

import click

from kvferry.cli.lazy import check_installed
from kvferry.cli.serving import serving
from kvferry.config.server import ServerConfig, ServerSettings
from kvferry.config.shown import shown_server

__all__ = ["server"]


@click.command(
    epilog="Every setting is also KVFERRY_SERVER_ and its name in capitals "
    "(KVFERRY_SERVER_L1_SIZE_GB, KVFERRY_SERVER_L2_ADAPTER), and a line in the section 'server' of "
    "the file. User and password of a resp store: KVFERRY_RESP_USERNAME, KVFERRY_RESP_PASSWORD.  "
    "SIGTERM and Ctrl-C drain and end, a second time at once; SIGHUP reads the settings again.  "
    "Exit codes: 0 drained and ended, 1 failed, 2 usage.  "
    "Example: kvferry server --l1-size-gb 10 --eviction-policy LRU --l2-adapter "
    '\'{"type":"resp","host":"localhost","port":6379,"max_capacity_gb":10}\' --port 6555'
)
@serving(ServerSettings, "the sections 'server' and 'cache'", ServerConfig.load, shown_server)
def server(config: ServerConfig, log_level: str) -> None:
    """Run one cache of KV chunks for all engine processes of this host.

    Engines map it as shared memory and copy their chunks straight in and out; the socket carries
    names and page numbers only. It outlives them, so a restarted engine finds its chunks.
    """
    check_installed("a server", "starlette", "uvicorn")
    from kvferry.server.run import run_server

    run_server(config, log_level=log_level)
