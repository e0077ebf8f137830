"""The keys of HiCache's extra config that are ours.

    {"url": "redis://cache-1:6379", "lookup_timeout_s": 0.25, "connections": 16, "ttl_s": 86400}

They are those of `kvferry.config.integrations.SglangSettings` and of `kvferry.ClientConfig`, and
win over the file that ``KVFERRY_CONFIG_FILE`` names, that over the environment. What SGLang itself
reads out of the same object is left alone; a key that nobody knows is an error, because a time
limit that is misspelt would be none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvferry.config import ClientConfig, load_client_config
from kvferry.config.integrations import SglangSettings, own_and_client
from kvferry.errors import ConfigError

__all__ = ["Settings", "read_settings"]

# Keys of the same object that SGLang reads, in one version or another.
_OF_SGLANG = frozenset(
    (
        *("backend_name", "module_path", "class_name", "interface_v1", "tp_lcm_size"),
        *("prefetch_threshold", "prefetch_timeout_base", "prefetch_timeout_per_ki_token"),
        *("hicache_storage_pass_prefix_keys", "extra_backend_tag", "allocator"),
    )
)
_WHERE = "HiCache extra config"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the backend is told.

    Attributes:
        client: How the server is reached.
        own: Limits, and where the weights are.
        tag: Separates deployments that shall not share (``extra_backend_tag``).
    """

    client: ClientConfig
    own: SglangSettings = field(default_factory=SglangSettings)
    tag: str = ""


def read_settings(extra: Mapping[str, Any] | None) -> Settings:
    """The settings of an extra config.

    Raises:
        ConfigError: A key is unknown or its value cannot be; the text names the key.
    """
    extra = extra or {}
    own, client = own_and_client(SglangSettings, extra, _WHERE, _OF_SGLANG)
    try:
        config = load_client_config(own.config_file, url=own.url, **client)
    except ConfigError as error:
        raise ConfigError(f"{_WHERE}: {error}") from None
    return Settings(client=config, own=own, tag=str(extra.get("extra_backend_tag", "")))
