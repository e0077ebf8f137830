"""KV chunks of a real model's size, made of the transformer's own.

A chunk is the transformer's page, then filler up to the model's size. The filler is random bytes,
cut out elsewhere for each prefix, and every 4 KiB of it begin with a stamp: a hash of the prefix
and of the page in front. So a chunk that was loaded is compared byte for byte with what it must be,
without computing it, and the page that the transformer goes on with is part of that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from kvferry.base.errors import UsageError
from kvferry_lab.transformer import KVCache, TransformerConfig

__all__ = ["SequenceChunks"]

U8: TypeAlias = npt.NDArray[np.uint8]

_BLOCK_BYTES = 4096
_STAMP_BYTES = 16
_PIECE_BYTES = 256 * _BLOCK_BYTES  # what is compared at a time stays in the processor's cache
_PLACES = 4096


class SequenceChunks:
    """Makes and checks chunks. Holds no state, so any number of threads may use it.

    Args:
        config: Of the transformer.
        chunk_bytes: Of a chunk.

    Raises:
        UsageError: The transformer's page is larger.
    """

    def __init__(self, config: TransformerConfig, chunk_bytes: int) -> None:
        self.head_bytes = config.page_bytes
        self.chunk_bytes = chunk_bytes
        filler_bytes = chunk_bytes - self.head_bytes
        if filler_bytes < 0:
            least = self.head_bytes // config.page_tokens
            raise UsageError(f"KV of a token must have at least {least} bytes here")
        generator = np.random.Generator(np.random.SFC64(0))
        size = filler_bytes + 8 * _PLACES if filler_bytes else 0
        self._random: U8 = np.frombuffer(generator.bytes(size), np.uint8)

    def make(self, digest: bytes, page: npt.NDArray[np.generic], target: U8) -> None:
        """Fill `target` with the chunk of a prefix, whose hash this is."""
        head = page.reshape(-1).view(np.uint8)
        target[: self.head_bytes] = head
        stamp = _stamp(digest, head)
        for start, end in self._pieces():
            self._filler(digest, stamp, start, target[self.head_bytes + start :][: end - start])

    def take(self, digests: Sequence[bytes], loaded: Sequence[memoryview], kv: KVCache) -> int:
        """Put loaded chunks into an empty cache; how many were what they must be, up to the first
        one that is not."""
        expected = np.empty(_PIECE_BYTES, np.uint8)
        for index, (digest, view) in enumerate(zip(digests, loaded, strict=False)):
            chunk = np.frombuffer(view, np.uint8)
            if not self._is_right(digest, chunk, expected):
                return index
            page = kv.pages[index].reshape(-1).view(np.uint8)
            page[:] = chunk[: self.head_bytes]
        return min(len(digests), len(loaded))

    def _is_right(self, digest: bytes, chunk: U8, expected: U8) -> bool:
        if len(chunk) != self.chunk_bytes:
            return False
        stamp = _stamp(digest, chunk[: self.head_bytes])
        for start, end in self._pieces():
            piece = expected[: end - start]
            self._filler(digest, stamp, start, piece)
            if not _equal(piece, chunk[self.head_bytes + start :][: end - start]):
                return False
        return True

    def _pieces(self) -> Iterator[tuple[int, int]]:
        filler_bytes = self.chunk_bytes - self.head_bytes
        for start in range(0, filler_bytes, _PIECE_BYTES):
            yield start, min(start + _PIECE_BYTES, filler_bytes)

    def _filler(self, digest: bytes, stamp: U8, start: int, target: U8) -> None:
        """The filler from `start` on, a whole number of blocks."""
        place = 8 * (int.from_bytes(digest[:4], "little") % _PLACES) + start
        target[:] = self._random[place : place + len(target)]
        whole = len(target) // _BLOCK_BYTES * _BLOCK_BYTES
        target[:whole].reshape(-1, _BLOCK_BYTES)[:, :_STAMP_BYTES] = stamp
        rest = target[whole:][:_STAMP_BYTES]
        rest[:] = stamp[: len(rest)]


def _equal(a: U8, b: U8) -> bool:
    whole = len(a) // 8 * 8  # eight bytes at a time, which is several times as fast
    same = np.array_equal(a[:whole].view(np.uint64), b[:whole].view(np.uint64))
    return bool(same and np.array_equal(a[whole:], b[whole:]))


def _stamp(digest: bytes, head: U8) -> U8:
    hashed = hashlib.blake2b(head.tobytes(), digest_size=_STAMP_BYTES, key=digest).digest()
    return np.frombuffer(hashed, np.uint8)
