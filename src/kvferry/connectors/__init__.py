"""Stores behind the cache: one interface, and drivers for servers, disks and memory.

    space = Space(prefix="kvf:...:", identity=digest, value_size_bytes=4 << 20)
    with load_connector({"type": "file", "path": "kv", "capacity_gb": 100}, space) as store:
        store.batch_set(keys, pages)
        store.batch_get(keys, pages).prefix_len

docs/guides/new-connector.md tells how to write another one.
"""

from __future__ import annotations

from kvferry.connectors.base import Connector, Space, Ticket, Usage
from kvferry.connectors.blocking import BlockingConnector
from kvferry.connectors.load import load_connector

__all__ = ["BlockingConnector", "Connector", "Space", "Ticket", "Usage", "load_connector"]
