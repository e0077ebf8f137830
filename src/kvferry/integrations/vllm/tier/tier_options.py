"""The options of a tier, as they stand in vLLM's ``secondary_tiers``.

    {"type": "KvferryTier", "module_path": "kvferry.integrations.vllm.tier",
     "url": "redis://cache-1:6379", "connections": 8, "lookup_timeout_ms": 40}

Where the store is: `url` (``redis://``, ``resp://``, ``valkey://``, ``rediss://``, with
``+cluster`` and ``+sentinel``; ``unix://``; ``file:///directory`` with `capacity_gb`), any field of
`kvferry.ClientConfig` beside it, or `store` with all of a store as in an engine's configuration
file. What is not said comes from the environment and the file of ``KVFERRY_CONFIG_FILE``, as for
`RedisClient.from_file`. vLLM writes these options to its log, so secrets belong there, or in a
`password_file`, which is read again for every connection.

An option that nobody knows, or a value that cannot be, is one `ConfigError` that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.config import StoreConfig
from kvferry.config.integrations import VllmTierSettings
from kvferry.config.remote_sources import Address
from kvferry.config.tuning import TierLimits
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.connectors.redis import RedisConnector

__all__ = ["TierOptions", "read_options"]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the options of a tier say.

    Attributes:
        own: Each of them.
        store: The store that they name.
        limits: How long the tier waits, and how much may be on its way.
    """

    own: VllmTierSettings
    store: StoreConfig
    limits: TierLimits

    @property
    def store_name(self) -> str:
        """The name of the store in metrics: its own, or its type."""
        return self.store.name or self.store.type

    def open(self, space: Space) -> Connector:
        """Open the store."""
        if self.store.client is None:
            return load_connector(self.store.connector_spec(), space)
        serde = "naive" if self.own.remote_serde == "auto" else self.own.remote_serde
        return RedisConnector(space, self.store.client, serde=serde)

    def open_source(self, space: Space, address: Address) -> Connector:
        """Open a node that a request names: by the user of the store, with its TLS and limits."""
        # What few requests ask of many nodes is asked, and not followed.
        return RedisConnector(space, self.own.client.for_node(*address).replace(presence="off"))


def read_options(options: Mapping[str, Any], view_bytes: int) -> TierOptions:
    """Check the options of a tier.

    Args:
        options: Without ``type`` and ``module_path``.
        view_bytes: Size of the memory that chunks are in; half of it may be on its way out.

    Raises:
        ConfigError: An option is unknown or cannot be; secrets are never quoted.
    """
    own = VllmTierSettings.read(options)
    most = min(own.tuning.store_bytes_max, max(1, view_bytes // 2))
    limits = own.tuning.replace(store_bytes_max=most)
    if own.lookup_timeout_s is not None:
        limits = limits.replace(lookup_timeout_s=own.lookup_timeout_s)
    store = _store(own)
    if store.client is None and own.remote_serde != "naive":
        raise ConfigError(f"remote_serde is for servers, not for {store.type} stores; leave it out")
    if own.remote_kv_sources and (own.store is not None or store.client is None):
        raise ConfigError("remote_kv_sources needs a url of a server: nodes are reached like it")
    return TierOptions(own, store, limits)


def _store(own: VllmTierSettings) -> StoreConfig:
    if own.store is not None:
        return StoreConfig.of(**own.store)
    if own.directory is not None:
        size = own.max_capacity_gb
        return StoreConfig.of(type="file", path=own.directory, max_capacity_gb=size)
    return StoreConfig(type="redis", client=own.client)
