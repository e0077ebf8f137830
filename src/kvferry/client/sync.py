"""The blocking client: zero copy both ways, safe to share between threads.

    client = kvferry.RedisClient(host="localhost", port=6379)
    client.set("key", buffer)  # any object with the buffer protocol, sent without a copy
    client.get("key", buffer)  # True: filled in place; False: no such key

A call waits without the GIL. ``Ctrl-C`` withdraws it and returns when its buffers are free again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from kvferry.client.batch import BatchResult, only
from kvferry.client.buffers import BufferLike, Key
from kvferry.client.namespace import CacheNamespace
from kvferry.client.native import PING_KEY, NativeClient, Verb, server_info

__all__ = ["RedisClient"]


class RedisClient(NativeClient):
    """A client of a Redis or Valkey server, a cluster, or what Sentinels watch.

    Args:
        host: Name or address; default: ``KVFERRY_RESP_HOST``, ``LMCACHE_RESP_HOST``, localhost.
        port: Likewise; default 6379.
        **settings: The fields of `ClientConfig`: username, password, db, unix_path, connections...

    It connects in the background; a server that is away makes calls fail fast, not the constructor.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # --- One key: exceptions for failures ---

    def get(self, key: Key, buffer: BufferLike) -> bool:
        """Read a value into `buffer`, which must have exactly its length.

        Returns:
            True: the buffer is filled. False: no such key.

        Raises:
            SizeMismatchError, ServerError, DeadlineExceeded, UnavailableError: The buffer's content
                is undefined.
            BadBufferError, UsageError: Nothing was sent.
        """
        return only(self.batch_get([key], [buffer]))

    def set(self, key: Key, buffer: BufferLike, *, ttl_s: float | None = None) -> None:
        """Store the bytes of `buffer`, up to the server's limit; `ttl_s` in seconds.

        When it returns, the server has stored them since the call began. A try without an answer
        is repeated on another connection; the first one is reset, so that what is left of it on the
        way is dropped. Behind a proxy that keeps bytes for the server nobody can rule out that they
        arrive later, even behind a newer value of the key; see docs/guides/client.md.

        Raises:
            ServerError, DeadlineExceeded, UnavailableError: It may or may not be stored, or be
                stored yet: its connection is answered or reset within `stall_timeout_s`.
            BadBufferError, UsageError: Nothing was sent.
        """
        only(self.batch_set([key], [buffer], ttl_s=ttl_s))

    def exists(self, key: Key) -> bool:
        """Whether the key exists. Raises as `get`."""
        return only(self.batch_exists([key]))

    def delete(self, key: Key) -> bool:
        """Delete the key; whether it was there. Raises as `get`."""
        return only(self.batch_delete([key]))

    def ping(self) -> float:
        """The round-trip time of a small command, in seconds. Raises as `get`."""
        start = time.perf_counter()
        only(self._run(Verb.PING, [PING_KEY], None))
        return time.perf_counter() - start

    # --- Many keys: a status for each, no exceptions for what a server or network does ---

    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Read many values, each straight into its own buffer.

        Args:
            keys: One per buffer.
            buffers: Writable, contiguous, apart from each other, each as long as its value.
            prefix: Stop asking after the first key that is not OK; keys behind it that were not
                asked for are CANCELLED.
            timeout_s: Limit for the batch, in seconds; default: it grows with the bytes.

        Raises:
            UsageError, BadBufferError: Nothing was sent.
            ClosedError, CapacityError: Nothing was sent.
        """
        return self._run(Verb.GET, keys, buffers, prefix=prefix, timeout_s=timeout_s)

    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Store many values; `ttl_s` in seconds. Raises as `batch_get`."""
        return self._run(Verb.SET, keys, buffers, ttl_s=ttl_s, timeout_s=timeout_s)

    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """Which keys exist: OK or MISS. `touch` also refreshes them for the server's LRU."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        return self._run(verb, keys, None, prefix=prefix, timeout_s=timeout_s)

    def batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> BatchResult:
        """Delete keys: OK = was there, MISS = was not."""
        return self._run(Verb.DELETE, keys, None, timeout_s=timeout_s)

    def server_info(self) -> dict[str, str]:
        """What ``INFO`` says, over a connection of its own. Raises as `get`."""
        return server_info(self.config)

    def namespace(self, prefix: str, identity: bytes, value_size_bytes: int) -> CacheNamespace:
        """Values of one length, with checksums, under keys with one prefix: `CacheNamespace`."""
        return CacheNamespace(
            self, prefix=prefix, identity=identity, value_size_bytes=value_size_bytes
        )
