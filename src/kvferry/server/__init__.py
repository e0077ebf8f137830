"""The cache server: one pool in shared memory for every engine process of a host.

    protocol    what is said                               protocol.py
    Client      the engine's side                          client.py
    Server      the other one                              server.py

Engines register, are told of a shared segment, map it, and copy their chunks straight in and out.
The socket carries hashes and page numbers only.

Names load on first use: settings can be read where pyzmq and msgspec are not installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from kvferry.errors import ConfigError

_HOME = {
    "AsyncClient": "kvferry.server.async_client",
    "Client": "kvferry.server.client",
    "ServerConfig": "kvferry.server.config",
}

if TYPE_CHECKING:
    from kvferry.server.async_client import AsyncClient
    from kvferry.server.client import Client
    from kvferry.server.config import ServerConfig

__all__ = ["AsyncClient", "Client", "ServerConfig"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kvferry.server' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        if error.name not in ("zmq", "msgspec"):
            raise
        raise ConfigError(
            f"kvferry.server.{name} needs {error.name}, which is not installed: "
            "run `pip install 'kvferry[server]'`"
        ) from error
