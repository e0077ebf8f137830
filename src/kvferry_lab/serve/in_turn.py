"""A cache that asks its store one thing after the other, to compare with.

Two keys for each chunk, metadata and KV. A prompt is looked up by an EXISTS for each chunk in turn
until one is missing; then the metadata is read, then the KV: for n chunks n + 2 waits for the
store, and one where there is nothing. Writes of a prompt go out behind that, together. There is no
memory in between.

This is how LMCache's Redis connector is used, with one connection for each purpose where it has a
pool of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.cache import TieredCache
from kvferry.cache.results import Retrieved, Stored
from kvferry.chunks.identity import Identity
from kvferry.chunks.prompt import Prompt
from kvferry.client.batch import Status
from kvferry.client.pure.client import PureRedisClient
from kvferry.config import CacheConfig

__all__ = ["InTurn"]

_META = b"kv"
_WRITES_S = 600.0


class InTurn(TieredCache):
    """See the head of this module. Faults of the store are misses.

    Raises:
        UsageError: There is not one store.
    """

    def __init__(self, identity: Identity, config: CacheConfig) -> None:
        clients = [store.client for store in config.stores if store.client is not None]
        if len(clients) != 1:
            raise UsageError("a cache that asks in turn has one store, a Redis or Valkey")
        super().__init__(identity, config.replace(stores=(), local_cpu=True))
        self._reading = PureRedisClient.from_config(clients[0])
        self._writing = PureRedisClient.from_config(clients[0])
        self._writes = ThreadPoolExecutor(1, "kvferry-demo-write")

    def retrieve(self, tokens: Any, into: Any = None, **options: Any) -> Retrieved:
        """As an engine does, without its decisions."""
        began = time.monotonic()
        prompt = self._read(tokens, options.get("limit_tokens"))
        digests = _digests(prompt)
        found = 0
        while found < len(digests) and self._asked(digests[found]):
            found += 1
        looked = time.monotonic()
        pages = self._load(digests[:found])
        return Retrieved(
            tokens=len(pages) * self.layout.chunk_size,
            tiers={},
            decision=None,
            reason="",
            lookup_s=looked - began,
            load_s=time.monotonic() - looked,
            pages=pages,
        )

    def store(self, tokens: Any, chunks: Sequence[Any], *, first_chunk: int = 0) -> Stored:
        """Write behind the call."""
        digests = _digests(self._read(tokens))[first_chunk:]
        copies = [bytes(chunk) for chunk in chunks[: len(digests)]]
        self._writes.submit(self._write, digests, copies)
        return Stored(chunks=len(chunks), known=0, shed=0)

    def close(self, timeout_s: float = _WRITES_S) -> bool:
        """Writes that have not begun are left."""
        self._writes.shutdown(cancel_futures=True)
        self._reading.close()
        self._writing.close()
        return super().close(timeout_s)

    def _asked(self, digest: str) -> bool:
        return self._reading.batch_exists([f"{digest}:metadata"]).statuses[0] == Status.OK

    def _load(self, digests: Sequence[str]) -> list[memoryview]:
        """The chunks up to the first one that did not come."""
        if not digests:
            return []
        marks = [bytearray(len(_META)) for _ in digests]
        chunks = [bytearray(self.layout.chunk_bytes) for _ in digests]
        for kind, targets in (("metadata", marks), ("kv_bytes", chunks)):
            result = self._reading.batch_get([f"{digest}:{kind}" for digest in digests], targets)
            right = next((n for n, one in enumerate(result.statuses) if one != Status.OK), None)
            digests, chunks = digests[:right], chunks[:right]
        return [memoryview(chunk) for chunk in chunks]

    def _write(self, digests: Sequence[str], chunks: Sequence[bytes]) -> None:
        named = zip(digests, chunks, strict=False)
        keys = {f"{digest}:kv_bytes": chunk for digest, chunk in named}
        keys |= {f"{digest}:metadata": _META for digest in digests[: len(chunks)]}
        self._writing.batch_set(list(keys), list(keys.values()))


def _digests(prompt: Prompt) -> list[str]:
    return [prompt.hashes[at : at + 16].hex() for at in range(0, len(prompt.hashes), 16)]
