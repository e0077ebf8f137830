"""Bars of the index and of hashing: time per lookup and chunk, and memory beside the payload.

Time is CPU of the calling thread: nothing here waits, and what others do on the same core is not
counted. An index is filled by a process of its own, so that nothing else grows or frees memory
meanwhile: `python -m benchmarks.index POLICY RESIDENT PREFIX ROUNDS`. Pages have 64 bytes there;
they are the payload, and everything else that the process needs for them counts: index, policy with
its ghosts, and the pool's own books.
"""

from __future__ import annotations

import gc
import json
import mmap
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bars import Bar, Lab, Target
from kvferry import _native
from kvferry.base.errors import CorruptError
from kvferry.chunks.keys import DIGEST_BYTES, chunk_hashes
from kvferry_lab.bench.programs import figures_of_module
from kvferry_lab.trace.replay import POLICIES

__all__ = ["hash_cost", "index_cost"]

_RESIDENT = 1_000_000
_PREFIX = 10_000
_TOKENS = 40_000
_CHUNK_TOKENS = 16
_PAGE_BYTES = 64
_BATCH = 256
_ROUND = 16  # batches whose mean is one figure
_TTL_S = 60.0
_COLD_BYTES = 64 << 20  # what is written to drive the index out of the processor's caches

_LOOKUP = Target("<=", 1.5, "ms")
_MEMORY = Target("<=", 160.0, "bytes per chunk")
_REPLACE = Target("<=", 2.0, "us per chunk")
_HASHING = Target("<=", 3.0, "ms")


def index_cost(lab: Lab) -> Iterator[Bar]:
    """Lookup, memory, insert and evict of a full index, the worst policy of all."""
    resident, prefix = lab.count(_RESIDENT), lab.count(_PREFIX)
    found = {
        policy: figures_of_module(__name__, policy, resident, prefix, lab.count(100))
        for policy in POLICIES
    }

    def worst(name: str, target: Target, figure: Callable[[dict[str, Any]], float]) -> Bar:
        values = {policy: figure(figures) for policy, figures in found.items()}
        shown = ", ".join(f"{policy} {value:.3g}" for policy, value in values.items())
        return Bar(name=name, target=target, value=max(values.values()), detail=shown)

    where = f"{resident:,} resident chunks"
    look = f"lookup of {prefix:,} chunks, {where}"
    yield worst(look, _LOOKUP, lambda figures: figures["lookup_warm_s"] * 1e3)
    yield worst(f"{look}, cold", _LOOKUP, lambda figures: figures["lookup_cold_s"] * 1e3)
    yield worst(
        f"memory beside the payload, {where}", _MEMORY, lambda figures: figures["bytes_per_chunk"]
    )
    yield worst(
        f"reserve + evict + commit with pages in batches of 256, {where}",
        _REPLACE,
        lambda figures: figures["replace_s"] * 1e6,
    )


def hash_cost(lab: Lab) -> Iterator[Bar]:
    """Hashes of 40,000 tokens in chunks of 16, from a list."""
    tokens = random.Random(16).choices(range(152_064), k=_TOKENS)
    wanted = b"".join(chunk_hashes(tokens, _CHUNK_TOKENS))
    costs = []
    for _ in range(lab.count(50)):
        start = time.thread_time()
        hashes = _native.hash_chunks(tokens, _CHUNK_TOKENS)
        costs.append(time.thread_time() - start)
        if hashes != wanted:
            raise CorruptError("the native hashes are not those of kvferry.chunks.keys")
    yield Bar.of_median(
        f"hashing of {_TOKENS:,} tokens in chunks of {_CHUNK_TOKENS}, from a list",
        _HASHING,
        [cost_s * 1e3 for cost_s in costs],
    )


class _Filled:
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
    filled = _Filled(policy, resident, prefix)
    warm, cold = _lookups(filled, rounds)
    filled.age()
    replace = [filled.replace_s() for _ in range(rounds + 1)][1:]
    memory = filled.bytes_per_chunk()
    figures = {
        "lookup_warm_s": warm,
        "lookup_cold_s": cold,
        "replace_s": statistics.median(replace),
        "bytes_per_chunk": memory,
        "index_bytes": filled.cache.stats()["index_bytes"],
    }
    print(json.dumps(figures))


def _lookups(filled: _Filled, rounds: int) -> tuple[float, float]:
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
