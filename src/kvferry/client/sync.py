"""The blocking client: zero copy both ways, safe to share between threads.

    client = kvferry.RedisClient(host="localhost", port=6379)
    client.set("key", buffer)  # any object with the buffer protocol, sent without a copy
    client.get("key", buffer)  # True: filled in place; False: no such key

A call waits without the GIL. ``Ctrl-C`` withdraws it and returns when its buffers are free again.
"""

from __future__ import annotations

import time
from typing import Self

from kvferry.client.batch import Operation, Verb, only
from kvferry.client.commands import information
from kvferry.client.methods import KeyMethods
from kvferry.client.namespace import CacheNamespace
from kvferry.client.native import PING_KEY, NativeClient

__all__ = ["RedisClient"]


class RedisClient(NativeClient, KeyMethods):
    """A client of a Redis or Valkey server, a cluster, or what Sentinels watch.

    Args:
        host: Name or address; default: ``KVFERRY_RESP_HOST``, ``LMCACHE_RESP_HOST``, localhost.
        port: Likewise; default 6379.
        **settings: The fields of `ClientConfig`: username, password, db, unix_path, connections...

    It connects in the background; a server that is away makes calls fail fast, not the constructor.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    perform = NativeClient._run

    def ping(self) -> float:
        """The round-trip time of a small command, in seconds. Raises as `get`."""
        start = time.perf_counter()
        only(self.perform(Operation(Verb.PING, [PING_KEY])))
        return time.perf_counter() - start

    def server_info(self) -> dict[str, str]:
        """What ``INFO`` says, e.g. ``redis_version``; of one server of many. Raises as `get`."""
        return information(self)

    def namespace(self, prefix: str, identity: bytes, value_size_bytes: int) -> CacheNamespace:
        """Values of one length, with checksums, under keys with one prefix: `CacheNamespace`."""
        return CacheNamespace(
            self, prefix=prefix, identity=identity, value_size_bytes=value_size_bytes
        )
