"""Blocks of a vLLM cache into chunks and back: every layout, byte by byte, without vLLM."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest

from kvferry.base.errors import BadBufferError, UsageError
from kvferry.integrations.vllm.blocks.copier import BlockCopier, layer_order
from kvferry.integrations.vllm.blocks.layouts import read_layout
from support.kv_tensors import BLOCKS, LAYERS, LAYOUTS, TOKENS, Case, Tensor

# What a chunk of blocks 7, 2, 9 is. If one of these changes, chunks that are in stores mean
# something else from now on: the name of the layout, and with it the identity, has to change too.
GOLDEN = {
    "0.32 LBHNC": "74804b310b62d989505aacaccd4c7672",
    "0.32 LBNHC": "96ea62141e4f77ef023fe5f7b81819f9",
    "0.32 LHBNC": "828a2596fbcc8c1adf47679c4e08a4ad",
    "0.32 BLHNC": "74804b310b62d989505aacaccd4c7672",
    "0.32 BLNHC": "96ea62141e4f77ef023fe5f7b81819f9",
    "0.32 BHLNC": "74804b310b62d989505aacaccd4c7672",
    "0.22 CPU": "f9801e905d2a6f6f0d9607be8f55cb53",
    "0.22 FlashAttention NHD": "75d6dd4b28ae4ff513788d975a193006",
    "0.22 FlashAttention HND": "f9801e905d2a6f6f0d9607be8f55cb53",
    "0.22 FlashInfer NHD": "08a49564b108ad6bda0b8b9be7f5bbcb",
    "0.22 FlashInfer HND": "0a7acd86929407e8c2012b455b9bc6ca",
    "0.22 MLA": "0a91d6be12cac0dea896eda30a2dcc63",
}


def copier(case: Case, **options: Any) -> BlockCopier:
    return BlockCopier(case.caches, TOKENS, **options)


def buffers(count: int, size: int) -> list[bytearray]:
    return [bytearray(b"\xee" * size) for _ in range(count)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_has_the_bytes_that_its_axes_say(layout: str) -> None:
    case = Case(layout)
    blocks = copier(case, heads=None)
    assert blocks.name == LAYOUTS[layout].chunk
    assert (blocks.layers, blocks.blocks, blocks.device) == (LAYERS, BLOCKS, "cpu")
    for ids in ([7, 2, 9], [0], [11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0]):
        (page,) = buffers(1, len(ids) * blocks.block_bytes)
        blocks.gather(ids, [page])
        assert bytes(page) == case.expected(ids)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_bytes_of_a_chunk_are_what_they_were(layout: str) -> None:
    blocks = copier(Case(layout))
    (page,) = buffers(1, 3 * blocks.block_bytes)
    blocks.gather([7, 2, 9], [page])
    assert hashlib.sha256(page).hexdigest()[:32] == GOLDEN[layout]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back_into_other_blocks(layout: str) -> None:
    case, other = Case(layout), Case(layout, zero=True)
    blocks, into = copier(case), copier(other)
    pages = buffers(2, 2 * blocks.block_bytes)
    blocks.gather([7, 2, 9, 4], pages)
    into.scatter(pages, [1, 0, 11, 5])
    again = buffers(2, 2 * blocks.block_bytes)
    into.gather([1, 0, 11, 5], again)
    assert again == pages
    rest = [block for block in range(BLOCKS) if block not in (1, 0, 11, 5)]
    assert not any(other.expected(rest)), "a block was written that was not named"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layer_by_layer_is_the_same(layout: str) -> None:
    case, other = Case(layout), Case(layout, zero=True)
    blocks, into = copier(case), copier(other)
    (whole,), (page,) = (buffers(1, 2 * blocks.block_bytes) for _ in range(2))
    blocks.gather([3, 8], [whole])
    for layer in reversed(range(LAYERS)):
        blocks.gather_layer(layer, [3, 8], [page])
    assert page == whole
    into.scatter([page], [8, 3])
    assert other.expected([8, 3]) == bytes(whole)


def test_one_layer_leaves_the_rest_of_a_page() -> None:
    blocks = copier(Case("0.22 CPU"))
    (page,) = buffers(1, 2 * blocks.block_bytes)
    blocks.gather_layer(1, [3, 8], [page])
    size = 2 * blocks.layer_bytes
    assert set(page[:size]) == {0xEE}
    assert set(page[2 * size :]) == {0xEE}
    assert bytes(page[size : 2 * size]) == Case("0.22 CPU").expected([3, 8])[size : 2 * size]


@pytest.mark.parametrize("layout", ["0.32 LBHNC", "0.22 CPU", "0.32 BHLNC"])
def test_a_block_that_is_not_wanted_is_not_touched(layout: str) -> None:
    case, other = Case(layout), Case(layout, zero=True)
    blocks, into = copier(case), copier(other)
    pages = buffers(2, 2 * blocks.block_bytes)
    blocks.gather([7, 2, 9, 4], pages)
    into.scatter(pages, [-1, 2, 9, -1])
    assert other.expected([2, 9]) == case.expected([2, 9])
    assert not any(other.expected([0, 1, 3, 4, 5, 6, 7, 8, 10, 11]))
    with pytest.raises(UsageError, match="no block -1"):
        blocks.gather([-1, 2, 9, 4], pages)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_with_smaller_blocks(layout: str) -> None:
    """A block of the scheduler is three of the kernel's, in their order."""
    case = Case(layout)
    blocks = BlockCopier(case.caches, 3 * TOKENS, blocks=BLOCKS // 3)
    assert blocks.name == LAYOUTS[layout].chunk.replace("B", "BR3")
    assert blocks.blocks == BLOCKS // 3
    (page,) = buffers(1, 2 * blocks.block_bytes)
    blocks.gather([3, 1], [page])
    assert bytes(page) == case.expected([9, 10, 11, 3, 4, 5])


def test_pages_may_be_any_buffers() -> None:
    case = Case("0.32 LBHNC")
    blocks = copier(case)
    array = np.zeros((3, blocks.block_bytes), np.uint8)
    blocks.gather([1, 2, 3], list(array))
    assert array[1].tobytes() == case.expected([2])
    blocks.scatter([bytes(row) for row in array], [1, 2, 3])


def test_what_does_not_fit_is_refused_and_nothing_is_written() -> None:
    blocks = copier(Case("0.32 LBHNC"))
    size = blocks.block_bytes
    good, short = bytearray(size), bytearray(size - 1)
    with pytest.raises(BadBufferError, match=f"{size - 1} bytes"):
        blocks.gather([1, 2], [good, short])
    with pytest.raises(UsageError, match="no block 12"):
        blocks.gather([1, 12], [good, good])
    with pytest.raises(UsageError, match="3 blocks cannot be divided among 2"):
        blocks.gather([1, 2, 3], [good, good])
    with pytest.raises(UsageError, match="divided among 0"):
        blocks.gather([1], [])
    with pytest.raises(BadBufferError, match="read-only"):
        blocks.gather([1], [bytes(size)])
    with pytest.raises(UsageError, match="no layer 3"):
        blocks.gather_layer(3, [1], [good])
    assert not any(good)
    blocks.gather([], [])


def test_layers_come_in_the_order_of_the_model() -> None:
    names = ["model.layers.10.self_attn.attn", "model.layers.9.self_attn.attn", "model.layers.0.x"]
    assert layer_order(dict.fromkeys(names)) == [names[2], names[1], names[0]]
    case = Case("0.32 LBHNC")
    shuffled = dict(reversed(case.caches.items()))
    (page,) = buffers(1, copier(case).block_bytes)
    BlockCopier(shuffled, TOKENS).gather([5], [page])
    assert bytes(page) == case.expected([5])


def test_a_layer_that_shares_the_tensor_of_another_is_stored_once() -> None:
    case = Case("0.32 LBHNC")
    shared = {**case.caches, "model.layers.7.self_attn.attn": case.caches[next(iter(case.caches))]}
    blocks = BlockCopier(shared, TOKENS)
    assert blocks.layer_names == tuple(case.caches)


# Lengths alone do not tell heads from tokens when there are as many of both.
@pytest.mark.parametrize(
    ("shape", "first", "heads", "expected"),
    [
        ((9, 4, 4, 6), None, None, "BHNC"),
        ((9, 4, 4, 6), False, None, "BNHC"),
        ((9, 4, 2, 6), None, None, "BNHC"),
        ((9, 2, 4, 6), False, None, "BHNC"),
        ((9, 1, 4, 6), None, None, "BNC"),
        ((2, 9, 4, 4, 6), True, None, "KBHND"),
        ((2, 9, 4, 4, 6), False, None, "KBNHD"),
        ((2, 9, 4, 1, 6), False, None, "KBND"),
        ((9, 2, 4, 3, 6), None, 3, "BKNHD"),
        ((2, 2, 4, 3, 6), None, None, "KBNHD"),
    ],
)
def test_what_the_axes_are(
    shape: tuple[int, ...], first: bool | None, heads: int | None, expected: str
) -> None:
    strides = np.empty(shape, np.uint8).strides
    assert read_layout(shape, strides, 1, 4, heads=heads, heads_first=first).axes == expected


@pytest.mark.parametrize(
    ("shape", "strides", "options"),
    [
        ((9, 2, 5, 6), None, {}),  # no axis has 4 tokens
        ((9, 4), None, {}),
        ((3, 9, 2, 4, 6), None, {}),  # neither keys nor values
        ((9, 2, 4, 6), None, {"heads": 3}),
        ((9, 2, 4, 6), None, {"blocks": 4}),  # 9 are no multiple of it
        ((9, 2, 4, 6), None, {"blocks": 3}),  # three times 4 tokens are not 4
        ((9, 2, 4, 6), (48, 24, 6, 2), {}),  # gaps between numbers
        ((9, 2, 4, 6), (24, 24, 6, 1), {}),  # blocks overlap
        ((9, 2, 4, 6), (0, 24, 6, 1), {}),
        ((9, 2, 4, 6), (100, 37, 9, 1), {}),  # rows at unequal distances
        ((0, 2, 4, 6), None, {}),
    ],
)
def test_what_is_not_known_is_refused_with_what_it_is(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, options: dict[str, int]
) -> None:
    given = strides or np.empty(shape, np.uint8).strides
    with pytest.raises(UsageError) as caught:
        read_layout(shape, given, 1, 4, **options)  # type: ignore[arg-type]
    assert f"shape {shape}, strides {tuple(given)}" in str(caught.value)
    assert str(caught.value).count(". ") == 0


def test_padding_behind_a_block_is_left_out() -> None:
    memory = np.arange(5 * 40, dtype=np.uint8)
    padded = np.lib.stride_tricks.as_strided(memory, (5, 2, 4, 4), (40, 16, 4, 1))
    blocks = BlockCopier({"layers.0": Tensor(padded)}, 4)
    page = bytearray(2 * blocks.block_bytes)
    blocks.gather([4, 1], [page])
    assert bytes(page) == bytes([*range(160, 192), *range(40, 72)])


def test_layers_that_are_not_alike_are_refused() -> None:
    caches = {
        "layers.0": Tensor(np.zeros((9, 2, 4, 6), np.uint8)),
        "layers.1": Tensor(np.zeros((9, 2, 4, 8), np.uint8)),
    }
    with pytest.raises(UsageError, match=r"layers\.0 and layers\.1 keep different blocks"):
        BlockCopier(caches, 4)


def test_what_is_no_tensor_or_elsewhere_is_refused() -> None:
    with pytest.raises(UsageError, match="layer mixer keeps a list"):
        BlockCopier({"mixer": [1, 2]}, 4)
    with pytest.raises(UsageError, match="no KV cache"):
        BlockCopier({}, 4)
    with pytest.raises(UsageError, match="is on xpu"):
        BlockCopier({"layers.0": Tensor(np.zeros((9, 2, 4, 6), np.uint8), "xpu")}, 4)
