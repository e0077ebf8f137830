"""The cache server: one pool in shared memory for every engine process of a host.

    Client          the engine's side                          client/
    protocol        what is said                               protocol.py
    Listener        sockets: bytes to messages                 loop/listener.py, loop/zmtp.py
    Dispatcher      the loop: messages to replies              loop/dispatch.py, loop/turns.py
    Handlers        what each message does                     sessions/handlers.py
    Registry        who may register                           sessions/registry.py
    Sessions        who holds what, and until when             sessions/sessions.py
    IdentityShard   one identity: an engine, its memory        sessions/shard.py
    Pools           pages within one budget                    memory/pools.py, memory/segments.py
    StoreWatch      which stores can be asked                  sessions/store_watch.py
    Server          all of it, from start to end               server.py, memory/restart.py
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
