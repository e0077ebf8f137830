"""A cache namespace: values of one length, framed with checksums, under keys with one prefix.

    namespace = client.namespace("kv:", identity=identity_digest(...), value_size_bytes=8 << 20)
    namespace.set("chunk", page)
    namespace.get("chunk", page)  # True: exactly what was stored, under this identity and this key

What the plain client stores is whatever anybody put there. A value of a namespace is taken only if
its frame says: this identity, this key, this length, these bytes. Everything else is a miss that
has a name: CORRUPT (the server's copy is then deleted) or SIZE_MISMATCH. Values above 4 MiB lie on
the server as stripes, and are read and written by all connections at once; a stripe that is missing
or of another write makes a MISS, never a mixture. The format is in docs/formats/frame.md.

A namespace has no life of its own: it lasts as long as its client, and costs nothing to make.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from kvferry.client.batch import BatchResult, only
from kvferry.client.buffers import BufferLike, Key, encode_key, encode_keys, readable, writable
from kvferry.client.native import Frame, Verb
from kvferry.errors import BadBufferError, UsageError

__all__ = ["AsyncCacheNamespace", "CacheNamespace"]


class Runs(Protocol):
    """What a namespace needs of a `RedisClient`, which is above it."""

    def _run(self, *request: Any, **limits: Any) -> BatchResult: ...
    def presence(self, keys: Sequence[Key]) -> list[bool | None]: ...


class Awaits(Protocol):
    """What a namespace needs of an `AsyncRedisClient`, which is above it."""

    async def _await(self, *request: Any, **limits: Any) -> BatchResult: ...
    def presence(self, keys: Sequence[Key]) -> list[bool | None]: ...


class _Namespace:
    """What the blocking and the asyncio namespace share: names and checks."""

    def __init__(self, prefix: str, identity: bytes, value_size_bytes: int) -> None:
        if not isinstance(prefix, str):
            raise UsageError(f"a prefix is a str, not {type(prefix).__name__}")
        self._prefix_bytes = encode_key(prefix) if prefix else b""
        self._frame = Frame(identity, value_size_bytes)
        self.prefix = prefix
        self.identity = identity
        self.value_size_bytes = value_size_bytes

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.prefix!r} of {self.value_size_bytes} bytes, "
            f"identity {self.identity.hex()}>"
        )

    def _keys(self, keys: Iterable[Key]) -> list[Key]:
        if isinstance(keys, str | bytes):
            encode_keys(keys)  # raises: a single key is not a batch
        return [self._key(key) for key in keys]

    def _key(self, key: Key) -> Key:
        if key and isinstance(key, str):
            return self.prefix + key
        return self._prefix_bytes + encode_key(key)

    def _views(
        self, buffers: Iterable[BufferLike], view: Callable[[BufferLike], memoryview]
    ) -> list[memoryview]:
        views = [view(buffer) for buffer in buffers]
        for index, memory in enumerate(views):
            if len(memory) != self.value_size_bytes:
                raise BadBufferError(
                    f"buffer {index} has {len(memory)} bytes; "
                    f"every value here has {self.value_size_bytes}"
                )
        return views


class CacheNamespace(_Namespace):
    """A cache namespace of a `RedisClient`, whose arguments, results and errors it shares.

    Args:
        client: A `RedisClient`; moves the bytes.
        prefix: Goes before every key, e.g. ``"kv:"``.
        identity: What the bytes are comparable with: a digest of at least 8 bytes, the first 8 of
            which enter every frame; see `kvferry.chunks.keys.identity_digest`.
        value_size_bytes: Length of every value. Above 4 MiB, no key may end in ``#`` and digits:
            those are the names of stripes.

    Raises:
        UsageError: The identity is no digest, or no value can have that length.
    """

    def __init__(
        self, client: Runs, *, prefix: str, identity: bytes, value_size_bytes: int
    ) -> None:
        super().__init__(prefix, identity, value_size_bytes)
        self.client = client

    def get(self, key: Key, buffer: BufferLike) -> bool:
        """Read a value into `buffer`; False: there is none, or not all of it is there.

        Raises:
            CorruptError: What is there is damaged or something else; it is being deleted.
            SizeMismatchError: What is there is intact and of another length.
            Others: As `RedisClient.get`.
        """
        return only(self.batch_get([key], [buffer]))

    def set(self, key: Key, buffer: BufferLike, *, ttl_s: float | None = None) -> None:
        """Store the bytes of `buffer`. Raises as `RedisClient.set`."""
        only(self.batch_set([key], [buffer], ttl_s=ttl_s))

    def exists(self, key: Key) -> bool:
        """Whether the server has every stripe of the value. Raises as `RedisClient.exists`."""
        return only(self.batch_exists([key]))

    def delete(self, key: Key) -> bool:
        """Delete all stripes; whether the value was there. Raises as `RedisClient.delete`."""
        return only(self.batch_delete([key]))

    def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `RedisClient.batch_get`; what is not the value that was stored is CORRUPT."""
        names, views = self._keys(keys), self._views(buffers, writable)
        return self.client._run(
            Verb.GET, names, views, prefix=prefix, timeout_s=timeout_s, frame=self._frame
        )

    def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `RedisClient.batch_set`."""
        names, views = self._keys(keys), self._views(buffers, readable)
        return self.client._run(
            Verb.SET, names, views, ttl_s=ttl_s, timeout_s=timeout_s, frame=self._frame
        )

    def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `RedisClient.batch_exists`; OK = every stripe is there."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        names = self._keys(keys)
        return self.client._run(
            verb, names, None, prefix=prefix, timeout_s=timeout_s, frame=self._frame
        )

    def batch_delete(self, keys: Sequence[Key], *, timeout_s: float | None = None) -> BatchResult:
        """See `RedisClient.batch_delete`; it deletes all stripes."""
        names = self._keys(keys)
        return self.client._run(Verb.DELETE, names, None, timeout_s=timeout_s, frame=self._frame)

    def presence(self, keys: Sequence[Key]) -> list[bool | None]:
        """See `RedisClient.presence`. Of a striped value the first stripe decides, which is stored
        last: what is probably there may still be a MISS."""
        return self.client.presence(self._keys(keys))


class AsyncCacheNamespace(_Namespace):
    """`CacheNamespace` for asyncio, over an `AsyncRedisClient`: the same, awaited."""

    def __init__(
        self, client: Awaits, *, prefix: str, identity: bytes, value_size_bytes: int
    ) -> None:
        super().__init__(prefix, identity, value_size_bytes)
        self.client = client

    async def get(self, key: Key, buffer: BufferLike) -> bool:
        """See `CacheNamespace.get`."""
        return only(await self.batch_get([key], [buffer]))

    async def set(self, key: Key, buffer: BufferLike, *, ttl_s: float | None = None) -> None:
        """See `CacheNamespace.set`."""
        only(await self.batch_set([key], [buffer], ttl_s=ttl_s))

    async def exists(self, key: Key) -> bool:
        """See `CacheNamespace.exists`."""
        return only(await self.batch_exists([key]))

    async def delete(self, key: Key) -> bool:
        """See `CacheNamespace.delete`."""
        return only(await self.batch_delete([key]))

    async def batch_get(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        prefix: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `CacheNamespace.batch_get`."""
        names, views = self._keys(keys), self._views(buffers, writable)
        return await self.client._await(
            Verb.GET, names, views, prefix=prefix, timeout_s=timeout_s, frame=self._frame
        )

    async def batch_set(
        self,
        keys: Sequence[Key],
        buffers: Sequence[BufferLike],
        *,
        ttl_s: float | None = None,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `CacheNamespace.batch_set`."""
        names, views = self._keys(keys), self._views(buffers, readable)
        return await self.client._await(
            Verb.SET, names, views, ttl_s=ttl_s, timeout_s=timeout_s, frame=self._frame
        )

    async def batch_exists(
        self,
        keys: Sequence[Key],
        *,
        prefix: bool = False,
        touch: bool = False,
        timeout_s: float | None = None,
    ) -> BatchResult:
        """See `CacheNamespace.batch_exists`."""
        verb = Verb.TOUCH if touch else Verb.EXISTS
        names = self._keys(keys)
        return await self.client._await(
            verb, names, None, prefix=prefix, timeout_s=timeout_s, frame=self._frame
        )

    async def batch_delete(
        self, keys: Sequence[Key], *, timeout_s: float | None = None
    ) -> BatchResult:
        """See `CacheNamespace.batch_delete`."""
        names = self._keys(keys)
        return await self.client._await(
            Verb.DELETE, names, None, timeout_s=timeout_s, frame=self._frame
        )

    def presence(self, keys: Sequence[Key]) -> list[bool | None]:
        """See `CacheNamespace.presence`; nothing to await."""
        return self.client.presence(self._keys(keys))
