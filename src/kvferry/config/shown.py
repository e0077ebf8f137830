"""The settings of stores and servers as they take effect, without secrets."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from kvferry.config.server import ServerConfig
from kvferry.config.setting import Settings, specs
from kvferry.config.stores import StoreConfig

__all__ = ["server_summary", "shown_server", "shown_settings", "shown_store"]

_NOT_PLAIN = ("cache", "again", "http")


def shown_store(store: StoreConfig) -> dict[str, Any]:
    """The settings of a store that differ from the defaults, flat; secrets are asterisks."""
    shown: dict[str, Any] = {"name": store.name, "type": store.type, "address": store.address}
    shown["max_capacity_gb"] = store.max_capacity_gb
    if store.max_capacity_gb:
        shown["eviction"] = asdict(store.eviction)
    for name, value in store.changed():
        if name == "params":
            shown[name] = dict.fromkeys(store.params, "***")
        elif name not in (*shown, "client", "eviction"):
            shown[name] = value
    return {**shown, **dict(store.client.changed() if store.client is not None else ())}


def shown_settings(settings: Settings) -> dict[str, Any]:
    """All of them by name; secrets are asterisks."""
    return {
        name: "***" if spec.secret and getattr(settings, name) else getattr(settings, name)
        for name, spec in specs(type(settings)).items()
        if not spec.private
    }


def shown_server(config: ServerConfig) -> dict[str, Any]:
    """All settings by name, as JSON knows them; secrets are asterisks."""
    return {
        **{name: value for name, value in shown_settings(config).items() if name not in _NOT_PLAIN},
        "endpoints": list(config.endpoints),
        "http_host": config.http[0] if config.http else None,
        "http_port": config.http[1] if config.http else 0,
        "cache": {n: v for n, v in asdict(config.cache).items() if n not in ("stores", "tuning")},
        "stores": [shown_store(store) for store in config.cache.stores],
    }


def server_summary(config: ServerConfig, http_url: str | None) -> str:
    """One line for the log: where it listens, the pool, the stores."""
    stores = [
        f"{store.name} ({store.type} at {store.address}"
        + (f", {store.max_capacity_gb:g} GB)" if store.max_capacity_gb else ")")
        for store in config.cache.stores
    ]
    return "; ".join(
        [
            f"engines at {', '.join(config.endpoints)}",
            f"HTTP at {http_url}" if http_url else "no HTTP",
            f"pool of {config.cache.max_local_cpu_size:g} GB, {config.cache.eviction_policy}"
            + (", huge pages" if config.cache.hugetlb else "")
            + (", taken at once" if config.prefault else ", taken as it fills"),
            f"stores: {', '.join(stores) or 'none'}",
        ]
    )
