"""The settings of a server as they take effect, for people and programs, without secrets."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from kvferry.engine_config import EngineConfig
from kvferry.engine_config.shown import shown_store
from kvferry.server.config import ServerConfig

__all__ = ["shown", "summary"]

_NOT_SHOWN = ("engine", "again", "http", "http_token")


def shown(config: ServerConfig) -> dict[str, Any]:
    """All settings by name, as JSON knows them; secrets are asterisks."""
    found: dict[str, Any] = {}
    for item in fields(ServerConfig):
        if item.name not in _NOT_SHOWN:
            value = getattr(config, item.name)
            found[item.name] = str(value) if isinstance(value, Path) else value
    found["endpoints"] = list(config.endpoints)
    found["http_host"], found["http_port"] = config.http or (None, 0)
    found["http_token"] = None if config.http_token is None else "***"
    found["engine"] = {
        item.name: getattr(config.engine, item.name)
        for item in fields(EngineConfig)
        if item.name != "stores"
    }
    found["stores"] = [shown_store(store) for store in config.engine.stores]
    return found


def summary(config: ServerConfig, http_url: str | None) -> str:
    """One line for the log: where it listens, the pool, the stores."""
    stores = [
        f"{store.name} ({store.type} at {store.address}"
        + (f", {store.max_capacity_gb:g} GB)" if store.max_capacity_gb else ")")
        for store in config.engine.stores
    ]
    return "; ".join(
        [
            f"engines at {', '.join(config.endpoints)}",
            f"HTTP at {http_url}" if http_url else "no HTTP",
            f"pool of {config.engine.max_local_cpu_size:g} GB, {config.engine.eviction_policy}"
            + (", huge pages" if config.hugepages else ""),
            f"stores: {', '.join(stores) or 'none'}",
        ]
    )
