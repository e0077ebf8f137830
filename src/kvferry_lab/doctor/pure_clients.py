"""PureClients: N pure-Python clients as one, for hosts without the extension."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvferry.client.batch import BatchResult
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import ClientConfig

__all__ = ["PureClients"]


class PureClients:
    """One connection and one thread for each; a batch is dealt out among them."""

    def __init__(self, config: ClientConfig, count: int) -> None:
        self._clients = [PureRedisClient.from_config(config) for _ in range(count)]
        self._pool = ThreadPoolExecutor(count)

    def batch_set(self, keys: Any, buffers: Any, *, ttl_s: float) -> BatchResult:
        return self._each(
            lambda c, i, n: c.batch_set(keys[i::n], buffers[i::n], ttl_s=ttl_s), len(keys)
        )

    def batch_get(self, keys: Any, buffers: Any) -> BatchResult:
        return self._each(lambda c, i, n: c.batch_get(keys[i::n], buffers[i::n]), len(keys))

    def batch_delete(self, keys: Any) -> BatchResult:
        return self._clients[0].batch_delete(keys)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self._pool.shutdown()

    def _each(
        self, call: Callable[[PureRedisClient, int, int], BatchResult], keys: int
    ) -> BatchResult:
        count = min(len(self._clients), keys)
        parts = list(self._pool.map(call, self._clients[:count], range(count), [count] * count))
        error = next((part.error for part in parts if part.error), None)
        statuses = b"".join(part.statuses for part in parts)
        return BatchResult(statuses, [0] * len(statuses), 0.0, error)
