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
from functools import partial
from pathlib import Path
from typing import Any

from kvferry.base.credentials import Credentials
from kvferry.base.errors import ConfigError
from kvferry.config import ClientConfig, StoreConfig, load_client_config
from kvferry.config.integrations import VllmTierSettings, own_and_client
from kvferry.config.remote_sources import Address, AllowedHosts
from kvferry.config.tuning import TierLimits
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.connectors.redis import RedisConnector

__all__ = ["TierOptions", "read_options"]

_FILE_URL = "file://"
_SENTINEL = ("sentinel_master", "sentinel_username", "sentinel_password")


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
    own, client = own_and_client(VllmTierSettings, options, "KvferryTier")
    most = min(own.tuning.store_bytes_max, max(1, view_bytes // 2))
    limits = own.tuning.replace(store_bytes_max=most)
    if own.lookup_timeout_s is not None:
        limits = limits.replace(lookup_timeout_s=own.lookup_timeout_s)
    sources = AllowedHosts(own.remote_kv_sources) if own.remote_kv_sources else None
    open_source = _of_sources(own, dict(client)) if sources else None
    open_store, address, store = _store(own, client)
    return TierOptions(
        open=open_store,
        address=address,
        limits=limits,
        identity=own.weights_version,
        kv_events=own.enable_kv_events,
        store=store,
        sources=sources,
        open_source=open_source,
        auto=own.remote_serde == "auto",
    )


def _store(
    own: VllmTierSettings, client: dict[str, Any]
) -> tuple[Callable[[Space], Connector], str, str]:
    given = [name for name, _ in own.changed()]
    if own.store is not None:
        beside = [name for name in ("url", "max_capacity_gb", "password_file") if name in given]
        for name in (*beside, *client):
            raise ConfigError(f"store says all of the store, so leave {name} out, or put it there")
        return _of_spec(StoreConfig.of(**own.store), own)
    if own.url is not None and own.url.startswith(_FILE_URL):
        for name in (*(("password_file",) if own.password_file else ()), *client):
            raise ConfigError(f"{name} is for servers, not for {_FILE_URL}; leave it out")
        if own.max_capacity_gb is None:
            raise ConfigError(f"a {_FILE_URL} store needs max_capacity_gb, in GB of 2**30 bytes")
        path, size = own.url.removeprefix(_FILE_URL), own.max_capacity_gb
        return _of_spec(StoreConfig.of(type="file", path=path, max_capacity_gb=size), own)
    if own.max_capacity_gb is not None:
        raise ConfigError("max_capacity_gb is for file://; a server has its own limit (maxmemory)")
    config = _client_config(own, client)
    open_redis = partial(RedisConnector, config=config, serde=_first_serde(own))
    return open_redis, config.address, "redis"


def _of_sources(
    own: VllmTierSettings, client: dict[str, Any]
) -> Callable[[Space, Address], Connector]:
    """Nodes are reached as the store is: by the same user, with the same TLS and limits."""
    if own.store is not None or (own.url or "").startswith(_FILE_URL):
        raise ConfigError("remote_kv_sources needs a url of a server: nodes are reached like it")
    config = _client_config(own, client)

    def open_source(space: Space, address: Address) -> Connector:
        host, port = address
        place: dict[str, Any] = {"host": host, "port": port, "unix_path": None}
        place |= {"topology": "standalone", "nodes": (), "read_from": "primary"}
        place |= dict.fromkeys(("availability_zone", *_SENTINEL))
        # What few requests ask of many nodes is asked, and not followed.
        return RedisConnector(space, config.replace(**place, presence="off"))

    return open_source


def _first_serde(own: VllmTierSettings) -> str:
    return "naive" if own.remote_serde == "auto" else own.remote_serde


def _of_spec(
    store: StoreConfig, own: VllmTierSettings
) -> tuple[Callable[[Space], Connector], str, str]:
    spec = store.connector_spec()
    if store.type == "redis":
        spec["serde"] = _first_serde(own)
    elif own.remote_serde != "naive":
        raise ConfigError(f"remote_serde is for servers, not for {store.type} stores; leave it out")
    return partial(load_connector, spec), store.address, store.name or store.type


def _client_config(own: VllmTierSettings, client: dict[str, Any]) -> ClientConfig:
    if own.password_file is not None:
        if "password" in client:
            raise ConfigError("password and password_file are both set; keep one")
        file = Path(own.password_file)
        client["credentials"] = _credentials_of(file, client.pop("username", None))
    return load_client_config(own.config_file, url=own.url, **client)


def _credentials_of(file: Path, username: str | None) -> Callable[[], Credentials]:
    def provide() -> Credentials:
        return Credentials(username, file.read_text(encoding="utf-8").strip())

    return provide
