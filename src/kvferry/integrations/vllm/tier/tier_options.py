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

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.config import StoreConfig
from kvferry.config.integrations import VllmTierSettings
from kvferry.config.remote_sources import Address, AllowedHosts
from kvferry.config.tuning import TierLimits
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.connectors.redis import RedisConnector

__all__ = ["TierOptions", "read_options"]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the options of a tier say.

    Attributes:
        open: Opens the store, with a space.
        address: Where that is, for people and without secrets.
        limits: How long it waits, and how much may be on its way.
        identity: A text of the user that enters the identity.
        kv_events: Whether to tell vLLM of chunks that the store has acknowledged.
        store: The name of the store in metrics: its own, or its type.
        sources: Whose nodes requests may name; None: nobody's.
        open_source: Opens a node that a request names.
        auto: Whether what loads are seen to bring decides how chunks are written.
    """

    open: Callable[[Space], Connector]
    address: str
    limits: TierLimits
    identity: str = ""
    kv_events: bool = False
    store: str = "redis"
    sources: AllowedHosts | None = None
    open_source: Callable[[Space, Address], Connector] | None = None
    auto: bool = False


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
    sources = AllowedHosts(own.remote_kv_sources) if own.remote_kv_sources else None
    return TierOptions(
        open=_opener(own, store),
        address=store.address,
        limits=limits,
        identity=own.weights_version,
        kv_events=own.enable_kv_events,
        store=store.name or store.type,
        sources=sources,
        open_source=_source_opener(own, store) if sources else None,
        auto=own.remote_serde == "auto",
    )


def _store(own: VllmTierSettings) -> StoreConfig:
    if own.store is not None:
        return StoreConfig.of(**own.store)
    if own.directory is not None:
        size = own.max_capacity_gb
        return StoreConfig.of(type="file", path=own.directory, max_capacity_gb=size)
    return StoreConfig(type="redis", client=own.client)


def _opener(own: VllmTierSettings, store: StoreConfig) -> Callable[[Space], Connector]:
    config, spec = store.client, store.connector_spec()
    serde = "naive" if own.remote_serde == "auto" else own.remote_serde
    if config is None and own.remote_serde != "naive":
        raise ConfigError(f"remote_serde is for servers, not for {store.type} stores; leave it out")

    def open_store(space: Space) -> Connector:
        if config is not None:
            return RedisConnector(space, config, serde=serde)
        return load_connector(spec, space)

    return open_store


def _source_opener(
    own: VllmTierSettings, store: StoreConfig
) -> Callable[[Space, Address], Connector]:
    """Nodes are reached as the store is: by the same user, with the same TLS and limits."""
    config = store.client
    if own.store is not None or config is None:
        raise ConfigError("remote_kv_sources needs a url of a server: nodes are reached like it")

    def open_source(space: Space, address: Address) -> Connector:
        # What few requests ask of many nodes is asked, and not followed.
        return RedisConnector(space, config.for_node(*address).replace(presence="off"))

    return open_source
