"""What of new settings a running server takes over."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from kvferry.server.config import ServerConfig

__all__ = ["merged"]

# What can change while the server runs; the rest needs a restart.
LIVE = ("lease_s", "heartbeat_s", "dead_after_s", "client_share", "drain_s", "http_token")
LIVE_ENGINE = ("lookup_timeout_s", "retrieve_timeout_s", "max_local_cpu_size")
_SECRET = ("http_token",)


def merged(config: ServerConfig, wanted: ServerConfig) -> tuple[ServerConfig, list[str]]:
    """The settings in force from now on, and in words what differs from before."""
    texts: list[str] = []
    engine = config.engine
    for name, old, new in _differences(engine, wanted.engine):
        if name in LIVE_ENGINE:
            engine = replace(engine, **{name: new})
        texts.append(_told(name, old, new, name in LIVE_ENGINE))
    config = replace(config, engine=engine)
    for name, old, new in _differences(config, wanted):
        if name == "engine":
            continue
        if name in LIVE:
            config = replace(config, **{name: new})
        texts.append(_told(name, old, new, name in LIVE))
    return config, texts


def _differences(one: object, other: object) -> list[tuple[str, Any, Any]]:
    names = [field.name for field in fields(one)]  # type: ignore[arg-type]
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in names]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _told(name: str, old: object, new: object, live: bool) -> str:
    if not live:
        return f"{name} has changed and needs a restart"
    return f"{name} has changed" if name in _SECRET else f"{name} is {new} now, was {old}"
