"""A store's settings for people and programs, without secrets."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any

from kvferry.config import ClientConfig
from kvferry.engine_config.stores import StoreConfig

__all__ = ["shown_store"]


def shown_store(store: StoreConfig) -> dict[str, Any]:
    """What of it differs from the defaults, flat; secrets are asterisks."""
    shown: dict[str, Any] = {"name": store.name, "type": store.type, "address": store.address}
    shown["max_capacity_gb"] = store.max_capacity_gb
    if store.max_capacity_gb:
        shown["eviction"] = asdict(store.eviction)
    for item in fields(StoreConfig):
        value = getattr(store, item.name)
        if item.name == "params":
            shown.update({"params": dict.fromkeys(value, "***")} if value else {})
        elif item.name not in (*shown, "client", "eviction") and value != item.default:
            shown[item.name] = value
    for item in fields(ClientConfig) if store.client is not None else ():
        value = getattr(store.client, item.name)
        if value != item.default:
            secret = "password" in item.name or item.name == "credentials"
            shown[item.name] = "***" if secret else value
    return shown
