"""The bytes of a benchmark: incompressible, different for every key and every write, checkable.

Each source buffer holds random bytes; every 4 KiB of it begins with a 64-bit stamp of (generation,
key, page), so that bytes of another key, an older write or another place are all seen. Buffers are
page-aligned, huge where the host allows, and touched before anything is measured.
"""

from __future__ import annotations

import itertools
import mmap
import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kvferry.base.errors import CorruptError, UsageError
from kvferry_lab.bench.server_probe import ServerProbe

__all__ = ["WARM_BYTES", "Chunks", "Value", "fill"]

Value = bytes | bytearray | memoryview

WARM_BYTES = 64 << 20  # what an uncounted run moves before a counted one

_PAGE = 4096
_POISON = 0xA5
_KEYS_MAX = 1 << 20
_SIZE_BYTES_MIN = 64


class Chunks:
    """`count` keys, and buffers for `batch` of them at a time.

    Attributes:
        size_bytes: Length of each value.
        sources: What to write, one view per key of the batch.
        targets: Where to read to, one view per key of the batch.
        warm_targets: Buffers of their own for uncounted reads, so that those can be verified too
            without a pause before the counted ones; `warm_bytes` of them, at most one per key.
    """

    def __init__(
        self, size_bytes: int, count: int, batch: int, *, warm_bytes: int = WARM_BYTES
    ) -> None:
        if size_bytes < _SIZE_BYTES_MIN or not 1 <= batch <= count <= _KEYS_MAX:
            raise UsageError(
                f"a benchmark needs values of {_SIZE_BYTES_MIN} bytes or more, "
                f"1 to {_KEYS_MAX} of them, and a batch that is no larger"
            )
        self.size_bytes = size_bytes
        self.batch = batch
        prefix = f"kvferry-bench:{os.urandom(4).hex()}:"
        self.keys = [f"{prefix}{index:07d}" for index in range(count)]
        self._source = _allocate(batch, size_bytes)
        self._target = _allocate(batch, size_bytes)
        self._warm_target = _allocate(min(batch, -(-warm_bytes // size_bytes)), size_bytes)
        rng = np.random.default_rng()
        for row in self._source:
            row[:] = np.frombuffer(rng.bytes(len(row)), np.uint8)
        self.sources = [memoryview(row[:size_bytes]) for row in self._source]
        self.targets = [memoryview(row[:size_bytes]) for row in self._target]
        self.warm_targets = [memoryview(row[:size_bytes]) for row in self._warm_target]
        self._generations = itertools.count(1)
        self._generation: dict[int, int] = {}  # of what is stored, by first key of the batch
        self._stamped: tuple[int, int] | None = None
        self.poison()

    def batches(self) -> list[range]:
        """The batches, as ranges of key indexes."""
        count = len(self.keys)
        return [range(at, min(at + self.batch, count)) for at in range(0, count, self.batch)]

    def next_write(self, batch: range) -> None:
        """Make `sources` the next, never seen bytes of these keys."""
        self._generation[batch.start] = next(self._generations)
        self.expect(batch)

    def expect(self, batch: range) -> None:
        """Make `sources` what these keys hold since their last write."""
        wanted = (self._generation[batch.start], batch.start)
        if self._stamped == wanted:
            return
        self._stamped = wanted
        pages = -(-self.size_bytes // _PAGE)
        numbers = np.arange(pages, dtype=np.uint64)
        for row, key in zip(self._source, batch, strict=False):
            words = row.view(np.uint64)[:: _PAGE // 8][:pages]
            words[:] = numbers + np.uint64(wanted[0] << 40 | key << 20)

    def poison(self) -> None:
        """Overwrite the targets, so that nothing read before can pass for a new read."""
        self._target.fill(_POISON)
        self._warm_target.fill(_POISON)

    def verify(self, batch: range, values: Sequence[Value | None]) -> int:
        """Compare every byte of what was read; returns how many there were.

        Raises:
            CorruptError: A value is missing, short, or has a wrong byte.
        """
        self.expect(batch)
        if len(values) != len(batch):
            raise CorruptError(f"{len(values)} values came back for {len(batch)} keys")
        for row, key, value in zip(self._source, batch, values, strict=False):
            _compare(self.keys[key], row[: self.size_bytes], value)
        return len(batch) * self.size_bytes

    def verify_one(self, batch: range, index: int, value: Value | None) -> int:
        """The same for one key of a batch."""
        self.expect(batch)
        row = self._source[index - batch.start]
        _compare(self.keys[index], row[: self.size_bytes], value)
        return self.size_bytes


def fill(chunks: Chunks, probe: ServerProbe) -> None:
    """Write every key through the probe, so that reads find it."""
    for batch in chunks.batches():
        chunks.next_write(batch)
        for index, source in zip(batch, chunks.sources, strict=False):
            probe.set(chunks.keys[index], source)


def _allocate(rows: int, size_bytes: int) -> NDArray[np.uint8]:
    stride = -(-size_bytes // _PAGE) * _PAGE
    mapping = mmap.mmap(-1, rows * stride, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    mapping.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapping, np.uint8).reshape(rows, stride)


def _compare(key: str, wanted: NDArray[np.uint8], value: Value | None) -> None:
    if value is None:
        raise CorruptError(f"{key} is missing")
    got = np.frombuffer(value, np.uint8)
    if len(got) != len(wanted):
        raise CorruptError(f"{key} has {len(got)} bytes instead of {len(wanted)}")
    if not np.array_equal(got, wanted):
        at = int(np.argmax(got != wanted))
        raise CorruptError(f"{key} is wrong from byte {at} on")
