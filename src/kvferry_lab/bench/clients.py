"""The table of clients that can be measured: a name, and how to connect one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlencode

from kvferry.base.errors import UsageError
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
    redis_arguments,
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


def _pure(config: ClientConfig, connections: int | None) -> BenchClient:
    config = _one_server("pure", config)
    client = load("kvferry.client.pure.client", "kvferry").PureRedisClient.from_config(config)
    return FerryClient("pure", client, 1)  # whatever is asked for


def _redis_py(config: ClientConfig, connections: int | None) -> BenchClient:
    config = server_of(config)
    redis_arguments(config)  # raises before a thread is started
    return ThreadedClient(
        "redis-py", lambda: open_redis_py(config), connections or CONNECTIONS_DEFAULT
    )


def _redis_py_async(config: ClientConfig, connections: int | None) -> BenchClient:
    config = _one_server("redis-py-async", config)
    return AsyncRedisPy(config, connections or CONNECTIONS_DEFAULT)


def _pooled(kind: str) -> Callable[[ClientConfig, int | None], BenchClient]:
    def open_pooled(config: ClientConfig, connections: int | None) -> BenchClient:
        config = _one_server(kind, config)
        return PooledRedisPy(kind, config, connections or POOL_CONNECTIONS)

    return open_pooled


def _custom(config: ClientConfig, connections: int | None) -> BenchClient:
    return ZeroCopyClient(config, connections or CONNECTIONS_DEFAULT)


def _plain(
    kind: str, connect: Callable[[ClientConfig, int], BenchClient]
) -> Callable[[ClientConfig, int | None], BenchClient]:
    """A client that is measured on one server, without TLS."""

    def open_plain(config: ClientConfig, connections: int | None) -> BenchClient:
        config = _one_server(kind, config)
        if config.tls:
            raise NotMeasured(f"{kind} is measured without TLS only")
        return connect(config, connections or CONNECTIONS_DEFAULT)

    return open_plain


def _one_server(kind: str, config: ClientConfig) -> ClientConfig:
    if config.topology == "cluster":
        raise NotMeasured(f"{kind} is measured on one server only, not on a cluster")
    return server_of(config)


CLIENT_TYPES: dict[str, Callable[[ClientConfig, int | None], BenchClient]] = {
    "native": _native,
    "pure": _pure,
    "redis-py": _redis_py,
    "redis-py-async": _redis_py_async,
    "glide": _plain("glide", GlideClient),
    "lmcache": _plain("lmcache", LMCacheClient),
    "single-pool": _pooled("single-pool"),
    "multi-pool": _pooled("multi-pool"),
    "custom": _custom,
}
