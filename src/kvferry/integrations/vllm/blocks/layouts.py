"""How the blocks of a vLLM cache lie in memory, read from shapes, strides and attention backends.

A chunk holds the engine's own bytes, nothing converted. Its axes have a name, outermost first, in
which every letter is an axis:

    L layer   B block   K key, value   H head   N token of a block   D number of a head
    C what a head keeps for a token: key and value, or a latent vector
    R kernel block, where the engine's kernels use smaller blocks than its scheduler

    tensor of a layer (strides)             of                           chunk
    [B, H, N, C]                            vLLM 0.32, "LBHNC" ("HND")   LBHNC
    [B, H, N, C], as [B, N, H, C]           vLLM 0.32, "LBNHC" ("NHD")   LBNHC
    [B, H, N, C], as [H, B, N, C]           vLLM 0.32, "LHBNC"           LHBNC
    [B, H, N, C], layers within blocks      vLLM 0.32, "BLHNC" "BHLNC"   LBHNC
    [2, B, H, N, D]                         vLLM 0.22, CPU               LKBHND
    [2, B, N, H, D]                         vLLM 0.22, FlashAttention    LKBNHD
    [B, 2, N, H, D]                         vLLM 0.22, FlashInfer        LBKNHD
    [B, N, C], [B, 1, N, C]                 latent vectors (MLA)         LBNC

An axis that lies outside of the blocks in memory (K or H above) is outside of them in the chunk
too, so that every run of bytes is as long as it can be. An axis of length 1 is no axis, but for B.

The letters are what the shape says. The kernels of most attention backends keep a block so; others
order its numbers as their instructions want them, whatever shape the tensor has. With vLLM's kernel
"vec" for CPUs the keys of a head are [dim, token] and behind them its values [token, dim], also
where the tensor is [B, H, N, 2D]; which kernel runs depends on the processor, the element type and
the length of a block. So bytes of one machine may mean something else on another machine, and the
name of such a kernel (`kernel_name`) is part of the name of a layout, and with it of the identity.
What is said here of CPUs is checked with real engines against KV that was computed without them.

Nothing of torch is imported to read a layout: what has `shape` and `stride()` can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, NamedTuple

from kvferry.base.errors import UsageError
from kvferry.integrations.vllm.versions import vllm_version

__all__ = ["BlockLayout", "Region", "kernel_name", "read_layout"]

# Backends that keep a block as its axes say; they can read what another one of them has written.
_PLAIN_BACKENDS = frozenset(
    {
        "CPU_MLA",
        "CUTLASS_MLA",
        "FLASHINFER",
        "FLASHINFER_MLA",
        "FLASHMLA",
        "FLASH_ATTN",
        "FLASH_ATTN_MLA",
        "FLEX_ATTENTION",
        "TRITON_ATTN",
        "TRITON_MLA",
    }
)


class Region(NamedTuple):
    """A run of bytes of every block, or some of them at equal distances. All lengths in bytes."""

    offset: int
    block_stride: int
    rows: int
    row_stride: int
    row_bytes: int


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """How the tensor of one layer keeps its blocks.

    Attributes:
        axes: Of a chunk, as above, without the layer.
        blocks: How many blocks there are, as the scheduler counts them.
        block_bytes: Of one block in this layer.
        extent_bytes: From the first byte of the tensor to the end of its last one.
        regions: In the order in which a chunk has them.
    """

    axes: str
    blocks: int
    block_bytes: int
    extent_bytes: int
    regions: tuple[Region, ...]


class _Axis(NamedTuple):
    letter: str
    size: int
    stride: int  # bytes


def read_layout(
    shape: Sequence[int],
    strides: Sequence[int],
    itemsize: int,
    block_size: int,
    *,
    blocks: int | None = None,
    heads: int | None = None,
    heads_first: bool | None = None,
) -> BlockLayout:
    """Read the layout of one layer's tensor.

    Args:
        shape, strides: Of the tensor; strides in elements.
        itemsize: Bytes of an element.
        block_size: Tokens of a block, as the scheduler counts them.
        blocks: How many blocks the scheduler has; needed where kernels use smaller ones.
        heads: KV heads of this shard, where they are known; says which axis is which.
        heads_first: Whether heads come before tokens where lengths do not tell.

    Raises:
        UsageError: It is none of the layouts above.
    """

    def refused(why: str) -> UsageError:
        return UsageError(
            f"the KV cache has a layout that is not known: shape {tuple(shape)}, strides "
            f"{tuple(strides)}, {itemsize} bytes an element, blocks of {block_size} tokens: {why}"
        )

    letters = _letters(shape, block_size, blocks, heads, heads_first)
    if letters is None:
        raise refused("no order of axes fits it")
    axes = [
        _Axis(letter, size, stride * itemsize)
        for letter, size, stride in zip(letters, shape, strides, strict=True)
    ]
    block = next(axis for axis in axes if axis.letter == "B")
    ratio = 1 if blocks is None else block.size // blocks
    inside = [axis for axis in axes if axis.size > 1 and axis.letter != "B"]
    inner = [axis for axis in inside if axis.stride < block.stride or block.size == 1]
    outer = [axis for axis in inside if axis not in inner]
    outer.sort(key=lambda axis: -axis.stride)
    inner.sort(key=lambda axis: -axis.stride)
    if ratio > 1:
        inner.insert(0, _Axis(f"R{ratio}", ratio, block.stride))
    rows, row_stride, row_bytes = _runs(inner, itemsize) or (0, 0, 0)
    if not rows:
        raise refused("a block is not made of runs at equal distances")
    span = (rows - 1) * row_stride + row_bytes
    stride = block.stride * ratio
    count = block.size // ratio
    all_blocks = (count - 1) * stride + span
    if (count > 1 and stride < span) or any(axis.stride < all_blocks for axis in outer):
        raise refused("blocks overlap")
    return BlockLayout(
        axes="".join(axis.letter for axis in (*outer, _Axis("B", 0, 0), *inner)),
        blocks=count,
        block_bytes=prod(axis.size for axis in outer) * rows * row_bytes,
        extent_bytes=sum((axis.size - 1) * axis.stride for axis in axes) + itemsize,
        regions=tuple(
            Region(offset, stride, rows, row_stride, row_bytes) for offset in _offsets(outer)
        ),
    )


def _letters(
    shape: Sequence[int],
    block_size: int,
    blocks: int | None,
    heads: int | None,
    heads_first: bool | None,
) -> str | None:
    """What each axis of the tensor is, as the engine's contract says and the lengths allow."""
    heads_before, tokens_before = {
        3: (("BNC",), ("BNC",)),
        4: (("BHNC",), ("BNHC",)),
        5: (("KBHND", "BKHND"), ("KBNHD", "BKNHD")),
    }.get(len(shape), ((), ()))
    if heads_first is None:
        heads_first = len(shape) < 5
    order = (heads_before, tokens_before) if heads_first else (tokens_before, heads_before)
    for letters in (*order[0], *order[1]):
        size = dict(zip(letters, shape, strict=True))
        if min(shape) < 1 or size.get("K", 2) != 2:
            continue
        if heads is not None and size.get("H", heads) != heads:
            continue
        ratio, rest = (1, 0) if blocks is None else divmod(size["B"], blocks)
        if not rest and ratio and size["N"] * ratio == block_size:
            return letters
    return None


def _runs(inner: Sequence[_Axis], itemsize: int) -> tuple[int, int, int] | None:
    """A block as rows, their distance, and the bytes of a row."""
    row_bytes, rows, row_stride = itemsize, 1, 0
    for axis in reversed(inner):
        if rows == 1 and axis.stride == row_bytes:
            row_bytes *= axis.size
        elif rows == 1 and axis.stride > row_bytes:
            rows, row_stride = axis.size, axis.stride
        elif rows > 1 and axis.stride == rows * row_stride:
            rows *= axis.size
        else:
            return None
    return rows, row_stride, row_bytes


def _offsets(outer: Sequence[_Axis]) -> list[int]:
    steps = (range(0, axis.size * axis.stride, axis.stride) for axis in outer)
    return [sum(offsets) for offsets in product(*steps)]


def kernel_name(vllm_config: Any, spec: Any, layers: Iterable[str]) -> str:
    """The kernels that write the KV of some layers; "" if they do as the axes say.

    Args:
        vllm_config: Of the engine, whose model is loaded.
        spec: Of the layers: has ``block_size`` and ``head_size``.
        layers: Their names.
    """
    modules = getattr(vllm_config.compilation_config, "static_forward_context", {})
    backends: list[Any] = [getattr(modules.get(layer), "attn_backend", None) for layer in layers]
    if not backends or None in backends:
        return f"vllm-{vllm_version()}"  # not known: only engines of one version share
    names = {str(backend.get_name()) for backend in backends} - _PLAIN_BACKENDS
    found = [_cpu_kernel(vllm_config, spec) if name == "CPU_ATTN" else name for name in names]
    return "+".join(sorted(found)).lower()


def _cpu_kernel(vllm_config: Any, spec: Any) -> str:
    try:
        from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

        return str(
            _get_attn_isa(
                vllm_config.model_config.dtype,
                spec.block_size,
                spec.head_size,
                vllm_config.cache_config.cache_dtype,
            )
        )
    except (ImportError, TypeError):  # a version that has another way to choose one
        import torch

        return f"cpu-{vllm_version()}-{torch.backends.cpu.get_cpu_capability()}"
