"""Files that hold the tokens of a prompt: a JSON list of numbers, or a NumPy array.

No error quotes what is in a file: whoever may name one need not be allowed to read it.

Source: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

from __future__ import annotations

import ast
import os
import stat
import struct
import sys
from collections.abc import Sequence
from typing import Any

from kvferry.errors import UsageError
from kvferry.http.bodies import numbers

__all__ = ["FILE_BYTES_MAX", "read_tokens"]

FILE_BYTES_MAX = 64 << 20
_HEADER_BYTES_MAX = 10_000
_MAGIC = b"\x93NUMPY"
# Types of elements: how a buffer of them is cast.
_ELEMENTS = {"<i4": "i", "<u4": "I", "<i8": "q"}


def read_tokens(path: str) -> Sequence[int]:
    """The tokens of a file; those of an array as a buffer.

    Raises:
        UsageError: It cannot be read, is too large, or holds something else.
    """
    raw = _content(path)
    return _array(path, raw) if raw.startswith(_MAGIC) else _list(path, raw)


def _content(path: str) -> bytes:
    if not path or "\0" in path or not os.path.isabs(path):
        raise UsageError(f"{path!r}: name token files by absolute paths on the host of the server")
    try:
        # A pipe or device would block, or do something.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        with open(handle, "rb") as stream:
            regular = stat.S_ISREG(os.fstat(handle).st_mode)
            raw = stream.read(FILE_BYTES_MAX + 1) if regular else b""
    except OSError:
        regular, raw = False, b""
    if not regular:
        raise UsageError(f"{path} cannot be read, or is no file")
    if len(raw) > FILE_BYTES_MAX:
        raise UsageError(f"{path} is larger than {FILE_BYTES_MAX} bytes")
    return raw


def _list(path: str, raw: bytes) -> Sequence[int]:
    try:
        return numbers(raw)
    except UsageError:
        pass
    raise UsageError(f"{path} is neither a JSON list of whole numbers nor a .npy file")


def _array(path: str, raw: bytes) -> memoryview[Any]:
    found = _header(raw)
    if found is None:
        raise UsageError(f"{path} is no .npy file of a version that is read here")
    facts, start = found
    kind, shape = facts.get("descr"), facts.get("shape")
    if kind not in _ELEMENTS or sys.byteorder != "little":
        raise UsageError(f"{path} is no array of int32, uint32 or int64 in little-endian order")
    data = memoryview(raw)[start:]
    size = struct.calcsize(_ELEMENTS[kind])
    if not isinstance(shape, tuple) or len(shape) != 1 or data.nbytes != shape[0] * size:
        raise UsageError(f"{path} is not one array of one dimension")
    return data.cast("B").cast(_ELEMENTS[kind])  # type: ignore[call-overload,no-any-return]


def _header(raw: bytes) -> tuple[dict[str, Any], int] | None:
    """The facts of an array, and where its elements begin."""
    wide = raw[6:7] in (b"\x02", b"\x03")
    if not wide and raw[6:7] != b"\x01":
        return None
    start = 12 if wide else 10
    if len(raw) < start:
        return None
    length = struct.unpack_from("<I" if wide else "<H", raw, 8)[0]
    if length > _HEADER_BYTES_MAX:
        return None
    try:
        facts = ast.literal_eval(raw[start : start + length].decode("latin-1").strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    return (facts, start + length) if isinstance(facts, dict) else None
