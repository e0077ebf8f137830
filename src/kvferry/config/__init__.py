"""Every setting once: what it may be, where it may stand, and which place wins.

    # kvferry.yaml, mode 0600 where it holds a secret
    cache:
      chunk_size: 256
      max_local_cpu_size: 20
      stores:
        - {type: redis, url: "redis://cache-1:6379", max_capacity_gb: 500}

    config = CacheConfig.load("kvferry.yaml", retrieve_timeout_s=2)

A setting is a field of a class here (`ClientConfig`, `CacheConfig`, `StoreConfig`,
`ServerSettings`, and those of `config.integrations`). The call wins over the file, that over the
environment, and that over the defaults, setting by setting. In the environment a setting of the
cache is ``KVFERRY_`` and its name in capitals; where no file is named also ``LMCACHE_``, which is
weaker; lists and mappings are JSON there. Without a path the file is that of
``KVFERRY_CONFIG_FILE``, else that of ``LMCACHE_CONFIG_FILE``. A file of LMCache, which has no
sections, is understood as it is.

Stores come from `local_disk`, `remote_url` and `stores`, and are asked in this order. Redis stores
take what they do not say themselves from the section ``client`` of the same file: all of it if they
name no server, else its limits and sizes. What the first of them leaves open comes from
``KVFERRY_RESP_*``, then from ``LMCACHE_RESP_*``; where there is none, a server named there becomes
one.

What is unknown, of a wrong type, or out of range is an error that says what to write. Nothing shows
a secret.
"""

from __future__ import annotations

from kvferry.config.cache import CacheConfig, Examined, chosen_config, examine
from kvferry.config.client import (
    CONNECTIONS_DEFAULT,
    WORKERS_DEFAULT,
    ClientConfig,
    load_client_config,
    save_client_settings,
)
from kvferry.config.stores import EvictionConfig, StoreConfig

__all__ = [
    "CONNECTIONS_DEFAULT",
    "WORKERS_DEFAULT",
    "CacheConfig",
    "ClientConfig",
    "EvictionConfig",
    "Examined",
    "StoreConfig",
    "chosen_config",
    "examine",
    "load_client_config",
    "save_client_settings",
]
