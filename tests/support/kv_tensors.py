"""Caches of an engine in every layout, whose elements say what they are; without torch.

An element is a number from which layer, block, head, token, key or value, and dimension can be
read: "l kv bbb h nn dd" in decimal. So any byte in a wrong place shows, and where it came from.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

__all__ = ["BLOCKS", "LAYERS", "LAYOUTS", "TOKENS", "Case", "Tensor"]

LAYERS, BLOCKS, HEADS, TOKENS, DIM = 3, 12, 2, 4, 5


class Device(NamedTuple):
    """Where a tensor is."""

    type: str


class Tensor:
    """What a copier wants of a torch tensor, over a NumPy array."""

    def __init__(self, array: np.ndarray[Any, Any], device: str = "cpu") -> None:
        self.array = array
        self.shape = array.shape
        self.device = Device(device)

    def stride(self) -> tuple[int, ...]:
        return tuple(stride // self.array.itemsize for stride in self.array.strides)

    def element_size(self) -> int:
        return self.array.itemsize

    def data_ptr(self) -> int:
        return int(self.array.__array_interface__["data"][0])


class Layout(NamedTuple):
    """One way to keep a cache: its axes in memory, those of a layer's tensor, those of a chunk."""

    memory: str
    tensor: str
    chunk: str


# A "C" is "KD" in one axis, or a latent vector.
LAYOUTS = {
    "0.32 LBHNC": Layout("LBHNC", "BHNC", "LBHNC"),
    "0.32 LBNHC": Layout("LBNHC", "BHNC", "LBNHC"),
    "0.32 LHBNC": Layout("LHBNC", "BHNC", "LHBNC"),
    "0.32 BLHNC": Layout("BLHNC", "BHNC", "LBHNC"),
    "0.32 BLNHC": Layout("BLNHC", "BHNC", "LBNHC"),
    "0.32 BHLNC": Layout("BHLNC", "BHNC", "LBHNC"),
    "0.22 CPU": Layout("LKBHND", "KBHND", "LKBHND"),
    "0.22 FlashAttention NHD": Layout("LKBNHD", "KBNHD", "LKBNHD"),
    "0.22 FlashAttention HND": Layout("LKBHND", "KBNHD", "LKBHND"),
    "0.22 FlashInfer NHD": Layout("LBKNHD", "BKNHD", "LBKNHD"),
    "0.22 FlashInfer HND": Layout("LBKHND", "BKNHD", "LBKHND"),
    "0.22 MLA": Layout("LBNC", "BNC", "LBNC"),
}


class Case:
    """A cache in one layout.

    Args:
        layout: Name in `LAYOUTS`.
        zero: All elements are 0 instead.
    """

    def __init__(self, layout: str, *, zero: bool = False) -> None:
        memory, tensor, self.chunk = LAYOUTS[layout]
        self._axes = memory
        sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "K": 2, "D": DIM, "C": 2 * DIM}
        shape = [sizes[axis] for axis in memory]
        at = dict(zip(memory, np.indices(shape), strict=True))
        kind, dim = np.divmod(at["C"], DIM) if "C" in at else (at["K"], at["D"])
        parts = (at["L"], kind, at["B"], at.get("H", 0), at["N"], dim)
        values = np.zeros(shape, np.int64)
        for part, places in zip(parts, (10, 10, 1000, 10, 100, 100), strict=True):
            values = values * places + part
        self.values = np.ascontiguousarray(values * (not zero), np.uint32)
        layer_axes = memory.replace("L", "")
        order = [layer_axes.index(axis) for axis in tensor]
        self.caches = {
            f"model.layers.{layer}.self_attn.attn": Tensor(view.transpose(order))
            for layer, view in enumerate(np.moveaxis(self.values, memory.index("L"), 0))
        }

    def expected(self, block_ids: list[int]) -> bytes:
        """The chunk of these blocks, by its axes, without any code of ours."""
        ordered = self.values.transpose([self._axes.index(axis) for axis in self.chunk])
        return np.take(ordered, block_ids, self.chunk.index("B")).tobytes()
