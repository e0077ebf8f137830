"""Clients under test as the first notes on this subject had them: two of redis-py's, one of ours.

single-pool   redis-py's asyncio client over one pool of connections
multi-pool    several of them, each with a pool of its own; keys go to them in turn
custom        the pure-Python client, which fills the caller's buffers: a thread for each connection

How many commands are on their way is the batch's affair: one, or all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import (
    AsyncRedisPy,
    ThreadedClient,
    event_loop,
    load,
    redis_arguments,
)
from kvferry_lab.bench.data import Value

__all__ = ["POOL_CONNECTIONS", "PooledRedisPy", "ZeroCopyClient"]

POOL_CONNECTIONS = 100  # of the pools together, as in the notes
_POOLS = 10


class PooledRedisPy(AsyncRedisPy):
    """redis-py's asyncio client, all commands of a batch at once, over one pool or several."""

    def __init__(self, name: str, config: ClientConfig, connections: int) -> None:
        redis = load("redis.asyncio", "redis")
        pools = 1 if name == "single-pool" else min(_POOLS, connections)
        sizes = [len(range(pool, connections, pools)) for pool in range(pools)]
        arguments = redis_arguments(config)
        del arguments["single_connection_client"]
        self.name = name
        self.connections = connections
        self._runner = event_loop()
        self._links = [redis.Redis(**arguments, max_connections=size) for size in sizes]
        # A pool that has lent all of its connections raises; here commands wait for one.
        self._free = [asyncio.Semaphore(size) for size in sizes]

    def _each(self, call: Callable[[Any, int], Any], count: int) -> list[Any]:
        async def one(index: int) -> Any:
            pool = index % len(self._links)
            async with self._free[pool]:
                return await call(self._links[pool], index)

        async def everything() -> list[Any]:
            return await asyncio.gather(*map(one, range(count)))

        return self._runner.run(everything())


class ZeroCopyClient(ThreadedClient):
    """N pure-Python clients, a thread for each; GET fills the caller's buffer."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        super().__init__("custom", lambda: PureRedisClient.from_config(config), connections)

    def _get(self, link: Any, key: str, target: Value) -> Value | None:
        return target if link.get(key, target) else None
