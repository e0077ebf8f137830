"""The table of clients that can be measured: a name, and how to connect one."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from kvferry.base.errors import UsageError
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import CONNECTIONS_DEFAULT, ClientConfig
from kvferry.config.url import show_endpoint
from kvferry_lab.bench.adapters import (
    POOL_CONNECTIONS,
    AsyncRedisPy,
    BenchClient,
    FerryClient,
    GlideClient,
    LMCacheClient,
    NotMeasured,
    PooledRedisPy,
    ThreadedClient,
    ZeroCopyClient,
    load,
    open_redis_py,
)
from kvferry_lab.bench.server_probe import server_of, shards_of

__all__ = ["CLIENT_TYPES", "config_url", "open_client"]

_IN_ADDRESS = (
    *("host", "port", "unix_path", "nodes", "db", "username", "password", "credentials"),
    *("tls", "topology", "sentinel_master"),
)


def open_client(kind: str, config: ClientConfig, connections: int | None = None) -> BenchClient:
    """Connect a client of a kind of CLIENT_TYPES.

    Args:
        connections: Sockets to each server; None leaves the choice to the client.

    Raises:
        NotInstalled: Its package or program is missing.
        NotMeasured: It cannot be measured on such a server.
    """
    return CLIENT_TYPES[kind](config, connections)


def config_url(config: ClientConfig) -> str:
    """The URL that says the same, for another process; it holds the secrets.

    Raises:
        UsageError: A function provides the credentials, which no URL can hold.
    """
    if config.credentials is not None:
        raise UsageError("credentials is a function; a URL needs user and password")
    user = quote(config.username or "", safe="")
    secret = f"{user}:{quote(config.password, safe='')}@" if config.password is not None else ""
    given = {name: getattr(config, name) for name, _ in config.changed() if name not in _IN_ADDRESS}
    if config.unix_path is not None:
        given["db"] = config.db
        return f"unix://{secret}{quote(config.unix_path)}?{_query(given)}"
    scheme = "rediss" if config.tls else "redis"
    if config.topology != "standalone":
        scheme += f"+{config.topology}"
    hosts = ",".join((show_endpoint(config.host, config.port), *config.nodes))
    master = f"/{quote(config.sentinel_master, safe='')}" if config.sentinel_master else ""
    url = f"{scheme}://{secret}{hosts}{master}/{config.db}"
    return f"{url}?{_query(given)}" if given else url


def _query(given: dict[str, Any]) -> str:
    return urlencode({k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()})


def _native(config: ClientConfig, connections: int | None) -> BenchClient:
    load("kvferry._native", "kvferry")
    each = connections or config.connections or CONNECTIONS_DEFAULT
    client = load("kvferry.client.sync", "kvferry").RedisClient.from_config(
        config.replace(connections=each)
    )
    return FerryClient("native", client, each * shards_of(config))


def _opens(
    kind: str,
    connect: Callable[[ClientConfig, int], BenchClient],
    connections: int = CONNECTIONS_DEFAULT,
    *,
    clusters: bool = False,
    tls: bool = True,
) -> Callable[[ClientConfig, int | None], BenchClient]:
    """How to connect a client that finds no servers by itself.

    Args:
        connections: By default.
        clusters, tls: Whether it is measured on those.
    """

    def open_kind(config: ClientConfig, wanted: int | None) -> BenchClient:
        if config.topology == "cluster" and not clusters:
            raise NotMeasured(f"{kind} is measured on one server only, not on a cluster")
        config = server_of(config)
        if config.tls and not tls:
            raise NotMeasured(f"{kind} is measured without TLS only")
        return connect(config, wanted or connections)

    return open_kind


def _pure(config: ClientConfig, _: int) -> BenchClient:
    """One connection, whatever is asked for."""
    return FerryClient("pure", PureRedisClient.from_config(config), 1)


def _redis_py(config: ClientConfig, connections: int) -> BenchClient:
    return ThreadedClient("redis-py", partial(open_redis_py, config), connections)


CLIENT_TYPES: dict[str, Callable[[ClientConfig, int | None], BenchClient]] = {
    "native": _native,
    "pure": _opens("pure", _pure),
    "redis-py": _opens("redis-py", _redis_py, clusters=True),
    "redis-py-async": _opens("redis-py-async", AsyncRedisPy),
    "glide": _opens("glide", GlideClient, tls=False),
    "lmcache": _opens("lmcache", LMCacheClient, tls=False),
    "single-pool": _opens("single-pool", partial(PooledRedisPy, "single-pool"), POOL_CONNECTIONS),
    "multi-pool": _opens("multi-pool", partial(PooledRedisPy, "multi-pool"), POOL_CONNECTIONS),
    "custom": _opens("custom", ZeroCopyClient),
}
