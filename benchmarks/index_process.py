"""A child process that fills an index and reports what it costs: ``... POLICY RESIDENT PREFIX``.

It is a process of its own so that nothing else grows or frees memory meanwhile. Pages have 64 bytes
here; they are the payload, and everything else that the process needs for them counts: index,
policy with its ghosts, and the pool's own books. Times are CPU of the one thread that there is, so
that others who use the same core do not count. Prints one JSON object.
"""

from __future__ import annotations

import gc
import json
import mmap
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from kvferry import _native
from kvferry.base.errors import CorruptError
from kvferry.chunks.keys import DIGEST_BYTES

_PAGE_BYTES = 64
_BATCH = 256
_ROUND = 16  # batches whose mean is one figure
_TTL_S = 60.0
_COLD_BYTES = 64 << 20  # what is written to drive the index out of the processor's caches


class Filled:
    """An index with pages, full, with a prefix of so many chunks and requests of 256 beside it."""

    def __init__(self, policy: str, resident: int, prefix: int) -> None:
        self._resident = resident
        self._made = 0
        before = _resident_bytes()
        self._pool = _native.PagePool(_PAGE_BYTES, resident)
        self.cache = _native.ChunkCache(resident, policy, pool=self._pool)
        self._before = before + self._pool.size_bytes
        self.prefix = self._hashes(prefix)
        self._store(self.prefix)
        while (room := resident - self.cache.stats()["resident"]) > 0:
            self._store(self._hashes(min(room, _BATCH)))

    def age(self) -> None:
        """Half of it is used again, then as much as all of it is replaced: ghosts and all."""
        for number in range(2, self._made + 1, 2):
            self.cache.touch(_some(number, _BATCH))
        for _ in range(self._resident // _BATCH):
            self._store(self._hashes(_BATCH))

    def replace_s(self) -> float:
        """Seconds to evict and insert a chunk, in batches, at the full index."""
        batches = [self._hashes(_BATCH) for _ in range(_ROUND)]
        evictions = self.cache.stats()["evictions"]
        start = time.thread_time()
        for batch in batches:
            self._store(batch)
        cpu_s = time.thread_time() - start
        count = _ROUND * _BATCH
        stats = self.cache.stats()
        if stats["evictions"] - evictions != count or stats["ready"] != self._resident:
            raise CorruptError(f"{count} chunks came into a full index, and not as many left")
        return cpu_s / count

    def bytes_per_chunk(self) -> float:
        """Resident memory beside the payload."""
        return (_resident_bytes() - self._before) / self._resident

    def _hashes(self, count: int) -> bytes:
        self._made += 1
        return _some(self._made, count)

    def _store(self, hashes: bytes) -> None:
        reservation, chunks, _, shed = self.cache.reserve(hashes, 0, _TTL_S)
        if shed or self.cache.commit(reservation) != len(chunks) or not chunks:
            raise CorruptError("the index did not take chunks that it had room for")


def main(policy: str, resident: int, prefix: int, rounds: int) -> None:
    """Measure one policy and print the figures."""
    filled = Filled(policy, resident, prefix)
    warm, cold = _lookups(filled, rounds)
    filled.age()
    replace = [filled.replace_s() for _ in range(rounds + 1)][1:]
    memory = filled.bytes_per_chunk()
    alone = _alone_s(policy, resident, rounds)
    figures = {
        "lookup_warm_s": warm,
        "lookup_cold_s": cold,
        "replace_s": statistics.median(replace),
        "alone_s": alone,
        "bytes_per_chunk": memory,
        "index_bytes": filled.cache.stats()["index_bytes"],
    }
    print(json.dumps(figures))


def _lookups(filled: Filled, rounds: int) -> tuple[float, float]:
    """Seconds for the whole prefix: again and again, and after other memory was used."""
    other = np.zeros(_COLD_BYTES, np.uint8)
    warm, cold = [], []
    wanted = len(filled.prefix) // DIGEST_BYTES

    def look() -> None:
        if filled.cache.lookup(filled.prefix) != (wanted, 0):
            raise CorruptError("the index does not find a prefix that it holds")

    for number in range(rounds):
        other.fill(number & 0xFF)
        cold.append(_timed(look))
        warm.append(_timed(look))
    return statistics.median(warm), statistics.median(cold)


def _alone_s(policy: str, resident: int, rounds: int) -> float:
    """Seconds to evict and insert a chunk where the index has no pages to look after."""
    cache = _native.ChunkCache(resident, policy)
    number = 0

    def insert() -> None:
        nonlocal number
        number += 1
        if cache.insert(_some(number, _BATCH)) != _BATCH:
            raise CorruptError("the index did not take chunks that it had room for")

    for _ in range(resident // _BATCH + 1):
        insert()
    figures = []
    for _ in range(rounds):
        batches = [_some(number + 1 + step, _BATCH) for step in range(_ROUND)]
        number += _ROUND
        start = time.thread_time()
        taken = sum(cache.insert(batch) for batch in batches)
        figures.append((time.thread_time() - start) / taken)
        if taken != _ROUND * _BATCH:
            raise CorruptError("the index did not take chunks that it had room for")
    return statistics.median(figures)


def _some(number: int, count: int) -> bytes:
    """The hashes of the request with this number."""
    return np.random.Generator(np.random.SFC64(number)).bytes(count * DIGEST_BYTES)


def _timed(call: Callable[[], None]) -> float:
    start = time.thread_time()
    call()
    return time.thread_time() - start


def _resident_bytes() -> int:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * mmap.PAGESIZE


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:5]))
