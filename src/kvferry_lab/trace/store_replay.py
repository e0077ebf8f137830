"""A trace replayed against a real store: the index decides, bytes of full size go back and forth.

Payload is a function of the key, so every byte that is loaded can be checked, and what the index
believes to be there must be there. After each request the chunks that the index gave up are
deleted, so that the store holds what the index says, and no more.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kvferry.base.errors import CorruptError, KVFerryError, UnavailableError
from kvferry.chunks.keys import describe_identity, identity_digest
from kvferry.client.batch import Status
from kvferry.client.sync import RedisClient
from kvferry_lab.trace.format import HASH_BYTES, Trace
from kvferry_lab.trace.replay import ReplayPoint, new_cache, point_of

if TYPE_CHECKING:
    from kvferry.client.namespace import CacheNamespace

__all__ = ["StoreReplay", "payload", "replay_over_store"]

_BATCH_BYTES = 64 << 20
_ABSENT = (0, 1)  # of ChunkCache.states: never there, evicted
_DELETED_AT_ONCE = 512


def payload(key: bytes, target: NDArray[np.uint8]) -> None:
    """Fill `target` with the bytes that belong to a key."""
    generator = np.random.Generator(np.random.SFC64(int.from_bytes(key, "little")))
    target[:] = np.frombuffer(generator.bytes(len(target)), np.uint8)


def replay_over_store(
    client: RedisClient,
    trace: Trace,
    policy: str,
    capacity: int,
    leaf_first: bool,
    chunk_bytes: int,
    progress: Callable[[int], object],
) -> ReplayPoint:
    """A `Replayer` over the store of a client."""
    return StoreReplay(client, chunk_bytes).run(trace, policy, capacity, leaf_first, progress)


class StoreReplay:
    """Replays traces against one store, under keys of its own that are deleted afterwards.

    Threads: one. The client stays the caller's.
    """

    def __init__(self, client: RedisClient, chunk_bytes: int) -> None:
        identity = identity_digest(
            describe_identity(model="trace replay", run=os.urandom(8).hex(), bytes=chunk_bytes)
        )
        self._namespace: CacheNamespace = client.namespace(
            f"kvf:{identity.hex()}:", identity, chunk_bytes
        )
        rows = max(1, _BATCH_BYTES // chunk_bytes)
        self._buffers = np.empty((rows, chunk_bytes), np.uint8)
        self._wanted = np.empty(chunk_bytes, np.uint8)
        self._stored: dict[bytes, None] = {}
        self._verified_bytes = 0

    def run(
        self,
        trace: Trace,
        policy: str,
        capacity: int,
        leaf_first: bool = True,
        progress: Callable[[int], object] = lambda _: None,
    ) -> ReplayPoint:
        """Replay a trace; the numbers are those of the index, and `verified_bytes`.

        Raises:
            CorruptError: A chunk that the index has is not in the store, or has a wrong byte.
            UnavailableError: The store did not take a chunk, or cannot be asked.
        """
        cache = new_cache(policy, capacity, leaf_first)
        self._verified_bytes = 0
        prefix_hits = block_hits = 0
        started = time.perf_counter()
        with self._cleared():
            for hashes in trace.requests:
                keys = [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
                prefix, blocks = cache.access(hashes)
                prefix_hits += prefix
                block_hits += blocks
                self._load(keys[:prefix])
                self._store([key for key in keys if key not in self._stored])
                states = bytes(cache.states(b"".join(self._stored)))
                gone = [
                    key for key, state in zip(self._stored, states, strict=True) if state in _ABSENT
                ]
                self._delete(gone)
                progress(1)
        return point_of(
            trace,
            cache,
            policy,
            leaf_first,
            self._namespace.value_size_bytes,
            hits=(prefix_hits, block_hits),
            elapsed_s=time.perf_counter() - started,
            verified_bytes=self._verified_bytes,
        )

    def _load(self, keys: Sequence[bytes]) -> None:
        """Read what the index says is there, and look at every byte of it."""
        for some in self._batches(keys):
            targets = list(self._buffers[: len(some)])
            result = self._namespace.batch_get(_names(some), targets)
            for key, status, target in zip(some, result, targets, strict=True):
                if status in (Status.TIMEOUT, Status.UNAVAILABLE):
                    raise UnavailableError(f"{key.hex()} cannot be read: {result.error}")
                if status is not Status.OK:
                    raise CorruptError(
                        f"{key.hex()} should be in the store, which says {status.name}"
                    )
                payload(key, self._wanted)
                if not np.array_equal(target, self._wanted):
                    raise CorruptError(f"{key.hex()} has wrong bytes")
                self._verified_bytes += len(target)

    def _store(self, keys: Sequence[bytes]) -> None:
        for some in self._batches(keys):
            sources = list(self._buffers[: len(some)])
            for key, source in zip(some, sources, strict=True):
                payload(key, source)
            self._stored.update(dict.fromkeys(some))  # first, so that it is deleted in any case
            result = self._namespace.batch_set(_names(some), sources)
            if not result.ok:
                raise UnavailableError(f"the store did not take a chunk: {result.error or result}")

    def _delete(self, keys: Sequence[bytes]) -> None:
        for begin in range(0, len(keys), _DELETED_AT_ONCE):
            some = keys[begin : begin + _DELETED_AT_ONCE]
            self._namespace.batch_delete(_names(some))
            for key in some:
                del self._stored[key]

    def _batches(self, keys: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
        rows = len(self._buffers)
        return (keys[begin : begin + rows] for begin in range(0, len(keys), rows))

    @contextmanager
    def _cleared(self) -> Iterator[None]:
        """Whatever happens, what was stored is deleted as far as the store can be reached."""
        try:
            yield
        finally:
            with suppress(KVFerryError):
                self._delete(list(self._stored))
            self._stored.clear()


def _names(keys: Sequence[bytes]) -> list[str]:
    return [key.hex() for key in keys]
