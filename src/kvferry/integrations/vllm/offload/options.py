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

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from kvferry._url import nearest
from kvferry.config import ClientConfig
from kvferry.config_file import load_client_config
from kvferry.connectors.base import Connector, Space
from kvferry.connectors.load import load_connector
from kvferry.connectors.redis import RedisConnector
from kvferry.credentials import Credentials
from kvferry.engine_config import StoreConfig
from kvferry.errors import ConfigError
from kvferry.integrations.vllm.offload.core import TierLimits

__all__ = ["TierOptions", "read_options"]

# Option: field of `TierLimits`, factor, largest value.
_LIMITS = {
    "lookup_timeout_ms": ("lookup_timeout_s", 1e-3, 60e3),
    "load_timeout_ms": ("load_timeout_s", 1e-3, 600e3),
    "load_stall_ms": ("load_stall_s", 1e-3, 600e3),
    "store_timeout_ms": ("store_timeout_s", 1e-3, 600e3),
    "store_mb_max": ("store_bytes_max", float(1 << 20), 1e9),
    "drain_timeout_ms": ("drain_timeout_s", 1e-3, 600e3),
}
_OWN = ("url", "store", "capacity_gb", "config_file", "password_file", "identity", "locality")
_OWN_SWITCHES = ("enable_kv_events",)
_CLIENT = tuple(item.name for item in fields(ClientConfig) if item.name != "credentials")
_FILE_URL = "file://"
_LOCALITIES = ("LOCAL", "REMOTE")


@dataclass(frozen=True, slots=True)
class TierOptions:
    """What the options of a tier say.

    Attributes:
        open: Opens the store, with a space.
        address: Where that is, for people and without secrets.
        limits: Fields of `TierLimits` that were given.
        identity: A text of the user that enters the identity.
        kv_events: Whether to tell vLLM of chunks that the store has acknowledged.
        locality: "LOCAL", "REMOTE" or None, as vLLM's filters of tiers and events have it.
        store: The name of the store in metrics: its own, or its type.
    """

    open: Callable[[Space], Connector]
    address: str
    limits: Mapping[str, Any]
    identity: str = ""
    kv_events: bool = False
    locality: str | None = None
    store: str = "redis"


def read_options(options: Mapping[str, Any], view_bytes: int) -> TierOptions:
    """Check the options of a tier.

    Args:
        options: Without ``type`` and ``module_path``.
        view_bytes: Size of the memory that chunks are in; half of it may be on its way out.

    Raises:
        ConfigError: An option is unknown or cannot be; secrets are never quoted.
    """
    given = {name: value for name, value in options.items() if value is not None}
    known = (*_OWN, *_OWN_SWITCHES, *_LIMITS, *_CLIENT)
    for name in given:
        if name not in known:
            raise ConfigError(f"KvferryTier has no option {name!r}{nearest(str(name), known)}")
    limits: dict[str, Any] = {"store_bytes_max": max(1, view_bytes // 2)}
    for name, (field, factor, highest) in _LIMITS.items():
        if name in given:
            number = _number(name, given[name], highest) * factor
            limits[field] = int(number) if field == "store_bytes_max" else number
    TierLimits(**limits)
    locality = given.get("locality")
    if locality is not None and locality not in _LOCALITIES:
        raise ConfigError(f"locality={locality!r} is unknown; use {' or '.join(_LOCALITIES)}")
    events = given.get("enable_kv_events", False)
    if not isinstance(events, bool):
        raise ConfigError("enable_kv_events is no switch; use true or false")
    open_store, address, store = _store(given)
    return TierOptions(
        open=open_store,
        address=address,
        limits=limits,
        identity=_text(given, "identity") or "",
        kv_events=events,
        locality=locality,
        store=store,
    )


def _store(given: Mapping[str, Any]) -> tuple[Callable[[Space], Connector], str, str]:
    url = _text(given, "url")
    client = {name: given[name] for name in _CLIENT if name in given}
    if "store" in given:
        others = [
            name for name in ("url", "capacity_gb", "password_file", *client) if name in given
        ]
        if others:
            raise ConfigError(
                f"store says all of the store, so leave {others[0]} out, or put it there"
            )
        if not isinstance(given["store"], Mapping):
            raise ConfigError('store is no mapping; it begins with e.g. {"type": "redis"')
        return _of_spec(StoreConfig.of(**given["store"]))
    if url is not None and url.startswith(_FILE_URL):
        for name in ("password_file", *client):
            if name in given:
                raise ConfigError(f"{name} is for servers, not for {_FILE_URL}; leave it out")
        if "capacity_gb" not in given:
            raise ConfigError(f"a {_FILE_URL} store needs capacity_gb, in GB of 2**30 bytes")
        path, size = url.removeprefix(_FILE_URL), given["capacity_gb"]
        return _of_spec(StoreConfig.of(type="file", path=path, max_capacity_gb=size))
    if "capacity_gb" in given:
        raise ConfigError("capacity_gb is for file://; a server has its own limit (maxmemory)")
    config = _client_config(given, url, client)

    def open_redis(space: Space) -> Connector:
        return RedisConnector(space, config)

    return open_redis, config.address, "redis"


def _of_spec(store: StoreConfig) -> tuple[Callable[[Space], Connector], str, str]:
    spec = store.connector_spec()

    def open_spec(space: Space) -> Connector:
        return load_connector(spec, space)

    return open_spec, store.address, store.name or store.type


def _client_config(
    given: Mapping[str, Any], url: str | None, client: dict[str, Any]
) -> ClientConfig:
    if isinstance(client.get("nodes"), list):
        client["nodes"] = tuple(client["nodes"])
    file = _text(given, "password_file")
    if file is not None:
        if "password" in client:
            raise ConfigError("password and password_file are both set; keep one")
        client["credentials"] = _credentials_of(Path(file), client.pop("username", None))
    return load_client_config(_text(given, "config_file"), url=url, **client)


def _credentials_of(file: Path, username: str | None) -> Callable[[], Credentials]:
    def provide() -> Credentials:
        return Credentials(username, file.read_text(encoding="utf-8").strip())

    return provide


def _text(given: Mapping[str, Any], name: str) -> str | None:
    value = given.get(name)
    if value is not None and not isinstance(value, str):
        raise ConfigError(f"{name} is no text but a {type(value).__name__}")
    return value


def _number(name: str, value: Any, highest: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not math.isfinite(value) or not 0 < value <= highest:
        raise ConfigError(f"{name}={value!r} is no number above 0 and up to {highest:g}")
    return float(value)
