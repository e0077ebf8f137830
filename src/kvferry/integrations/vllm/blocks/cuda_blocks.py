"""Blocks of a GPU, moved between where they lie and pages of the host.

    blocks --batch of DMA--> page                       pages that are pinned (`CudaBlocks.pin`)
    blocks --index_select--> a chunk on the device --DMA--> pinned --memcpy--> page       all others

The blocks of a chunk lie in many places. The batch call of CUDA's driver (cuMemcpyBatchAsync, CUDA
12.8 or driver 570 and later) takes all of them at once and has the copy engines move each piece to
its place in the page: no processor of the device, no memory on it, and one turn of Python for
thousands of pieces. Where that cannot be, because a page is not pinned, the driver is older or
pieces are short, the device brings a chunk together, and one transfer moves it; while the next
chunk is on its way, the processor copies the one before it out of pinned memory.

- Each direction has a stream of its own. It waits for an event of the forward pass (`fence`), and
  the forward pass waits for nothing of ours: whoever tells the engine that blocks are loaded has
  waited for the copy before.
- A call waits, in its own thread, until its last byte has arrived.
- Memory on the device, for the second way: two chunks for each direction. As much pinned memory on
  the host, unless pages are pinned.

Threads: any; calls of one direction take turns. Nothing of CUDA is touched by importing this.
Source: cuMemcpyBatchAsync in CUDA's driver API.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import gcd
from typing import Any

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.base.threads import Guarded
from kvferry.client.buffers import BufferLike, readable, writable
from kvferry.integrations.vllm.blocks.layouts import BlockLayout

__all__ = ["CudaBlocks"]

_log = logging.getLogger("kvferry.integrations.vllm")

_SLOTS = 2  # one is filled while the other is on its way
# Shorter pieces are brought together on the device first: each piece costs the driver the same, and
# the device gathers short ones quicker (docs/guides/engines.md has the rates of both ways).
_PIECE_BYTES_MIN = 16 << 10
# Of one call: the first piece moves only when the driver has read the last.
_PIECES_MAX = 8192
_IN_STREAM_ORDER = 1  # sources are read when it is the stream's turn

# Three NumPy arrays of int64, as long as one another, and the number of a stream; returns
# when all is told to the device. An error of CUDA's; 0: none.
_BatchCopy = Callable[[Any, Any, Any, int], int]


class CudaBlocks:
    """Tensors on a GPU; see `BlockCopier`, whose checks come first.

    Args:
        tensors: One for each layer, all on one device.
        layouts: Of each.
    """

    def __init__(self, tensors: Sequence[Any], layouts: Sequence[BlockLayout]) -> None:
        import torch

        self._torch = torch
        self._device = tensors[0].device
        self._blocks = layouts[0].blocks
        self._block_bytes = sum(layout.block_bytes for layout in layouts)
        self._views: list[Any] = []
        self._sizes: list[int] = []  # bytes of a block in each region
        word, dtype = self._word(tensors, layouts)
        for tensor, layout in zip(tensors, layouts, strict=True):
            storage = tensor.untyped_storage()
            flat = torch.empty(0, dtype=dtype, device=self._device)
            flat.set_(storage, 0, (storage.nbytes() // word,), (1,))
            start = tensor.storage_offset() * tensor.element_size()
            for region in layout.regions:
                shape = (layout.blocks, region.rows, region.row_bytes // word)
                strides = (region.block_stride // word, region.row_stride // word, 1)
                self._views.append(
                    torch.as_strided(flat, shape, strides, (start + region.offset) // word)
                )
                self._sizes.append(region.rows * region.row_bytes)
        self._dtype = dtype
        self._pieces = _Pieces(tensors, layouts)
        long = self._pieces.shortest >= _PIECE_BYTES_MIN
        self._batch: _BatchCopy | None = _find_batch_copy() if long else None
        self._lanes = {to_pages: _Lane(torch, self._device) for to_pages in (True, False)}
        self._pinned: list[tuple[int, memoryview]] = []

    def _word(self, tensors: Sequence[Any], layouts: Sequence[BlockLayout]) -> tuple[int, Any]:
        """The longest element that divides every length: the fewer there are, the faster it is."""
        lengths = [
            length
            for tensor, layout in zip(tensors, layouts, strict=True)
            for region in layout.regions
            for length in (
                tensor.storage_offset() * tensor.element_size() + region.offset,
                *region[1:2],
                *region[3:],
            )
        ]
        torch = self._torch
        word = gcd(8, *lengths)
        return word, {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[word]

    def fence(self) -> Any:
        """An event behind all that the stream of this thread has been told to do."""
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def copy(
        self,
        block_ids: Sequence[int],
        pages: Sequence[BufferLike],
        to_pages: bool,
        regions: range,
        after: Any,
    ) -> None:
        """Copy some regions of blocks, as many for each page, to pages or back."""
        each = self._checked(block_ids, pages, to_pages)
        if not each or not len(regions):
            return
        size = each * self._block_bytes
        opened = [(writable if to_pages else readable)(page) for page in pages]
        for index, page in enumerate(opened):
            if page.nbytes != size:
                raise BadBufferError(
                    f"buffer {index} has {page.nbytes} bytes, its blocks have {size}"
                )
        after = after or self.fence()
        torch, lane = self._torch, self._lanes[to_pages]
        with lane.lock, torch.inference_mode(), torch.cuda.device(self._device):
            if self._in_batches(lane, block_ids, opened, to_pages, regions, after):
                return
            lane.reserve(size)
            with torch.cuda.stream(lane.stream):
                lane.stream.wait_event(after)
                try:
                    for index, page in enumerate(opened):
                        ids = block_ids[index * each : (index + 1) * each]
                        slot = lane.next()
                        if to_pages:
                            self._out(lane, slot, ids, page, regions)
                        else:
                            self._in(lane, slot, ids, page, regions)
                finally:
                    for _ in range(_SLOTS):
                        lane.next()

    def pin(self, memories: Sequence[BufferLike]) -> None:
        """Have the device read and write these itself, until `close`.

        They must stay mapped until then; this keeps the buffers. It takes a moment for each GB, and
        is waited for: CUDA allows none of it while a graph is captured. A thread does it, because
        an error would be raised by the next kernel that its thread launches.
        """
        thread = Guarded(self._pin, "pin", memories, errand=True, daemon=False)
        thread.start()
        thread.join()

    def _pin(self, memories: Sequence[BufferLike]) -> None:
        for memory in memories:
            view = readable(memory)
            address = _frozen(self._torch, view).data_ptr()
            with self._torch.cuda.device(self._device):
                code = int(self._torch.cuda.cudart().cudaHostRegister(address, view.nbytes, 0))
            if code:
                _log.info(
                    "%.1f GB of pages cannot be pinned (CUDA error %d), so they are copied once "
                    "more; `ulimit -l unlimited` may help",
                    view.nbytes / 1e9,
                    code,
                )
            else:
                self._pinned.append((address, view))

    def close(self) -> None:
        """Wait for copies under way, and give back what was pinned and reserved."""
        for lane in self._lanes.values():
            lane.close()
        for address, _ in self._pinned:
            with suppress(RuntimeError):
                self._torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()

    # --- All chunks, from where they lie ---

    def _in_batches(
        self,
        lane: _Lane,
        block_ids: Sequence[int],
        pages: Sequence[memoryview],
        to_pages: bool,
        regions: range,
        after: Any,
    ) -> bool:
        """Copy as `copy` does, if the driver and the pages allow it; whether it is done."""
        batch = self._batch
        if batch is None:
            return False
        addresses = [_frozen(self._torch, page).data_ptr() for page in pages]
        if not all(self._is_pinned(address) for address in addresses):
            return False
        each = len(block_ids) // len(pages)
        lane.stream.wait_event(after)
        step = max(1, _PIECES_MAX // max(1, self._pieces.count(regions) * each))
        try:
            for first in range(0, len(pages), step):
                ids, some = (
                    block_ids[first * each : (first + step) * each],
                    slice(first, first + step),
                )
                here, there, lengths = self._pieces.find(ids, addresses[some], regions)
                ends = (there, here) if to_pages else (here, there)
                code = batch(*ends, lengths, lane.stream.cuda_stream) if len(lengths) else 0
                if code:
                    _log.warning(
                        "CUDA error %d of a batch: blocks are brought together first", code
                    )
                    self._batch = None
                    return False
        finally:
            lane.wait()
        return True

    def _is_pinned(self, address: int) -> bool:
        return any(start <= address < start + view.nbytes for start, view in self._pinned)

    # --- One chunk ---

    def _out(
        self, lane: _Lane, slot: _Slot, ids: Sequence[int], page: memoryview, regions: range
    ) -> None:
        torch = self._torch
        where = torch.tensor(ids, dtype=torch.int64).pin_memory()
        where = where.to(self._device, non_blocking=True)
        for region, start, end in self._ranges(regions, len(ids)):
            part = slot.device[start:end].view(self._dtype)
            view = self._views[region]
            torch.index_select(view, 0, where, out=part.view(len(ids), *view.shape[1:]))
        start, end = self._span(regions, len(ids))
        target = torch.frombuffer(page, dtype=torch.uint8)[start:end]
        if target.is_pinned():
            target.copy_(slot.device[start:end], non_blocking=True)
            slot.busy(lane.stream, None)
        else:
            staged = slot.host()[start:end]
            staged.copy_(slot.device[start:end], non_blocking=True)
            slot.busy(lane.stream, (target, staged))

    def _in(
        self, lane: _Lane, slot: _Slot, ids: Sequence[int], page: memoryview, regions: range
    ) -> None:
        torch = self._torch
        wanted = [index for index, block in enumerate(ids) if block >= 0]
        if not wanted:
            return
        start, end = self._span(regions, len(ids))
        source = _frozen(torch, page)[start:end]
        if not source.is_pinned():
            staged = slot.host()[start:end]
            staged.copy_(source)
            source = staged
        slot.device[start:end].copy_(source, non_blocking=True)
        told = torch.tensor([[ids[index] for index in wanted], wanted]).pin_memory()
        blocks, places = told.to(self._device, non_blocking=True)
        for region, first, last in self._ranges(regions, len(ids)):
            view = self._views[region]
            part = slot.device[first:last].view(self._dtype).view(len(ids), *view.shape[1:])
            if len(wanted) < len(ids):
                part = part.index_select(0, places)
            view.index_copy_(0, blocks, part)
        slot.busy(lane.stream, None)

    def _ranges(self, regions: range, blocks: int) -> list[tuple[int, int, int]]:
        """Regions, and where their bytes are in a chunk."""
        at = sum(self._sizes[: regions.start]) * blocks
        ranges = []
        for region in regions:
            end = at + self._sizes[region] * blocks
            ranges.append((region, at, end))
            at = end
        return ranges

    def _span(self, regions: range, blocks: int) -> tuple[int, int]:
        ranges = self._ranges(regions, blocks)
        return ranges[0][1], ranges[-1][2]

    def _checked(
        self, block_ids: Sequence[int], pages: Sequence[BufferLike], to_pages: bool
    ) -> int:
        """How many blocks each page has."""
        each, rest = divmod(len(block_ids), len(pages)) if pages else (0, len(block_ids))
        if rest:
            raise UsageError(
                f"{len(block_ids)} blocks cannot be divided among {len(pages)} buffers"
            )
        for block in block_ids:
            if block >= self._blocks or (block < 0 and to_pages):
                raise UsageError(f"there is no block {block}; there are {self._blocks}")
        return each


class _Pieces:
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


class _Location(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int), ("id", ctypes.c_int))


class _Attributes(ctypes.Structure):
    _fields_ = (
        ("source_order", ctypes.c_int),
        ("source_hint", _Location),
        ("target_hint", _Location),
        ("flags", ctypes.c_uint),
    )


def _find_batch_copy() -> _BatchCopy | None:
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


class _Slot:
    """Room for a chunk on the device, and on the host where that is needed."""

    def __init__(self, torch: Any, device: Any, size: int) -> None:
        self._torch = torch
        self.device = torch.empty(size, dtype=torch.uint8, device=device)
        self._host: Any = None
        self._event = torch.cuda.Event(blocking=True)
        self._busy = False
        self._then: tuple[Any, Any] | None = None

    def host(self) -> Any:
        """Pinned memory of the same length."""
        if self._host is None:
            size = self.device.numel()
            self._host = self._torch.empty(size, dtype=self._torch.uint8, pin_memory=True)
        return self._host

    def busy(self, stream: Any, then: tuple[Any, Any] | None) -> None:
        """The stream has work with it. `then`: what is to be copied, and from where, behind it."""
        self._event.record(stream)
        self._busy, self._then = True, then

    def wait(self) -> None:
        """Until it is free again. Other threads run meanwhile."""
        if self._busy:
            self._event.synchronize()
            self._busy = False
        then, self._then = self._then, None
        if then is not None:
            then[0].copy_(then[1])


class _Lane:
    """A direction: its stream, its slots, and whose turn it is."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self.lock = threading.Lock()
        self.stream = torch.cuda.Stream(device)
        self._slots: list[_Slot] = []
        self._turn = 0
        self._event = torch.cuda.Event(blocking=True)

    def reserve(self, size: int) -> None:
        """Make the slots, or longer ones. With the lock."""
        if not self._slots or self._slots[0].device.numel() < size:
            self._slots = []
            with self._torch.cuda.stream(self.stream):
                self._slots = [_Slot(self._torch, self._device, size) for _ in range(_SLOTS)]

    def next(self) -> _Slot:
        """The slot that was used longest ago, free again. With the lock."""
        self._turn = (self._turn + 1) % _SLOTS
        slot = self._slots[self._turn]
        slot.wait()
        return slot

    def wait(self) -> None:
        """Until the stream has done all that it was told. Other threads run meanwhile."""
        self._event.record(self.stream)
        self._event.synchronize()

    def close(self) -> None:
        """When copies under way are over."""
        with self.lock:
            for slot in self._slots:
                slot.wait()
            self._slots = []


def _frozen(torch: Any, page: memoryview) -> Any:
    """A tensor over a page that may be read-only: nothing writes into it."""
    if not page.readonly:
        return torch.frombuffer(page, dtype=torch.uint8)
    import warnings

    with warnings.catch_warnings():  # torch has no read-only tensors, and says so
        warnings.simplefilter("ignore")
        return torch.frombuffer(page, dtype=torch.uint8)
