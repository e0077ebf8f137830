"""Keys and values that a client accepts, as bytes in place: nothing here copies.

A value is any C-contiguous host memory: bytes, bytearray, memoryview, array, mmap, NumPy arrays of
any element type, pages of the pool, and DLPack tensors (PyTorch, JAX). A buffer stays the caller's:
it must not be changed (set) or read (get) before the call that was given it has returned.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from math import prod
from pickle import PickleBuffer
from typing import Any, Protocol, TypeAlias

from typing_extensions import Buffer

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.base.shown import shown
from kvferry.client.dlpack import tensor_memory, view_memory

__all__ = [
    "KEY_SIZE_BYTES_MAX",
    "BufferLike",
    "Key",
    "as_buffer",
    "check_batch",
    "check_targets",
    "encode_key",
    "encode_keys",
    "readable",
    "writable",
]

KEY_SIZE_BYTES_MAX = 512


class SupportsArrayInterface(Protocol):
    """NumPy arrays, to type checkers that do not know their buffer protocol."""

    @property
    def __array_interface__(self) -> dict[str, Any]: ...


class SupportsDLPack(Protocol):
    """Tensors that export themselves through DLPack."""

    def __dlpack__(self) -> Any: ...
    def __dlpack_device__(self) -> tuple[Any, Any]: ...


BufferLike: TypeAlias = Buffer | SupportsArrayInterface | SupportsDLPack
Key: TypeAlias = str | bytes


def as_buffer(value: BufferLike) -> Buffer:
    """`value` itself if it has the buffer protocol, else a view of its memory that has it.

    Raises:
        BadBufferError: It is no buffer, or not in host memory, or not contiguous.
    """
    reason = "not a buffer"
    try:
        memoryview(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    except (ValueError, BufferError) as error:  # bfloat16 has a buffer, of a type without a name
        reason = f"of no use: {error}"  # and what was closed or released has none any more
    else:
        return value  # type: ignore[return-value]
    if hasattr(value, "__array_interface__"):
        return _array_memory(value)
    if hasattr(value, "__dlpack_device__"):
        return tensor_memory(value)
    kind = type(value).__name__
    if hasattr(value, "__cuda_array_interface__"):
        raise BadBufferError(f"{kind} is in device memory; copy it to host memory first")
    hint = "; encode it first" if isinstance(value, str) else ""
    raise BadBufferError(f"{kind} is {reason}{hint}")


def readable(value: BufferLike) -> memoryview:
    """The bytes of `value`, one-dimensional; may be empty.

    Raises:
        BadBufferError: As `as_buffer`, or not C-contiguous.
    """
    buffer = as_buffer(value)
    try:
        with memoryview(buffer) as view:
            contiguous, holds_objects = view.c_contiguous, view.format == "O"
        if holds_objects or getattr(getattr(value, "dtype", None), "hasobject", False):
            raise BadBufferError(f"{type(value).__name__} holds Python objects, not plain memory")
        if contiguous:
            return PickleBuffer(buffer).raw()  # unlike cast("B"), takes every element type
    except BadBufferError:
        raise
    except (ValueError, BufferError) as error:  # released, or a mapping that was closed
        raise BadBufferError(f"{type(value).__name__} cannot be read: {error}") from error
    raise BadBufferError(f"{type(value).__name__} is not C-contiguous; copy it to make it so")


def writable(target: BufferLike) -> memoryview:
    """The bytes of `target`, to be overwritten.

    Raises:
        BadBufferError: As `readable`, or read-only.
    """
    view = readable(target)
    if view.readonly:
        raise BadBufferError(f"{type(target).__name__} is read-only; a target must be writable")
    return view


def check_targets(targets: Sequence[memoryview]) -> None:
    """Refuse targets of one batch that share memory: two values cannot lie in one place.

    Raises:
        BadBufferError: Two targets overlap; the text names both.
    """
    spans = sorted(
        (ctypes.addressof(ctypes.c_ubyte.from_buffer(view)), len(view), index)
        for index, view in enumerate(targets)
        if len(view)
    )
    for (start, size, index), (following, _, other) in pairwise(spans):
        if start + size > following:
            raise BadBufferError(f"buffers {index} and {other} overlap; use separate memory")


def encode_key(key: Key) -> bytes:
    """The bytes of a key: 1 to 512, text as UTF-8.

    Raises:
        UsageError: It is empty, too long, has no UTF-8 form, or is neither str nor bytes.
    """
    if isinstance(key, str):
        try:
            encoded = key.encode()
        except UnicodeEncodeError:
            raise UsageError(f"key {shown(key)} holds a lone surrogate; use bytes") from None
    elif isinstance(key, bytes):
        encoded = key
    else:
        raise UsageError(f"a key is str or bytes, not {type(key).__name__}")
    if not 1 <= len(encoded) <= KEY_SIZE_BYTES_MAX:
        raise UsageError(f"a key has 1 to {KEY_SIZE_BYTES_MAX} bytes, this one {len(encoded)}")
    return encoded


def encode_keys(keys: Sequence[Key]) -> list[bytes]:
    """The keys of a batch.

    Raises:
        UsageError: There is none, or one of them cannot be a key.
    """
    if isinstance(keys, str | bytes):
        raise UsageError("keys is a single key; pass a list of keys")
    encoded = [encode_key(key) for key in keys]
    if not encoded:
        raise UsageError("the batch is empty; pass at least one key")
    return encoded


def check_batch(keys: Sequence[Key], buffers: Sequence[BufferLike]) -> list[bytes]:
    """The keys of a batch that has one buffer for each.

    Raises:
        UsageError: As `encode_keys`, or there is not one buffer per key.
    """
    encoded = encode_keys(keys)
    if len(encoded) != len(buffers):
        raise UsageError(f"{len(encoded)} keys but {len(buffers)} buffers; pass one buffer per key")
    return encoded


def _array_memory(array: Any) -> Buffer:
    interface = array.__array_interface__
    shape, typestr = interface["shape"], interface["typestr"]
    data = interface.get("data")
    if typestr[1] == "O" or not isinstance(data, tuple):
        raise BadBufferError(f"{type(array).__name__} of {typestr!r} has no plain memory")
    if interface.get("strides") is not None:
        raise BadBufferError(f"{type(array).__name__} is not C-contiguous; copy it to make it so")
    address, read_only = data
    item_size = int(typestr[2:].partition("[")[0]) * (4 if typestr[1] == "U" else 1)
    size_bytes = prod(shape) * item_size
    return view_memory(address, size_bytes, owner=array, read_only=read_only)
