"""Blocks of a vLLM cache into chunks, and chunks into blocks.

    copier = BlockCopier(kv_caches, block_size)      # in `register_kv_caches`
    copier.gather([7, 8, 3, 4], [page_a, page_b])    # two chunks of two blocks each
    copier.scatter([page_a, page_b], [1, 2, 5, 6])

A chunk is `k` consecutive blocks of a prompt, all layers of them: [layer][block][the block's own
bytes]; see `kvferry.integrations.vllm.blocks.layouts` for the axes, which `BlockCopier.name` names.
How many blocks a chunk has is not fixed here: there are as many block ids for each page.

- The tensors stay the engine's, and must stay what they are as long as the copier is used: it keeps
  their memory. Pages are the caller's, and in use until the call is over.
- The caller makes sure that the engine does not use the blocks meanwhile: it does not write blocks
  that are gathered, and neither reads nor writes blocks that are scattered into. An engine that
  goes to sleep, or is given new tensors, unmaps its blocks: every copy asks `BlockAccess` before.
- Any thread may call. Bytes are copied without the GIL, in one call for all layers.
- On a GPU the copies run on a stream of their own, and wait for what the stream of the forward pass
  had to do up to `fence`; that stream waits for nothing. See
  `kvferry.integrations.vllm.blocks.cuda_blocks`.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

from kvferry import _native
from kvferry.base.errors import UsageError
from kvferry.client.buffers import BufferLike
from kvferry.client.dlpack import view_memory
from kvferry.integrations.vllm.blocks.layouts import BlockLayout, read_layout

__all__ = ["BlockAccess", "BlockCopier", "Fence", "layer_order"]

_THREADS_MAX = 4  # that copy on a CPU; the engine computes on the others

# What `BlockCopier.fence` gives: an event of the device, or None.
Fence = Any


class _Device(Protocol):
    """Where the tensors are; `BlockCopier` has one."""

    def fence(self) -> Fence: ...

    def copy(
        self,
        block_ids: Sequence[int],
        pages: Sequence[BufferLike],
        to_pages: bool,
        regions: range,
        after: Fence,
    ) -> None: ...

    def pin(self, memories: Sequence[BufferLike]) -> None: ...

    def close(self) -> None: ...


class BlockCopier:
    """Moves blocks of one group of layers between an engine's tensors and pages.

    Args:
        kv_caches: The tensors by layer, of one KV cache group. A layer that has the tensor of
            another one is left out: its KV is there already.
        block_size: Tokens of a block, as the scheduler counts them.
        blocks: How many blocks the scheduler has (``kv_cache_config.num_blocks``); needed where the
            kernels of the engine use smaller ones.
        heads: KV heads of this shard; says which axis is which where lengths do not.
        kernel: What `layouts.kernel_name` says of this engine; becomes part of the name.
        threads: Threads that copy on a CPU; default: half of the processors, 4 at most.

    Attributes:
        name: The axes of a chunk and the kernel, e.g. "LBHNC vec": part of what its bytes mean.
        layer_names: The layers, in the order of a chunk.
        layers: How many there are.
        blocks: How many blocks the engine has.
        block_bytes: Of one block, all layers.
        layer_bytes: Of one block, one layer.
        device: "cpu" or "cuda".

    Raises:
        UsageError: The tensors have a layout that is not known, or are where we cannot copy.
    """

    def __init__(
        self,
        kv_caches: Mapping[str, Any],
        block_size: int,
        *,
        blocks: int | None = None,
        heads: int | None = None,
        kernel: str = "",
        threads: int | None = None,
    ) -> None:
        tensors: list[Any] = []
        names: list[str] = []
        seen: set[tuple[int, tuple[int, ...]]] = set()
        for name in layer_order(kv_caches):
            tensor = kv_caches[name]
            if not hasattr(tensor, "data_ptr"):
                raise UsageError(
                    f"layer {name} keeps a {type(tensor).__name__} and not one tensor, so its "
                    "state cannot be cut into blocks; only attention layers can be cached"
                )
            where = (tensor.data_ptr(), tuple(tensor.shape))
            if where not in seen:
                seen.add(where)
                tensors.append(tensor)
                names.append(name)
        if not tensors:
            raise UsageError("the engine has no KV cache to copy from")
        layouts = [self._read(tensor, block_size, blocks, heads) for tensor in tensors]
        first = layouts[0]
        for name, layout in zip(names, layouts, strict=True):
            if (layout.axes, layout.blocks, layout.block_bytes) != (
                first.axes,
                first.blocks,
                first.block_bytes,
            ):
                raise UsageError(
                    f"layers {names[0]} and {name} keep different blocks ({first.axes} of "
                    f"{first.block_bytes} bytes, {layout.axes} of {layout.block_bytes}); only "
                    "layers that are alike can be cached together"
                )
        self.name = f"L{first.axes} {kernel}".rstrip()
        self.layer_names = tuple(names)
        self.layers = len(names)
        self.blocks = first.blocks
        self.layer_bytes = first.block_bytes
        self.block_bytes = self.layers * first.block_bytes
        self.device = str(tensors[0].device.type)
        self._layer_regions = len(first.regions)
        self._device = self._open(tensors, layouts, threads)

    def fence(self) -> Fence:
        """A mark behind what the forward pass has been told to do so far; None on a CPU.

        To be taken in the thread of the forward pass. It costs some microseconds and waits for
        nothing.
        """
        return self._device.fence()

    def gather(
        self, block_ids: Sequence[int], pages: Sequence[BufferLike], *, after: Fence = None
    ) -> None:
        """Copy blocks into pages; it returns when they are there.

        Args:
            block_ids: As many for each page, in the order of the prompt.
            pages: A writable buffer for each chunk.
            after: On a GPU: the `fence` that the blocks are complete behind; default: one that is
                taken now.

        Raises:
            UsageError: There is no such block, or not as many for each page.
            BadBufferError: A page is read-only, or of another length.
        """
        self._device.copy(block_ids, pages, True, self._regions(None), after)

    def scatter(
        self, pages: Sequence[BufferLike], block_ids: Sequence[int], *, after: Fence = None
    ) -> None:
        """Copy pages into blocks; it returns when they are there.

        Args:
            pages: A buffer for each chunk.
            block_ids: As many for each page; one below 0 says that this block is not wanted.
            after: On a GPU: the `fence` behind which the blocks may be written; default: one that
                is taken now.

        Raises:
            UsageError: There is no such block, or not as many for each page.
            BadBufferError: A page has another length.
        """
        self._device.copy(block_ids, pages, False, self._regions(None), after)

    def gather_layer(
        self,
        layer_index: int,
        block_ids: Sequence[int],
        pages: Sequence[BufferLike],
        *,
        after: Fence = None,
    ) -> None:
        """Copy one layer of blocks to where it belongs in pages; see `gather`.

        Args:
            layer_index: In `layer_names`.
        """
        self._device.copy(block_ids, pages, True, self._regions(layer_index), after)

    def pin(self, memories: Sequence[BufferLike]) -> None:
        """Let the device reach these, of which pages are parts, without a copy in between.

        What the system does not let us pin takes a copy more. They have to stay mapped until
        `close`. Without a device it does nothing.
        """
        self._device.pin(memories)

    def close(self) -> None:
        """Give back what the device lent; the tensors are not used any more."""
        self._device.close()

    def __repr__(self) -> str:
        return (
            f"<BlockCopier {self.name} {self.layers} layers, {self.blocks} blocks of "
            f"{self.block_bytes} bytes on {self.device}>"
        )

    def _regions(self, layer: int | None) -> range:
        if layer is None:
            return range(self.layers * self._layer_regions)
        if not 0 <= layer < self.layers:
            raise UsageError(f"there is no layer {layer}; there are {self.layers}")
        return range(layer * self._layer_regions, (layer + 1) * self._layer_regions)

    @staticmethod
    def _read(tensor: Any, block_size: int, blocks: int | None, heads: int | None) -> BlockLayout:
        shape = tuple(tensor.shape)
        # Views of 0.32 are [B, H, N, C] by contract, whatever lies behind them. Before, each kernel
        # had its own order: those of the CPU heads first, all others tokens first.
        heads_first = _standard_views() if len(shape) == 4 else tensor.device.type == "cpu"
        return read_layout(
            shape,
            tuple(tensor.stride()),
            tensor.element_size(),
            block_size,
            blocks=blocks,
            heads=heads,
            heads_first=heads_first,
        )

    def _open(
        self, tensors: Sequence[Any], layouts: Sequence[BlockLayout], threads: int | None
    ) -> _Device:
        kinds = {str(tensor.device.type) for tensor in tensors}
        if kinds == {"cpu"}:
            return _HostBlocks(tensors, layouts, threads)
        if kinds == {"cuda"}:
            from kvferry.integrations.vllm.blocks.cuda_blocks import CudaBlocks

            return CudaBlocks(tensors, layouts)
        raise UsageError(
            f"the KV cache is on {' and '.join(sorted(kinds))}; only cpu and cuda can be cached"
        )


class BlockAccess:
    """Whether blocks may be touched: counts the copies that run, and how often blocks were revoked.

    Before an engine unmaps its blocks it forgets what it has cached, which is when `revoke` is
    called: copies that run are waited for, and none that was asked for before begins any more. What
    was gathered while blocks were revoked is not to be trusted.

    Attributes:
        epoch: How often blocks were revoked. Noted when a copy is asked for.
    """

    def __init__(self) -> None:
        self.epoch = 0
        self._changed = threading.Condition()
        self._running = 0

    @contextmanager
    def touching(self, epoch: int) -> Iterator[bool]:
        """For the time of a copy: whether the blocks of that epoch may be read or written."""
        with self._changed:
            may = epoch == self.epoch
            self._running += may
        try:
            yield may
        finally:
            if may:
                with self._changed:
                    self._running -= 1
                    self._changed.notify_all()

    def revoke(self, until: float) -> bool:
        """Let no copy begin that was asked for before now; whether none runs any more.

        Args:
            until: How long running copies are waited for, on the clock of ``time.monotonic``.
        """
        with self._changed:
            self.epoch += 1
            left_s = max(0.0, until - time.monotonic())
            return self._changed.wait_for(lambda: not self._running, left_s)


class _HostBlocks:
    """Tensors in host memory. Threads: any."""

    def __init__(
        self, tensors: Sequence[Any], layouts: Sequence[BlockLayout], threads: int | None
    ) -> None:
        memory = [
            view_memory(tensor.data_ptr(), layout.extent_bytes, owner=tensor, read_only=False)
            for tensor, layout in zip(tensors, layouts, strict=True)
        ]
        regions = [
            (index, *region) for index, layout in enumerate(layouts) for region in layout.regions
        ]
        self._map = _native.BlockMap(memory, regions, layouts[0].blocks)
        self._threads = threads or max(1, min(_THREADS_MAX, (os.cpu_count() or 1) // 2))

    def fence(self) -> None:
        """On a CPU what was computed is there."""

    def copy(
        self,
        block_ids: Sequence[int],
        pages: Sequence[BufferLike],
        to_pages: bool,
        regions: range,
        after: Fence,
    ) -> None:
        self._map.copy(block_ids, pages, to_pages, self._threads, regions.start, len(regions))

    def pin(self, memories: Sequence[BufferLike]) -> None:
        """There is no device."""

    def close(self) -> None:
        """The map goes with the object."""


def layer_order(names: Mapping[str, Any]) -> list[str]:
    """The layers in the order of the model: by the numbers in their names."""
    return sorted(names, key=lambda name: ([int(part) for part in re.findall(r"\d+", name)], name))


def _standard_views() -> bool | None:
    """Whether vLLM hands out views of one shape for every kernel; None: it is not loaded."""
    if "vllm" not in sys.modules:
        return None
    return find_spec("vllm.v1.kv_cache_layout") is not None
