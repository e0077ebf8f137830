"""Memory of a DLPack tensor, found without the library that made it.

PyTorch, JAX and others hand out a capsule that holds a C struct; its first bytes say where the
elements are. Reading that struct with ctypes keeps NumPy and torch out of the imports, and takes
every element type, bfloat16 and float8 included, because to us they are bytes.

Source: the DLPack specification, ``dlpack.h`` versions 0.8 and 1.0.
"""

from __future__ import annotations

import ctypes
from math import prod
from typing import Any

from kvferry.base.errors import BadBufferError

__all__ = ["tensor_memory", "view_memory"]

_HOST_DEVICES = (1, 3, 11)  # kDLCPU, kDLCUDAHost (pinned), kDLROCMHost
_READ_ONLY = 1  # DLPACK_FLAG_BITMASK_READ_ONLY


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("type_code", ctypes.c_uint8),
        ("type_bits", ctypes.c_uint8),
        ("type_lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = (ctypes.py_object, ctypes.c_char_p)
_is_valid.restype = ctypes.c_int
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.argtypes = (ctypes.py_object, ctypes.c_char_p)
_pointer_of.restype = ctypes.c_void_p


def tensor_memory(tensor: Any) -> memoryview:
    """The bytes of a contiguous tensor in host memory; the view keeps the tensor alive.

    Raises:
        BadBufferError: It is on a device, not contiguous, or cannot be exported.
    """
    device = int(tensor.__dlpack_device__()[0])
    if device not in _HOST_DEVICES:
        raise BadBufferError(
            f"{type(tensor).__name__} is in device memory (DLPack device {device}); "
            "copy it to host memory first"
        )
    try:
        capsule = _export(tensor)
    except Exception as error:  # each library has its own: BufferError, RuntimeError, ...
        raise BadBufferError(f"{type(tensor).__name__} cannot be exported: {error}") from error
    read_only = False
    if _is_valid(capsule, b"dltensor_versioned"):
        outer = _Versioned.from_address(_pointer_of(capsule, b"dltensor_versioned"))
        inner, read_only = outer.tensor, bool(outer.flags & _READ_ONLY)
    elif _is_valid(capsule, b"dltensor"):
        inner = _Tensor.from_address(_pointer_of(capsule, b"dltensor"))
    else:
        raise BadBufferError(f"{type(tensor).__name__} exports an unknown kind of DLPack capsule")
    shape = inner.shape[: inner.ndim]
    if inner.strides and not _is_contiguous(shape, inner.strides[: inner.ndim]):
        raise BadBufferError(f"{type(tensor).__name__} is not contiguous; call .contiguous() first")
    size_bytes = (prod(shape) * inner.type_bits * inner.type_lanes + 7) // 8
    # The capsule was not consumed: when it goes, its destructor lets the tensor go.
    address = (inner.data or 0) + inner.byte_offset
    return view_memory(address, size_bytes, owner=capsule, read_only=read_only)


def view_memory(address: int, size_bytes: int, *, owner: object, read_only: bool) -> memoryview:
    """A view of raw memory that keeps `owner` alive."""
    if not size_bytes:
        return memoryview(b"" if read_only else bytearray())
    block = (ctypes.c_ubyte * size_bytes).from_address(address)
    block.owner = owner  # type: ignore[attr-defined]  # ctypes objects take attributes
    view = memoryview(block).cast("B")
    return view.toreadonly() if read_only else view


def _export(tensor: Any) -> Any:
    try:
        return tensor.__dlpack__(max_version=(1, 0))  # with it comes the read-only flag
    except TypeError:  # a producer older than DLPack 1.0
        return tensor.__dlpack__()


def _is_contiguous(shape: list[int], strides: list[int]) -> bool:
    expected = 1
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != expected:
            return prod(shape) == 0
        expected *= length
    return True
