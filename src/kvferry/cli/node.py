"""`kvferry node`: a cache server for chunks and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kvferry.cli.options import setting_options
from kvferry.config.node import NodeSettings

__all__ = ["node"]


@click.command(
    epilog="Every setting is also KVFERRY_NODE_ and its name in capitals (KVFERRY_NODE_SIZE_GB), "
    "and a line in the section 'node' of the file.  "
    "SIGTERM and Ctrl-C end it; with --state it keeps what it holds.  "
    "Exit codes: 0 ended, 1 failed, 2 usage.  "
    "Example: kvferry node --listen 127.0.0.1:6400 --size-gb 10 --state /var/tmp/node.state"
)
@click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="YAML with the section 'node'.  [default: that of KVFERRY_CONFIG_FILE]",
)
@setting_options(NodeSettings)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
def node(**options: Any) -> None:
    """Serve values from memory to any client for Redis or Valkey.

    It holds chunks of KV and nothing else: no disk, no replication, no other types. Its addresses
    go to stdout, one a line, once it listens.
    """
    from kvferry.config.node import load_node_settings
    from kvferry.node.run import run_node

    config, log_level = options.pop("config"), options.pop("log_level")
    settings = load_node_settings(config, **options)
    run_node(settings, lambda found: click.echo("\n".join(found)), log_level=log_level)
