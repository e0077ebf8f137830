"""Blocks of a GPU into pages and back, compared with the same on a CPU. A script for one GPU.

PYTHON cuda_blocks.py             prints "ok", or "skip: why" where there is no GPU; fails otherwise
PYTHON cuda_blocks.py pretend     on a CPU that plays the device: the same code, in one order
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
import warnings
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch

from kvferry import Identity, KVLayout, TieredCache
from kvferry.base.errors import BadBufferError, UsageError
from kvferry.chunks.pool import PagePool
from kvferry.chunks.prompt import read_prompt
from kvferry.client.dlpack import view_memory
from kvferry.integrations.vllm.blocks import cuda_blocks
from kvferry.integrations.vllm.blocks.copier import BlockCopier
from kvferry.integrations.vllm.blocks.cuda_blocks import CudaBlocks
from kvferry.integrations.vllm.blocks.layouts import read_layout
from kvferry.integrations.vllm.connector.interfaces import SaveJob, Work
from kvferry.integrations.vllm.connector.step_times import step_clock
from kvferry.integrations.vllm.connector.worker import WorkerHalf

LAYERS, BLOCKS, HEADS, TOKENS, DIM = 3, 64, 4, 16, 64
IDS = [7, 2, 9, 4, 0, 63]
DEVICE = "cpu" if sys.argv[1:] == ["pretend"] else "cuda"


def caches(order: str, device: str, *, zero: bool = False, dtype: Any = torch.bfloat16) -> Any:
    """Tensors by layer: logically [B, H, N, C], in memory in the order that is named."""
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS, "N": TOKENS, "C": 2 * DIM}
    shape = [sizes[axis] for axis in order]
    count = LAYERS * BLOCKS * HEADS * TOKENS * 2 * DIM
    values = torch.zeros(count) if zero else torch.arange(count, dtype=torch.float64) * 0.618 % 251
    whole = values.to(dtype).reshape(shape).to(device)
    layers = whole.unbind(order.index("L"))
    rest = order.replace("L", "")
    return {
        f"model.layers.{index}.self_attn.attn": layer.permute([rest.index(axis) for axis in "BHNC"])
        for index, layer in enumerate(layers)
    }


def opened(tensors: Any) -> BlockCopier:
    """A copier of CUDA's, on a GPU or on what plays one."""
    copier = BlockCopier(tensors, TOKENS)
    if copier.device == "cpu":
        layouts = [
            read_layout(t.shape, t.stride(), t.element_size(), TOKENS) for t in tensors.values()
        ]
        copier._device = CudaBlocks(list(tensors.values()), layouts)
    return copier


def pretend() -> None:
    """Have a CPU play the device: streams and events are there and mean nothing."""
    made = torch.empty
    torch.empty = lambda *size, pin_memory=False, **more: made(*size, **more)
    torch.Tensor.pin_memory = lambda tensor: tensor
    pinned: dict[int, int] = {}  # address: length

    def register(address: int, length: int, flags: int) -> int:
        pinned[address] = length
        return 0

    runtime = SimpleNamespace(cudaHostRegister=register, cudaHostUnregister=pinned.pop)
    torch.cuda.cudart = lambda: runtime
    torch.Tensor.is_pinned = lambda tensor: any(
        start <= tensor.data_ptr() < start + length for start, length in pinned.items()
    )
    setattr(cuda_blocks, "_find_batch_copy", lambda: move_all)  # noqa: B010
    for name in ("Event", "Stream", "stream", "device", "current_stream"):
        setattr(torch.cuda, name, MagicMock())


moved: list[int] = []  # pieces of each batch


def move_all(targets: Any, sources: Any, lengths: Any, stream: int) -> int:
    """What a driver's batch does."""
    moved.append(len(targets))
    for one in zip(targets.tolist(), sources.tolist(), lengths.tolist(), strict=True):
        ctypes.memmove(*one)
    return 0


def pages(copier: BlockCopier, count: int, blocks: int) -> list[bytearray]:
    """Buffers for chunks of so many blocks."""
    return [bytearray(b"\xee" * blocks * copier.block_bytes) for _ in range(count)]


def check_order(order: str, dtype: Any) -> None:
    """There and back, whole and by layer, equals what a CPU does."""
    host = BlockCopier(caches(order, "cpu", dtype=dtype), TOKENS)
    device = opened(caches(order, DEVICE, dtype=dtype))
    assert device.device == DEVICE
    assert (device.name, device.block_bytes) == (host.name, host.block_bytes)
    expected, found = pages(host, 3, 2), pages(device, 3, 2)
    host.gather(IDS, expected)
    device.gather(IDS, found)
    assert found == expected, order
    by_layer = pages(device, 3, 2)
    for layer in reversed(range(LAYERS)):
        device.gather_layer(layer, IDS, by_layer)
    assert by_layer == expected, order

    into = opened(caches(order, DEVICE, zero=True, dtype=dtype))
    into.scatter([bytes(page) for page in expected], [1, -1, 3, 5, -1, 62])
    back = pages(into, 1, 6)
    into.gather([1, 0, 3, 5, 63, 62], back)
    one_by_one = pages(host, 1, 6)
    host.gather([7, 2, 9, 4, 0, 63], one_by_one)
    size = host.layer_bytes if "H" not in host.name[: host.name.index("B")] else None
    if size is not None:  # [layer][block]: what was not wanted is still zero
        for layer in range(LAYERS):
            for place in range(6):
                at = (layer * 6 + place) * size
                wanted = bytes(size) if place in (1, 4) else one_by_one[0][at : at + size]
                assert back[0][at : at + size] == wanted, (order, layer, place)
    for copier in (device, into):
        copier.close()


def check_order_of_work() -> None:
    """A gather takes what the forward pass had written up to the fence; nobody else waits."""
    tensors = caches("LBHNC", "cuda", zero=True)
    copier = BlockCopier(tensors, TOKENS)
    busy = torch.zeros(4096, 4096, device="cuda")
    for _ in range(50):  # what the forward pass has to do before
        busy = busy @ busy
    for tensor in tensors.values():
        tensor.fill_(1.0)
    fence = copier.fence()
    found = pages(copier, 1, 2)
    thread = threading.Thread(target=copier.gather, args=([5, 6], found), kwargs={"after": fence})
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    values = torch.frombuffer(found[0], dtype=torch.bfloat16)
    assert bool((values == 1).all()), "a gather did not wait for its fence"
    copier.close()


def check_steps() -> None:
    """A step takes what the device takes, and whoever measures it does not wait for that."""
    clock = step_clock(torch.device("cuda"))
    factor = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    _ = factor @ factor
    torch.cuda.synchronize()
    began = time.perf_counter()
    clock.begin()
    for _ in range(100):
        _ = factor @ factor
    clock.end((7, 8, 9), 0.0)
    early = list(clock.taken())
    told_s = time.perf_counter() - began
    torch.cuda.synchronize()
    took_s = time.perf_counter() - began
    assert not early
    assert told_s < took_s / 2, (told_s, took_s)
    [(totals, step_s)] = clock.taken()
    assert totals == (7, 8, 9)
    assert 0.8 * took_s < step_s < 1.05 * took_s, (step_s, took_s)


def check_pinned(order: str) -> None:
    """Pages of memory that was pinned are read and written by the device itself."""
    copier = opened(caches(order, DEVICE))
    host = BlockCopier(caches(order, "cpu"), TOKENS)
    expected = pages(host, 1, 2)
    host.gather([3, 4], expected)
    pool = PagePool((2 * copier.block_bytes,), "uint8", 3)
    memory = view_memory(pool.start_address, pool.nbytes, owner=pool, read_only=True)
    copier.pin([memory])
    assert torch.frombuffer(memory, dtype=torch.uint8).is_pinned()
    pair = pool.allocate_many(2)
    assert pair is not None
    one, two = pair
    copier.gather([3, 4], [one])
    assert bytes(one) == bytes(expected[0])
    copier.scatter([one], [8, 9])
    copier.gather([8, 9], [two])
    assert bytes(two) == bytes(expected[0])
    copier.scatter([one], [-1, 10])
    copier.gather([10, 8], [two])
    host.gather([4, 3], expected)
    assert bytes(two) == bytes(expected[0])
    device: Any = copier._device
    slots = [slot for lane in device._lanes.values() for slot in lane._slots]
    assert all(slot._host is None for slot in slots), "a page was copied once more"
    assert device._batch is None or not slots, "a batch went through memory of the device"
    copier.close()
    assert not torch.frombuffer(memory, dtype=torch.uint8).is_pinned()


def check_blocks_that_are_taken_away() -> None:
    """What is stored is what the blocks held before they were taken away, or nothing."""
    tensors = caches("LBHNC", DEVICE)
    copier = opened(tensors)
    expected = pages(copier, 1, 2)
    copier.gather([3, 4], expected)
    tokens = list(range(2 * TOKENS))
    layout = KVLayout(
        layers=LAYERS, kv_heads=HEADS, head_dim=DIM, dtype="bfloat16", chunk_size=2 * TOKENS
    )
    assert layout.chunk_bytes == 2 * copier.block_bytes
    engine = TieredCache(Identity(model="taken away", layout=layout), max_local_cpu_size=0.01)
    half = WorkerHalf(
        engine,
        copier,
        chunk_blocks=2,
        load_timeout_s=10.0,
        memory=[engine.memory.whole],
    )
    for _ in range(20):
        engine.clear()
        prompt = read_prompt(tokens, 2 * TOKENS, b"")
        half.begin_step(Work(saves=[SaveJob("r", prompt, 0, [3, 4])]))
        half.end_step()
        assert half.release_blocks()
        kept = [tensor.clone() for tensor in tensors.values()]
        for tensor in tensors.values():
            tensor.fill_(7.0)  # unmapped, and mapped again
        half._saver._saver.submit(bool).result(60)
        with engine.retrieve(tokens) as hit:
            assert [bytes(page) for page in hit.pages] in ([], [bytes(expected[0])])
        for tensor, before in zip(tensors.values(), kept, strict=True):
            tensor.copy_(before)
    half.close()


def check_refusals() -> None:
    """What is no block, or no page, is refused before anything is copied."""
    copier = opened(caches("LBHNC", DEVICE))
    good = bytearray(copier.block_bytes)
    for ids, buffers, error in (
        ([BLOCKS], [good], UsageError),
        ([-1], [good], UsageError),
        ([1, 2, 3], [good, good], UsageError),
        ([1], [bytearray(3)], BadBufferError),
        ([1], [bytes(copier.block_bytes)], BadBufferError),
    ):
        try:
            copier.gather(ids, buffers)
        except error:
            continue
        raise AssertionError(f"{ids} was not refused")
    assert not any(good)
    copier.close()


def main() -> None:
    """All of it."""
    warnings.simplefilter("ignore")  # torch has no read-only tensors, and says so
    if DEVICE == "cpu":
        pretend()
    elif not torch.cuda.is_available():
        print("skip: there is no GPU")
        return
    for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BHLNC"):
        for dtype in (torch.bfloat16, torch.uint8, torch.float32):
            check_order(order, dtype)
    check_refusals()
    for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BHLNC"):
        check_pinned(order)
    assert DEVICE == "cuda" or len(moved) == 15, moved  # short pieces are brought together first
    check_blocks_that_are_taken_away()
    if DEVICE == "cuda":
        check_order_of_work()
        check_steps()
    print("ok")


if __name__ == "__main__":
    main()
