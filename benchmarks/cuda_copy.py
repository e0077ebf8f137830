"""How fast blocks of a GPU become pages and come back, against one copy of pinned memory.

    PYTHON -m benchmarks.cuda_copy [--chunks 16] [--heads 8]      PYTHON has torch, kvferry, a GPU

The blocks are those of Llama-3.1-8B as vLLM 0.22 keeps them: 32 layers of [2, blocks, 16 tokens, 8
heads, 128] in 16 bits; a chunk is 256 tokens, 32 MiB. The ways take turns. Prints for each the
median of GB/s with its least and most, the ratio to the bare copy of the same direction, and the
processor time of a GB, which the engine's Python waits for. Bytes are compared in the end.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from kvferry.chunks.pool import PagePool
from kvferry.client.dlpack import view_memory
from kvferry.integrations.vllm.blocks.copier import BlockCopier

__all__ = ["main"]

_LAYERS, _TOKENS, _DIM = 32, 16, 128
_CHUNK_BLOCKS = 16
_BLOCKS = 2048


def main() -> None:
    """Measure, and print a line for each way."""
    parser = argparse.ArgumentParser(description="Measure copies between a GPU and pages.")
    parser.add_argument("--chunks", type=int, default=16, help="in each call")
    parser.add_argument("--heads", type=int, default=8, help="of KV; 1: a rank of eight")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    import torch

    shape = (2, _BLOCKS, _TOKENS, options.heads, _DIM)
    tensors = {
        f"model.layers.{layer}.self_attn.attn": torch.randn(
            shape, device="cuda", dtype=torch.bfloat16
        )
        for layer in range(_LAYERS)
    }
    copier = BlockCopier(tensors, _TOKENS)
    size = copier.block_bytes * _CHUNK_BLOCKS
    pools = [PagePool((size,), "uint8", options.chunks) for _ in range(2)]
    first = pools[0]
    copier.pin([view_memory(first.start_address, first.nbytes, owner=first, read_only=True)])
    pinned, pageable = (pool.allocate_many(options.chunks) for pool in pools)
    assert pinned is not None
    assert pageable is not None
    blocks = random.Random(1).sample(range(_BLOCKS), options.chunks * _CHUNK_BLOCKS)
    device = torch.empty(options.chunks * size, dtype=torch.uint8, device="cuda")
    host = torch.empty(options.chunks * size, dtype=torch.uint8, pin_memory=True)

    def by_layer(pages: Sequence[Any]) -> None:
        for layer in range(_LAYERS):
            copier.gather_layer(layer, blocks, pages)

    ways: dict[str, Callable[[], object]] = {
        "bare copy to the host": lambda: host.copy_(device),
        "gather, pinned pages": lambda: copier.gather(blocks, pinned),
        "gather, pageable pages": lambda: copier.gather(blocks, pageable),
        "gather layer by layer, pinned pages": lambda: by_layer(pinned),
        "bare copy to the device": lambda: device.copy_(host),
        "scatter, pinned pages": lambda: copier.scatter(pinned, blocks),
        "scatter, pageable pages": lambda: copier.scatter(pageable, blocks),
    }
    taken: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(options.rounds + 1):
        for way, copy in ways.items():
            torch.cuda.synchronize()
            began, used = time.perf_counter(), time.process_time()
            copy()
            torch.cuda.synchronize()
            if turn:  # the first one finds nothing ready
                taken[way].append((time.perf_counter() - began, time.process_time() - used))
    assert [bytes(page) for page in pinned] == [bytes(page) for page in pageable]
    print(f"{torch.cuda.get_device_name()}, {options.chunks} chunks of {size >> 20} MiB at a time")
    bare = 0.0
    for way, times in taken.items():
        rates = sorted(options.chunks * size / took / 1e9 for took, _ in times)
        middle = median(rates)
        bare = middle if way.startswith("bare") else bare
        cpu = 1e3 * median(used for _, used in times) / (options.chunks * size / 1e9)
        print(
            f"{way:36} {middle:6.1f} GB/s ({rates[0]:.1f}-{rates[-1]:.1f}), {middle / bare:.2f} x, "
            f"{cpu:.1f} ms of processor a GB"
        )
    copier.close()


if __name__ == "__main__":
    main()
