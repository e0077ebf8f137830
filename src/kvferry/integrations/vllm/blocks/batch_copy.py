"""Many pieces of memory moved by the copy engines of a GPU, in one call of CUDA's driver.

    pieces = Pieces(tensors, layouts)
    here, there, lengths = pieces.find(block_ids, addresses_of_pages, regions)
    batch = find_batch_copy()          # None: this driver has no such call, or there is no CUDA
    code = batch(there, here, lengths, stream)

The call takes no processor of the device, no memory on it, and one turn of Python for thousands of
pieces. It needs a driver of CUDA 12.8 (570) or later, and host memory that is pinned.

Threads: any. Nothing of CUDA is touched by importing this. Source: cuMemcpyBatchAsync in CUDA's
driver API.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from kvferry.integrations.vllm.blocks.layouts import BlockLayout

__all__ = ["BatchCopy", "Pieces", "find_batch_copy"]

# Three NumPy arrays of int64, as long as one another, and the number of a stream; returns
# when all is told to the device. An error of CUDA's; 0: none.
BatchCopy = Callable[[Any, Any, Any, int], int]

_IN_STREAM_ORDER = 1  # sources are read when it is the stream's turn


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


def find_batch_copy() -> BatchCopy | None:
    """The call of this host's driver."""
    try:
        call = ctypes.CDLL("libcuda.so.1").cuMemcpyBatchAsync
    except (OSError, AttributeError):
        return None
    size, pointer = ctypes.c_size_t, ctypes.c_void_p
    call.argtypes = [pointer, pointer, pointer, size, pointer, pointer, size, pointer, pointer]
    call.restype = ctypes.c_int

    def copy(targets: Any, sources: Any, lengths: Any, stream: int) -> int:
        attributes, first, failed = _Attributes(_IN_STREAM_ORDER), size(0), size(0)
        addresses = (array.ctypes.data for array in (targets, sources, lengths))
        shared = (ctypes.byref(attributes), ctypes.byref(first), 1, ctypes.byref(failed))
        return int(call(*addresses, len(targets), *shared, stream))

    return copy


class Pieces:
    """Where the runs of bytes of blocks lie, on the device and in a chunk.

    Args:
        tensors, layouts: One for each layer.
    """

    def __init__(self, tensors: Sequence[Any], layouts: Sequence[BlockLayout]) -> None:
        # torch would share out these small sums among all cores, which takes longer than they do.
        import numpy as np

        self._np = np
        told: list[tuple[int, int, int, int, int, int]] = []
        self._ends = [0]
        head = 0  # bytes of a block in the regions before
        for tensor, layout in zip(tensors, layouts, strict=True):
            for region in layout.regions:
                rows, row_bytes = region.rows, region.row_bytes
                if region.row_stride == row_bytes:
                    rows, row_bytes = 1, rows * row_bytes
                start, step = tensor.data_ptr() + region.offset, rows * row_bytes
                told += [
                    (
                        start + row * region.row_stride,
                        region.block_stride,
                        head,
                        step,
                        row * row_bytes,
                        row_bytes,
                    )
                    for row in range(rows)
                ]
                head += step
                self._ends.append(len(told))
        self.shortest = min(row_bytes for *_, row_bytes in told)
        self._told = np.array(told, np.int64).T[..., None, None]

    def count(self, regions: range) -> int:
        """Of one block in these regions."""
        return self._ends[regions.stop] - self._ends[regions.start]

    def find(
        self, block_ids: Sequence[int], pages: Sequence[int], regions: range
    ) -> tuple[Any, Any, Any]:
        """Of blocks that are wanted: addresses on the device, addresses in pages, and lengths."""
        np = self._np
        told = self._told[:, self._ends[regions.start] : self._ends[regions.stop]]
        starts, strides, heads, steps, offsets, lengths = told
        ids = np.array(block_ids, np.int64).reshape(1, len(pages), -1)
        page = np.array(pages, np.int64).reshape(1, -1, 1)
        each = ids.shape[2]
        here = starts + ids * strides
        there = page + heads * each + np.arange(each) * steps + offsets
        long = np.broadcast_to(lengths, here.shape)
        wanted = ids >= 0
        if wanted.all():
            return here.ravel(), there.ravel(), long.ravel()
        wanted = np.broadcast_to(wanted, here.shape)
        return here[wanted], there[wanted], long[wanted]
