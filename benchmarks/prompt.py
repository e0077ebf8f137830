"""A prompt for benchmarks of the engine: its KV, buffers to read into, and the check of every byte.

The prompt of the bars: 313 chunks of 4 MiB, which are 10,016 tokens of an 8B model (32 layers, 8 KV
heads of 128, bfloat16). Buffers have room for a frame's header in front, so that the raw client can
read a whole value with its payload where the engine would put it.
"""

from __future__ import annotations

import itertools
import mmap
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import numpy as np
from numpy.typing import NDArray

from benchmarks.bars import Bar, Lab, Target
from kvferry.base.errors import CorruptError
from kvferry.cache.memory import ChunkView
from kvferry.chunks.identity import Identity
from kvferry.chunks.keys import chunk_hashes
from kvferry.chunks.layout import KVLayout

__all__ = ["FRAME_BYTES", "PromptKV"]

FRAME_BYTES = 64  # docs/formats/frame.md
_PAGE = 4096
_POISON = 0xA5
_CHUNKS = 313


class PromptKV:
    """The KV of one prompt.

    Attributes:
        identity: Of the engine; no two runs share one, but those of one `seed`.
        tokens: Of the prompt, full chunks only.
        keys: Names of the chunks in a store, whole.
        sources: What to store, one buffer for each chunk; all of it is one piece of memory.
        targets: Where to read chunks to.
        frames: The same with room for the header in front.
    """

    def __init__(self, lab: Lab, seed: str = "") -> None:
        seed = seed or os.urandom(8).hex()
        layers, chunk_tokens = (2, 8) if lab.quick else (32, 32)
        layout = KVLayout(
            layers=layers, kv_heads=8, head_dim=128, dtype="bfloat16", chunk_size=chunk_tokens
        )
        self.chunks = lab.batch if lab.quick else _CHUNKS
        self.chunk_bytes = layout.chunk_bytes
        self.size_bytes = self.chunks * self.chunk_bytes
        self.identity = Identity(model=f"benchmark {seed}", layout=layout)
        self.tokens = list(range(self.chunks * chunk_tokens))
        hashes = chunk_hashes(self.tokens, chunk_tokens)
        self.keys = [f"kvf:{self.identity.digest.hex()}:{digest.hex()}" for digest in hashes]
        self._source = _allocate(self.chunks, self.chunk_bytes)
        self._target = _allocate(self.chunks, self.chunk_bytes + _PAGE)
        rng = np.random.Generator(np.random.SFC64(int(seed, 16)))
        for row in self._source:
            row[:] = np.frombuffer(rng.bytes(len(row)), np.uint8)
        self.sources = [memoryview(row) for row in self._source]
        self.targets = [memoryview(row[_PAGE:]) for row in self._target]
        self.frames = [memoryview(row[_PAGE - FRAME_BYTES :]) for row in self._target]
        self.poison()

    @property
    def label(self) -> str:
        """What to call it."""
        unit = "64 KiB" if self.chunk_bytes < 1 << 20 else f"{self.chunk_bytes >> 20} MiB"
        return f"{self.chunks} x {unit}"

    @property
    def pool_gb(self) -> float:
        """`max_local_cpu_size` for an engine that holds it, and a little more."""
        return (self.chunks + 8) * self.chunk_bytes / (1 << 30)

    def memcpy(self, workers: ThreadPoolExecutor, threads: int) -> float:
        """Seconds to copy as many bytes in private memory, the reference; each thread one piece."""
        source, target = self._source.reshape(-1), self._target.reshape(-1)[: self.size_bytes]
        edges = [self.size_bytes * part // threads for part in range(threads + 1)]
        pieces = [slice(*edge) for edge in itertools.pairwise(edges)]
        self.poison()
        start = time.perf_counter()
        list(workers.map(lambda piece: np.copyto(target[piece], source[piece]), pieces))
        wall_s = time.perf_counter() - start
        if not np.array_equal(target, source):
            raise CorruptError("memcpy did not copy")
        return wall_s

    def compared(
        self, name: str, target: Target, ours: Sequence[float], theirs: Sequence[float], who: str
    ) -> Bar:
        """How much faster it was moved than by a reference: both in seconds, in turn."""
        mine, other = (self.size_bytes / median(walls) / 1e9 for walls in (ours, theirs))
        said = f"{median(ours) * 1e3:.3g} ms, {mine:.2f} GB/s; {who} {other:.2f} GB/s"
        return Bar.of_pairs(name, target, theirs, ours, said)

    def poison(self) -> None:
        """Overwrite the targets, so that nothing read before can pass for a new read."""
        self._target.fill(_POISON)

    def verify(self, chunks: Sequence[memoryview | ChunkView], count: int | None = None) -> None:
        """Compare every byte of all chunks, or of the first `count`.

        Raises:
            CorruptError: A chunk is missing or wrong.
        """
        count = self.chunks if count is None else count
        if len(chunks) != count:
            raise CorruptError(f"{len(chunks)} of {count} chunks came back")
        for index, (row, chunk) in enumerate(zip(self._source[:count], chunks, strict=True)):
            if not np.array_equal(np.frombuffer(memoryview(chunk), np.uint8), row):
                raise CorruptError(f"chunk {index} is wrong")


def _allocate(rows: int, size_bytes: int) -> NDArray[np.uint8]:
    mapping = mmap.mmap(-1, rows * size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8).reshape(rows, size_bytes)
