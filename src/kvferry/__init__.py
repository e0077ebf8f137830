"""kvferry: KV-cache storage for LLM inference.

    >>> import kvferry
    >>> with kvferry.embedded_store() as store, kvferry.RedisClient.from_url(store.url) as client:
    ...     client.set("greeting", b"hello")
    ...     buffer = bytearray(5)
    ...     client.get("greeting", buffer), bytes(buffer)
    (True, b'hello')

Names load on first use, so that ``import kvferry`` stays light and works without the extension.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOME = {
    "AsyncCacheNamespace": "kvferry.client.namespace",
    "AsyncRedisClient": "kvferry.client.aio",
    "BatchResult": "kvferry.client.batch",
    "CacheNamespace": "kvferry.client.namespace",
    "ClientConfig": "kvferry.config",
    "Credentials": "kvferry.base.credentials",
    "TieredCache": "kvferry.sharing",
    "CacheConfig": "kvferry.config",
    "EvictionConfig": "kvferry.config",
    "Hashes": "kvferry.cache",
    "Identity": "kvferry.chunks.identity",
    "KVFerryError": "kvferry.base.errors",
    "KVLayout": "kvferry.chunks.layout",
    "PagePool": "kvferry.chunks.pool",
    "RedisClient": "kvferry.client.sync",
    "Status": "kvferry.client.batch",
    "StoreConfig": "kvferry.config",
    "embedded_store": "kvferry.embedded.store",
    "load_client_config": "kvferry.config",
}

if TYPE_CHECKING:
    from kvferry.base.credentials import Credentials
    from kvferry.base.errors import KVFerryError
    from kvferry.cache import Hashes
    from kvferry.chunks.identity import Identity
    from kvferry.chunks.layout import KVLayout
    from kvferry.chunks.pool import PagePool
    from kvferry.client.aio import AsyncRedisClient
    from kvferry.client.batch import BatchResult, Status
    from kvferry.client.namespace import AsyncCacheNamespace, CacheNamespace
    from kvferry.client.sync import RedisClient
    from kvferry.config import (
        CacheConfig,
        ClientConfig,
        EvictionConfig,
        StoreConfig,
        load_client_config,
    )
    from kvferry.embedded.store import embedded_store
    from kvferry.sharing import TieredCache

__all__ = [
    "AsyncCacheNamespace",
    "AsyncRedisClient",
    "BatchResult",
    "CacheConfig",
    "CacheNamespace",
    "ClientConfig",
    "Credentials",
    "EvictionConfig",
    "Hashes",
    "Identity",
    "KVFerryError",
    "KVLayout",
    "PagePool",
    "RedisClient",
    "Status",
    "StoreConfig",
    "TieredCache",
    "__version__",
    "embedded_store",
    "load_client_config",
]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'kvferry' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
