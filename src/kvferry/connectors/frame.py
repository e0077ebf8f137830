"""The frame of docs/formats/frame.md around values of any length that somebody else's client moves.

    frame = Frame(space)
    frame.write("key", value, stored)      # value -> header and payload
    cause = frame.read("key", stored, target)    # "" or why it is not what was stored

`stored` has `HEADER_BYTES` more than the value. Values are not cut into stripes here: the store may
be anything, and has no pieces of ours. Bytes are copied and summed without the GIL.
"""

from __future__ import annotations

import struct

from kvferry import _native
from kvferry.connectors.base import Space

__all__ = ["HEADER_BYTES", "Frame"]

_FIELDS = struct.Struct("<4sBBHQQQ8sQQHH")
_SUM = struct.Struct("<I")
_GENERATION = struct.Struct("<Q")
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
        stored[:HEADER_BYTES] = self._header(name, checksum)

    def read(self, name: bytes, stored: memoryview, target: memoryview) -> str:
        """Copy the payload out, and say in a word why it is not what was stored under this name.

        "": it is. Whatever it is, the target may have been written to.
        """
        checksum = _native.checksum(stored[HEADER_BYTES:], target)
        found = bytes(stored[:HEADER_BYTES])
        if found == self._header(name, checksum):
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

    def _header(self, name: bytes, checksum: int) -> bytes:
        fields = _FIELDS.pack(
            _MAGIC,
            _VERSION,
            0,
            0,
            self._size_bytes,
            self._size_bytes,
            checksum,
            self._identity,
            _native.checksum(name),
            _native.checksum(_GENERATION.pack(checksum)),
            0,
            1,
        )
        return fields + _SUM.pack(_sum(fields))


def _sum(fields: bytes) -> int:
    return _native.checksum(fields) & 0xFFFF_FFFF
