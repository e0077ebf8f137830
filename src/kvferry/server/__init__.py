"""The cache server: one pool in shared memory for every engine process of a host.

    Client          the engine's side                          client/
    protocol        requests and replies                       protocol.py
    Listener        sockets: bytes to messages                 kvferry.rpc
    Dispatcher      the loop: messages to replies              dispatch.py
    Handlers        what each request does                     sessions/handlers.py
    Registry        who may register                           sessions/registry.py
    Sessions        who holds what, and until when             sessions/sessions.py
    IdentityShard   the cache of one identity                  sessions/shard.py
    StoreWatch      which stores can be asked                  sessions/store_watch.py
    Pools           pages within one budget                    memory/pools.py, memory/segments.py
    restart         from one server to the next                memory/restart.py
    Server          all of these, from start to end            server.py
    HttpSide        health, metrics, control                   http/
    run_server      signals and settings                       run.py

Engines register, are told of a shared segment, map it, and copy their chunks straight in and out.
The socket carries hashes and page numbers only.

Names load on first use: settings can be read without the rest.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_HOME = {
    "AsyncClient": "kvferry.server.client.aio",
    "Client": "kvferry.server.client.sync",
    "ServerConfig": "kvferry.config.server",
}

if TYPE_CHECKING:
    from kvferry.config.server import ServerConfig
    from kvferry.server.client.aio import AsyncClient
    from kvferry.server.client.sync import Client

__all__ = ["AsyncClient", "Client", "ServerConfig"]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kvferry.server' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
