"""Cuts the code of other GPUs out of a CUDA library.

    data = bytearray(path.read_bytes())
    without_other_code(data, keep=90)     # sm_90, the H100 and H200; what is left has zeros there

The code of each GPU lies in its own entry of a fat binary, section ``.nv_fatbin``. An entry of
another GPU keeps its header, by which the driver passes it over, and its code becomes zeros, which
a compressor makes nothing of. Every offset of the file stays as it is. PTX goes too: kernels that
have no machine code for this GPU are those of other GPUs and of quantized weights, and whoever
calls one is told by the driver that it has no code.

Layout: a fat binary has a header of magic, version, size of the header and of all entries; an entry
begins with kind (1: PTX, 2: machine code), size of its header, size of its code; the GPU's number
stands 28 bytes from its beginning. Read off the libraries of vLLM 0.22.1 for CUDA 13.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Entry", "fat_binaries", "without_other_code"]

_MAGIC = 0xBA55ED50
_MACHINE_CODE = 2
_ALIGNED = 8
_GPU_AT = 28


@dataclass(frozen=True)
class Entry:
    """The code of one GPU: where it lies in the file."""

    kind: int
    gpu: int
    begin: int
    end: int


def without_other_code(library: bytearray, keep: int) -> int:
    """Zero what a GPU of number `keep` does not run; the bytes that are left of the code.

    Raises:
        ValueError: Not a 64-bit ELF file.
    """
    left = 0
    for binary in fat_binaries(library):
        kept = [entry for entry in binary if entry.kind == _MACHINE_CODE and entry.gpu == keep]
        for entry in binary:
            if entry in kept:
                left += entry.end - entry.begin
            else:
                library[entry.begin : entry.end] = bytes(entry.end - entry.begin)
    return left


def fat_binaries(library: bytes | bytearray) -> Iterator[list[Entry]]:
    """The entries of each fat binary of a library."""
    at, end = _section(library, b".nv_fatbin")
    while at < end:
        magic, _, header, size = struct.unpack_from("<IHHQ", library, at)
        if magic != _MAGIC:
            at += _ALIGNED
            continue
        at += header
        last = at + size
        found = []
        while at < last:
            kind, _, entry_header, code = struct.unpack_from("<HHIQ", library, at)
            (gpu,) = struct.unpack_from("<I", library, at + _GPU_AT)
            found.append(Entry(kind, gpu, at + entry_header, at + entry_header + code))
            at += entry_header + code
        yield found


def _section(library: bytes | bytearray, name: bytes) -> tuple[int, int]:
    """Begin and end of a section of a 64-bit ELF file; (0, 0) where it has none."""
    if library[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    (table,) = struct.unpack_from("<Q", library, 0x28)
    each, count, names = struct.unpack_from("<HHH", library, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", library, table + index * each) for index in range(count)]
    for row in rows:
        begin = rows[names][4] + row[0]
        if library[begin : library.index(0, begin)] == name:
            return row[4], row[4] + row[5]
    return 0, 0
