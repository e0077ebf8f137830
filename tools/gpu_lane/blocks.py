"""Part (b): blocks of the device to pinned pages and back, against one bare copy.

The blocks are those of Llama-3.1-8B as vLLM keeps them: 32 layers of [2, blocks, tokens, heads,
128] in 16 bits; a chunk is 256 tokens. The ways take turns; bytes are compared in the end.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from gpu_lane.sheet import Sheet, spread
from kvferry.chunks.pool import PagePool
from kvferry.client.dlpack import view_memory
from kvferry.integrations.vllm.blocks.copier import BlockCopier

__all__ = ["blocks"]

_LAYERS, _DIM, _CHUNK_TOKENS = 32, 128, 256
_SHAPES = ((8, 16), (1, 16), (8, 64), (1, 64))  # KV heads, tokens of a block
_CASE_S = 8.0


def blocks(sheet: Sheet, device: str, chunks: int, rounds: int) -> None:
    """Measure each shape; see the module."""
    for heads, tokens in _SHAPES:
        if not sheet.is_over(_CASE_S):
            _shape(sheet, device, heads, tokens, chunks, rounds)


def _shape(sheet: Sheet, device: str, heads: int, tokens: int, chunks: int, rounds: int) -> None:
    import torch

    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    each = _CHUNK_TOKENS // tokens
    there = 4 * chunks * each  # blocks of the engine
    shape = (2, there, tokens, heads, _DIM)
    tensors = {
        f"model.layers.{layer}.attn": torch.randn(shape, device=device, dtype=torch.bfloat16)
        for layer in range(_LAYERS)
    }
    copier = BlockCopier(tensors, tokens, heads=heads)
    size = copier.block_bytes * each
    pool = PagePool((size,), "uint8", chunks)
    copier.pin([view_memory(pool.start_address, pool.nbytes, owner=pool, read_only=True)])
    pages = pool.allocate_many(chunks)
    assert pages is not None
    chosen = random.Random(1).sample(range(there), chunks * each)
    on_device = torch.empty(chunks * size, dtype=torch.uint8, device=device)
    on_host = torch.empty(chunks * size, dtype=torch.uint8, pin_memory=device == "cuda")
    ways: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "to the host": (
            lambda: on_host.copy_(on_device),
            lambda: copier.gather(chosen, pages),
        ),
        "to the device": (
            lambda: on_device.copy_(on_host),
            lambda: copier.scatter(pages, chosen),
        ),
    }
    for way, (bare, ours) in ways.items():
        rates: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            for copy, found in zip((bare, ours), rates, strict=True):
                wait()
                began = time.perf_counter()
                copy()
                wait()
                if turn:  # the first one finds nothing ready
                    found.append(chunks * size / (time.perf_counter() - began) / 1e9)
        ratios = [mine / theirs for theirs, mine in zip(*rates, strict=True)]
        what = f"{way}, {heads} heads, blocks of {tokens} tokens, {chunks} chunks"
        sheet.row(
            what, **spread("gbps", rates[1]), **spread("bare", rates[0]), **spread("ratio", ratios)
        )
    before = [bytes(page) for page in pages]
    copier.gather(chosen, pages)
    if before != [bytes(page) for page in pages]:
        sheet.row("wrong bytes", heads=heads, tokens=tokens)
    copier.close()
