"""What LMCache 0.5 loads of us, by the name of this module.

    KvferryClient      for ``native_plugin`` of its MP server; `LMCacheRedisClient` is the same
    KvferryL2Adapter   for ``plugin`` of its MP server: knows each key's fate, and the server's
    KvferryAdapter     for ``remote_storage_plugins`` of the in-process engine
    KvferryConnector   for ``external://host:port/kvferry.integrations.lmcache/?connector_name=...``

The client needs nothing of LMCache. The others import it, so they are imported when asked for. See
docs/guides/lmcache.md.
"""

from __future__ import annotations

import importlib
from typing import Any

from kvferry.integrations.lmcache.client import KvferryClient, LMCacheRedisClient

__all__ = [
    "KvferryAdapter",
    "KvferryClient",
    "KvferryConnector",
    "KvferryL2Adapter",
    "LMCacheRedisClient",
]

_NEED_LMCACHE = {
    "KvferryAdapter": "remote",
    "KvferryConnector": "remote",
    "KvferryL2Adapter": "l2",
}


def __getattr__(name: str) -> Any:
    module = _NEED_LMCACHE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
