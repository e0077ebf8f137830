"""`kvferry node`: a cache server for chunks and nothing else."""

from __future__ import annotations

import click

from kvferry.cli.serving import serving
from kvferry.config.node import NodeSettings

__all__ = ["node"]


@click.command(
    epilog="Every setting is also KVFERRY_NODE_ and its name in capitals (KVFERRY_NODE_SIZE_GB), "
    "and a line in the section 'node' of the file.  "
    "SIGTERM and Ctrl-C end it; with --state it keeps what it holds.  "
    "Exit codes: 0 ended, 1 failed, 2 usage.  "
    "Example: kvferry node --listen 127.0.0.1:6400 --size-gb 10 --state /var/tmp/node.state"
)
@serving(NodeSettings, "the section 'node'", NodeSettings.load)
def node(settings: NodeSettings, log_level: str) -> None:
    """Serve values from memory to any client for Redis or Valkey.

    It holds chunks of KV and nothing else: no disk, no replication, no other types. Its addresses
    go to stdout, one a line, once it listens.
    """
    from kvferry.sharing.node import run_node

    run_node(settings, lambda found: click.echo("\n".join(found)), log_level=log_level)
