"""What of new settings a running server takes over."""

from __future__ import annotations

from typing import Any

from kvferry.config.server import ServerConfig
from kvferry.config.setting import Settings, specs

__all__ = ["merged"]

_SECRET = ("token", "http_token")
# What can change while the server runs; the rest needs a restart.
LIVE = ("lease_s", "heartbeat_s", "dead_after_s", "client_share", "drain_s", *_SECRET)
LIVE_ENGINE = ("lookup_timeout_s", "retrieve_timeout_s", "max_local_cpu_size")


def merged(config: ServerConfig, wanted: ServerConfig) -> tuple[ServerConfig, list[str]]:
    """The settings in force from now on, and in words what differs from before."""
    texts: list[str] = []
    cache = config.cache
    for name, old, new in _differences(cache, wanted.cache):
        if name in LIVE_ENGINE:
            cache = cache.replace(**{name: new})
        texts.append(_described(name, old, new, name in LIVE_ENGINE))
    config = config.replace(cache=cache)
    for name, old, new in _differences(config, wanted):
        if name in ("cache", "again"):
            continue
        if name in LIVE:
            config = config.replace(**{name: new})
        texts.append(_described(name, old, new, name in LIVE))
    return config, texts


def _differences(one: Settings, other: Settings) -> list[tuple[str, Any, Any]]:
    pairs = [(name, getattr(one, name), getattr(other, name)) for name in specs(type(one))]
    return [(name, old, new) for name, old, new in pairs if old != new]


def _described(name: str, old: object, new: object, live: bool) -> str:
    if not live:
        return f"{name} has changed and needs a restart"
    return f"{name} has changed" if name in _SECRET else f"{name} is {new} now, was {old}"
