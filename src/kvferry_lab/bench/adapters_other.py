"""Clients under test that few hosts have: GLIDE and LMCache's RESP client."""

from __future__ import annotations

import select
from collections.abc import Sequence
from typing import Any

from kvferry.base.errors import UnavailableError, UsageError
from kvferry.config import ClientConfig
from kvferry_lab.bench.adapters import InProcess, ThreadedClient, load
from kvferry_lab.bench.data import Value

__all__ = ["GlideClient", "LMCacheClient"]

_TIMEOUT_MS = 60_000


class GlideClient(ThreadedClient):
    """valkey-glide-sync: N clients, one thread each; GET fills the caller's buffer."""

    def __init__(self, config: ClientConfig, connections: int) -> None:
        glide = load("glide_sync", "valkey-glide-sync")
        if config.unix_path is not None:
            raise UsageError("glide speaks TCP only; give --host and --port")
        credentials = None
        if config.password is not None:
            credentials = glide.ServerCredentials(config.password, config.username)
        settings = glide.GlideClientConfiguration(
            [glide.NodeAddress(config.host, config.port)],
            credentials=credentials,
            database_id=config.db,
            request_timeout=_TIMEOUT_MS,
        )
        super().__init__("glide", lambda: glide.GlideClient.create(settings), connections)

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(self._each(lambda link, i: int(link.exists([keys[i]])), len(keys)))

    def _get(self, link: Any, key: str, target: Value) -> Value | None:
        size = link.get(key, memoryview(target))
        return None if size is None else memoryview(target)[: int(size)]


class LMCacheClient(InProcess):
    """LMCache's native RESP client, as its own connector drives it: submit, wait, drain."""

    name = "lmcache"

    def __init__(self, config: ClientConfig, connections: int) -> None:
        module = load("lmcache.lmcache_redis", "lmcache")
        if config.unix_path is not None:
            raise UsageError("lmcache speaks TCP only; give --host and --port")
        self.connections = connections
        self._client = module.LMCacheRedisClient(
            config.host, config.port, connections, config.username or "", config.password or ""
        )
        self._event_fd = self._client.event_fd()

    def set_batch(self, keys: Sequence[str], values: Sequence[Value]) -> None:
        self._wait(self._client.submit_batch_set(list(keys), list(values)))

    def get_batch(self, keys: Sequence[str], targets: Sequence[Value]) -> Sequence[Value | None]:
        found = self._wait(self._client.submit_batch_get(list(keys), list(targets)))
        return [target if hit else None for target, hit in zip(targets, found, strict=True)]

    def exists_batch(self, keys: Sequence[str]) -> int:
        return sum(self._wait(self._client.submit_batch_exists(list(keys))))

    def close(self) -> None:
        self._client.close()

    def _wait(self, wanted: int) -> list[bool]:
        while True:
            if not select.select([self._event_fd], [], [], _TIMEOUT_MS / 1e3)[0]:
                raise UnavailableError("lmcache's client did not complete a batch")
            for future_id, ok, error, found in self._client.drain_completions():
                if future_id == wanted:
                    if not ok:
                        raise UnavailableError(f"lmcache's client failed: {error}")
                    return found or []
