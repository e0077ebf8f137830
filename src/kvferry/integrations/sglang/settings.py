"""The keys of HiCache's extra config that are ours.

    {"url": "redis://cache-1:6379", "lookup_timeout_s": 0.25, "connections": 16, "ttl_s": 86400}

They are those of `kvferry.config.integrations.SglangSettings` and of `kvferry.ClientConfig`, and
win over the file that ``KVFERRY_CONFIG_FILE`` names, that over the environment. What SGLang itself
reads out of the same object is left alone; a key that nobody knows is an error, because a time
limit that is misspelt would be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvferry.config.integrations import SglangSettings, read_with_client

__all__ = ["read_settings"]

# Keys of the same object that SGLang reads, in one version or another.
_OF_SGLANG = frozenset(
    (
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "allocator"),
    )
)


def read_settings(extra: Mapping[str, Any] | None) -> SglangSettings:
    """The settings of an extra config.

    Raises:
        ConfigError: A key is unknown or its value cannot be; the text names the key.
    """
    return read_with_client(SglangSettings, extra or {}, "HiCache extra config", _OF_SGLANG)
