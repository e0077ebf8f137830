"""The table of clients that can be measured: a name, and how to connect one."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from kvferry.config import CONNECTIONS_DEFAULT, ClientConfig
from kvferry.lab.bench_adapters import (
    AsyncRedisPy,
    BenchClient,
    FerryClient,
    ThreadedClient,
    load,
    redis_arguments,
)
from kvferry.lab.bench_adapters_other import GlideClient, LMCacheClient, MemtierClient

__all__ = ["CLIENT_TYPES", "config_url", "open_client"]


def open_client(kind: str, config: ClientConfig, connections: int | None = None) -> BenchClient:
    """Connect a client of a kind of CLIENT_TYPES.

    Args:
        connections: Sockets to the server; None leaves the choice to the client.

    Raises:
        NotInstalled: Its package or program is missing.
    """
    return CLIENT_TYPES[kind](config, connections)


def config_url(config: ClientConfig) -> str:
    """The URL of a server, with its credentials."""
    user = quote(config.username or "", safe="")
    secret = f"{user}:{quote(config.password, safe='')}@" if config.password is not None else ""
    if config.unix_path is not None:
        return f"unix://{secret}{quote(config.unix_path)}?db={config.db}"
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"redis://{secret}{host}:{config.port}/{config.db}"


def _native(config: ClientConfig, connections: int | None) -> BenchClient:
    load("kvferry._native", "kvferry")
    client = load("kvferry.client.sync", "kvferry").RedisClient.from_url(
        config_url(config), connections=connections
    )
    return FerryClient("native", client, connections or CONNECTIONS_DEFAULT)


def _pure(config: ClientConfig, connections: int | None) -> BenchClient:
    client = load("kvferry.client.pure", "kvferry").PureRedisClient.from_url(config_url(config))
    return FerryClient("pure", client, 1)  # it has one, whatever is asked for


def _redis_py(config: ClientConfig, connections: int | None) -> BenchClient:
    redis = load("redis", "redis")
    arguments = redis_arguments(config)
    return ThreadedClient(
        "redis-py", lambda: redis.Redis(**arguments), connections or CONNECTIONS_DEFAULT
    )


CLIENT_TYPES: dict[str, Callable[[ClientConfig, int | None], BenchClient]] = {
    "native": _native,
    "pure": _pure,
    "redis-py": _redis_py,
    "redis-py-async": lambda config, n: AsyncRedisPy(config, n or CONNECTIONS_DEFAULT),
    "glide": lambda config, n: GlideClient(config, n or CONNECTIONS_DEFAULT),
    "lmcache": lambda config, n: LMCacheClient(config, n or CONNECTIONS_DEFAULT),
    "memtier": lambda config, n: MemtierClient(config, n or CONNECTIONS_DEFAULT),
}
