"""Many pieces of memory moved by the copy engines of a GPU, in one call of CUDA's driver.

    pieces = Pieces(torch, tensors, layouts)
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

from kvferry.integrations.vllm.layouts import BlockLayout

__all__ = ["BatchCopy", "Pieces", "find_batch_copy"]

# Three tensors of int64 on the host, as long as one another, and the number of a stream; returns
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
        addresses = (tensor.data_ptr() for tensor in (targets, sources, lengths))
        shared = (ctypes.byref(attributes), ctypes.byref(first), 1, ctypes.byref(failed))
        return int(call(*addresses, len(targets), *shared, stream))

    return copy


class Pieces:
    """Where the runs of bytes of blocks lie, on the device and in a chunk.

    Args:
        tensors, layouts: One for each layer.
    """

    def __init__(self, torch: Any, tensors: Sequence[Any], layouts: Sequence[BlockLayout]) -> None:
        self._torch = torch
        starts, strides, heads, steps, offsets, lengths, self._ends = [], [], [], [], [], [], [0]
        head = 0  # bytes of a block in the regions before
        for tensor, layout in zip(tensors, layouts, strict=True):
            for region in layout.regions:
                rows, row_bytes = region.rows, region.row_bytes
                if region.row_stride == row_bytes:
                    rows, row_bytes = 1, rows * row_bytes
                for row in range(rows):
                    starts.append(tensor.data_ptr() + region.offset + row * region.row_stride)
                    strides.append(region.block_stride)
                    heads.append(head)
                    steps.append(rows * row_bytes)
                    offsets.append(row * row_bytes)
                    lengths.append(row_bytes)
                head += rows * row_bytes
                self._ends.append(len(starts))
        self.shortest = min(lengths)
        told = (starts, strides, heads, steps, offsets, lengths)
        self._told = torch.tensor(told, dtype=torch.int64).reshape(len(told), -1, 1, 1)

    def count(self, regions: range) -> int:
        """Of one block in these regions."""
        return self._ends[regions.stop] - self._ends[regions.start]

    def find(
        self, block_ids: Sequence[int], pages: Sequence[int], regions: range
    ) -> tuple[Any, Any, Any]:
        """Of blocks that are wanted: addresses on the device, addresses in pages, and lengths."""
        torch = self._torch
        told = self._told[:, self._ends[regions.start] : self._ends[regions.stop]]
        starts, strides, heads, steps, offsets, lengths = told
        ids = torch.tensor(block_ids, dtype=torch.int64).reshape(1, len(pages), -1)
        page = torch.tensor(pages, dtype=torch.int64).reshape(1, -1, 1)
        place = torch.arange(ids.shape[2]).reshape(1, 1, -1)
        here = starts + ids * strides
        there = page + heads * ids.shape[2] + place * steps + offsets
        wanted = (ids >= 0).expand_as(here)
        return here[wanted], there[wanted], lengths.expand_as(here)[wanted]
