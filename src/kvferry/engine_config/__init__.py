"""The settings of an engine: from the call, the environment and a YAML file.

    # kvferry.yaml, mode 0600 where it holds a secret
    engine:
      chunk_size: 256
      max_local_cpu_size: 20
      stores:
        - {type: redis, url: "redis://cache-1:6379", max_capacity_gb: 500}

    config = EngineConfig.load("kvferry.yaml", retrieve_timeout_s=2)

The call wins over the environment, that over the file, and that over the defaults, setting by
setting. In the environment a setting is ``KVFERRY_`` or, weaker, ``LMCACHE_`` and its name in
capitals; lists and mappings are JSON there. Without a path the file is that of
``KVFERRY_CONFIG_FILE``, else that of ``LMCACHE_CONFIG_FILE``. A file of LMCache, which has no
sections, is understood as it is.

Stores come from `local_disk`, `remote_url` and `stores`, and are asked in this order. Redis stores
take what they do not say themselves from the section ``client`` of the same file: all of it if they
name no server, else its limits and sizes. The first of them also follows ``KVFERRY_RESP_*`` as a
client does, and takes what is still open from ``LMCACHE_RESP_*``, as with LMCache; where there is
none, a server named there becomes one.

What is unknown, of a wrong type, or out of range is an error that says what to write. Nothing shows
a secret.
"""

from __future__ import annotations

from kvferry.engine_config.engine import EngineConfig, chosen_config
from kvferry.engine_config.sources import Examined, examine
from kvferry.engine_config.stores import EvictionConfig, StoreConfig

__all__ = [
    "EngineConfig",
    "EvictionConfig",
    "Examined",
    "StoreConfig",
    "chosen_config",
    "examine",
]
