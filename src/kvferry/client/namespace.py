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

from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.client.batch import BatchResult, Operation, ValueFrame, Verb
from kvferry.client.buffers import BufferLike, Key, encode_key, encode_keys, readable, writable
from kvferry.client.methods import AwaitedKeyMethods, KeyMethods

__all__ = ["AsyncCacheNamespace", "CacheNamespace"]


class Performs(Protocol):
    """What a namespace needs of a `RedisClient`, which is above it."""

    def perform(self, operation: Operation) -> BatchResult: ...
    def presence(self, keys: Sequence[Key]) -> list[bool | None]: ...


class Awaits(Protocol):
    """What a namespace needs of an `AsyncRedisClient`, which is above it."""

    def perform(self, operation: Operation) -> Coroutine[Any, Any, BatchResult]: ...
    def presence(self, keys: Sequence[Key]) -> list[bool | None]: ...


Below = TypeVar("Below", bound="Performs | Awaits")


class _Namespace(Generic[Below]):
    """What the blocking and the asyncio namespace share: names and checks."""

    def __init__(
        self, client: Below, *, prefix: str, identity: bytes, value_size_bytes: int
    ) -> None:
        if not isinstance(prefix, str):
            raise UsageError(f"a prefix is a str, not {type(prefix).__name__}")
        self._prefix_bytes = encode_key(prefix) if prefix else b""
        self._frame = ValueFrame(identity, value_size_bytes)
        self.client: Below = client
        self.prefix = prefix
        self.identity = identity
        self.value_size_bytes = value_size_bytes

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.prefix!r} of {self.value_size_bytes} bytes, "
            f"identity {self.identity.hex()}>"
        )

    def presence(self, keys: Sequence[Key]) -> list[bool | None]:
        """See `RedisClient.presence`. Of a striped value the first stripe decides, which is stored
        last: what is probably there may still be a MISS."""
        return self.client.presence(self._keys(keys))

    def _framed(self, operation: Operation) -> Operation:
        """The operation of the client that is below."""
        names, buffers = self._keys(operation.keys), operation.buffers
        if buffers is not None:
            buffers = self._views(buffers, writable if operation.verb is Verb.GET else readable)
        return Operation(
            operation.verb,
            names,
            buffers,
            operation.prefix,
            operation.ttl_s,
            operation.timeout_s,
            self._frame,
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


class CacheNamespace(_Namespace[Performs], KeyMethods):
    """A cache namespace of a `RedisClient`, whose methods, results and errors it shares.

    What differs: a get also says CORRUPT (`CorruptError`) of what is not the value that was stored,
    which is then being deleted; SIZE_MISMATCH is of a value that is intact and of another length. A
    key exists if every stripe of its value does, and all of them are deleted.

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

    def perform(self, operation: Operation) -> BatchResult:
        """See `BatchMethods`."""
        return self.client.perform(self._framed(operation))


class AsyncCacheNamespace(_Namespace[Awaits], AwaitedKeyMethods):
    """`CacheNamespace` for asyncio, over an `AsyncRedisClient`: the same, awaited."""

    async def perform(self, operation: Operation) -> BatchResult:
        """See `BatchMethods`."""
        return await self.client.perform(self._framed(operation))
