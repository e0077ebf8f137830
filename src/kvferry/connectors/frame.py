"""The frame of docs/formats/frame.md around values of any length that somebody else's client moves.

    frame = Frame(space)
    frame.write(b"key", value, stored)           # value -> header and payload
    cause = frame.read(b"key", stored, target)   # "" or why it is not what was stored

`stored` has `HEADER_BYTES` more than the value. `write` and `read` cut no value into stripes: the
store may be anything, and has no pieces of ours; `headers` are those of stripes as well. Bytes are
copied and summed without the GIL.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from kvferry import _native
from kvferry.connectors.base import Space

__all__ = ["HEADER_BYTES", "Frame"]

_FIELDS = struct.Struct("<4sBBHQQQ8sQQHH")
_SUM = struct.Struct("<I")
_MAGIC = b"KVFY"
_VERSION = 1
HEADER_BYTES = _FIELDS.size + _SUM.size


class Frame:
    """Headers of one space. Threads: any."""

    def __init__(self, space: Space) -> None:
        self._identity = space.identity[:8]
        self._size_bytes = space.value_size_bytes

    def write(self, name: bytes, value: memoryview, stored: memoryview) -> None:
        """A header and a copy of the value."""
        checksum = _native.checksum(value, stored[HEADER_BYTES:])
        [stored[:HEADER_BYTES]] = self.headers(name, [checksum], [self._size_bytes])

    def read(self, name: bytes, stored: memoryview, target: memoryview) -> str:
        """Copy the payload out, and say in a word why it is not what was stored under this name.

        "": it is. Whatever it is, the target may have been written to.
        """
        checksum = _native.checksum(stored[HEADER_BYTES:], target)
        found = bytes(stored[:HEADER_BYTES])
        if [found] == self.headers(name, [checksum], [self._size_bytes]):
            return ""
        return self._cause(name, found)

    def _cause(self, name: bytes, found: bytes) -> str:
        magic, version, _, _, size, whole, _, identity, key, _, _, _ = _FIELDS.unpack_from(found)
        if magic != _MAGIC:
            return "magic"
        if version != _VERSION:
            return "version"
        if _SUM.unpack_from(found, _FIELDS.size)[0] != _sum(found[: _FIELDS.size]):
            return "header"
        if identity != self._identity:
            return "identity"
        if key != _native.checksum(name):
            return "key"
        return "size" if (size, whole) != (self._size_bytes,) * 2 else "checksum"

    def headers(self, name: bytes, checksums: Sequence[int], sizes: Sequence[int]) -> list[bytes]:
        """Those of the stripes of a value, of which each has a checksum and a length."""
        generation = _native.checksum(struct.pack(f"<{len(checksums)}Q", *checksums))
        key, whole, count = _native.checksum(name), self._size_bytes, len(sizes)
        made = []
        for index, (checksum, size) in enumerate(zip(checksums, sizes, strict=True)):
            fields = _FIELDS.pack(
                *(_MAGIC, _VERSION, 0, 0, size, whole, checksum, self._identity, key),
                *(generation, index, count),
            )
            made.append(fields + _SUM.pack(_sum(fields)))
        return made


def _sum(fields: bytes) -> int:
    return _native.checksum(fields) & 0xFFFF_FFFF
