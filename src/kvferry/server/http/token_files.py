"""Files that hold the tokens of a prompt: a JSON list of numbers, or a NumPy array.

No error quotes what is in a file: whoever may name one need not be allowed to read it.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from kvferry.base.errors import UsageError
from kvferry.http.bodies import numbers

__all__ = ["FILE_BYTES_MAX", "read_tokens"]

FILE_BYTES_MAX = 64 << 20
_MAGIC = b"\x93NUMPY"
_ELEMENTS = ("<i4", "<u4", "<i8")


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
    import numpy as np  # only who names such a file pays for it

    stream, found = io.BytesIO(raw), None
    with suppress(Exception):  # for headers that cannot be, NumPy has no common one
        found = np.load(stream, allow_pickle=False)
    if found is None:
        raise UsageError(f"{path} is no whole .npy file")
    if found.dtype.str not in _ELEMENTS:
        raise UsageError(f"{path} is no array of int32, uint32 or int64 in little-endian order")
    if found.ndim != 1 or stream.read(1):
        raise UsageError(f"{path} is not one array of one dimension")
    return memoryview(found)
