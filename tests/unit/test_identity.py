"""Identities: golden digests, what separates them, what does not, and how they differ."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvferry.base.errors import UsageError
from kvferry.chunks.identity import Identity, difference, explain_difference
from kvferry.chunks.layout import KVLayout

GOLDEN = [
    "9ea81aec99043fced26af633f699b153",
    "3e5d2e920da3839d364c6b0db085ba6e",
    "7271bb7a599ea937f9af3520b39e5da8",
]

LLAMA = KVLayout(layers=32, kv_heads=8, head_dim=128, dtype="bfloat16")
DEEPSEEK = KVLayout(kind="mla", layers=61, latent_dim=576, chunk_size=64)
IDENTITY = Identity(model="meta-llama/Llama-3.1-8B", revision="0e9e39f", layout=LLAMA)
FULL = Identity(
    model="m",
    layout=replace(LLAMA, tp_size=4, tp_rank=1, pp_size=3, pp_rank=2, order="page_first"),
    rope="theta=1",
    lora="x@1",
    quantisation="awq",
    engine="vllm-0.33 NHD",
    extra={"sliding_window": 4096, "note": "ä"},
)


def test_golden_digests() -> None:
    """Stored data outlives releases: these values never change under format 1."""
    assert IDENTITY.description == (
        "chunk_size=256\ndtype=bfloat16\nformat=1\nhead_dim=128\nkind=gqa\nkv_heads=0-7 of 8\n"
        "layers=0-31 of 32\nmodel=meta-llama/Llama-3.1-8B\norder=layer_first\nrevision=0e9e39f\n"
    )
    assert FULL.description == (
        "chunk_size=256\ndtype=bfloat16\nengine=vllm-0.33 NHD\nformat=1\nhead_dim=128\nkind=gqa\n"
        "kv_heads=2-3 of 8\nlayers=22-31 of 32\nlora=x@1\nmodel=m\nnote=ä\norder=page_first\n"
        "quantisation=awq\nrope=theta=1\nsliding_window=4096\n"
    )
    mla = Identity(model="deepseek-v3", layout=DEEPSEEK)
    assert [identity.digest.hex() for identity in (IDENTITY, FULL, mla)] == GOLDEN


def test_the_digest_does_not_depend_on_the_process() -> None:
    code = (
        "from kvferry.chunks.identity import Identity; from kvferry.chunks.layout import KVLayout\n"
        "layout = KVLayout(layers=2, kv_heads=2, head_dim=8)\n"
        "extra = {name: 1 for name in {'a', 'b', 'c', 'd'}}\n"
        "print(Identity(model='m', layout=layout, extra=extra).digest.hex())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model": "other"}, "model"),
        ({"revision": "1"}, "revision"),
        ({"rope": "theta=5e5"}, "rope"),
        ({"lora": "x"}, "lora"),
        ({"quantisation": "fp8"}, "quantisation"),
        ({"engine": "sglang"}, "engine"),
        ({"format": 2}, "format"),
        ({"extra": {"more": "1"}}, "more"),
        ({"layout": replace(LLAMA, layers=16)}, "layers"),
        ({"layout": replace(LLAMA, kv_heads=4)}, "kv_heads"),
        ({"layout": replace(LLAMA, head_dim=64)}, "head_dim"),
        ({"layout": replace(LLAMA, dtype="float16")}, "dtype"),
        ({"layout": replace(LLAMA, chunk_size=128)}, "chunk_size"),
        ({"layout": replace(LLAMA, order="page_first")}, "order"),
        ({"layout": replace(LLAMA, tp_size=2)}, "kv_heads"),
        ({"layout": replace(LLAMA, pp_size=2, pp_rank=1)}, "layers"),
    ],
)
def test_each_field_separates_and_is_named(change: dict[str, Any], field: str) -> None:
    other = replace(IDENTITY, **change)
    assert other.digest != IDENTITY.digest
    assert [name for name, _, _ in difference(IDENTITY.description, other.description)] == [field]


def test_the_ranks_of_one_model_have_different_shards_that_are_all_of_it() -> None:
    for tp_size, pp_size in ((1, 1), (2, 3), (8, 5), (4, 32)):
        shards = [
            replace(LLAMA, tp_size=tp_size, tp_rank=tp, pp_size=pp_size, pp_rank=pp)
            for tp in range(tp_size)
            for pp in range(pp_size)
        ]
        digests = {Identity(model="m", layout=shard).digest for shard in shards}
        assert len(digests) == tp_size * pp_size
        cells = [(lay, head) for s in shards for lay in s.layer_range for head in s.head_range]
        assert sorted(cells) == [(lay, head) for lay in range(32) for head in range(8)]
        assert max(len(s.layer_range) for s in shards) - 32 // pp_size <= 1
        assert sum(s.chunk_bytes for s in shards) == LLAMA.chunk_bytes


def test_ranks_share_what_they_have_alike() -> None:
    mla = [replace(DEEPSEEK, tp_size=8, tp_rank=rank) for rank in range(8)]
    assert {Identity(model="m", layout=layout).digest for layout in (*mla, DEEPSEEK)} == {
        Identity(model="m", layout=DEEPSEEK).digest
    }
    # 16 ranks, 8 heads: ranks 2 and 3 both have head 1, like rank 1 of 8.
    layouts = [replace(LLAMA, tp_size=16, tp_rank=rank) for rank in (2, 3)]
    layouts.append(replace(LLAMA, tp_size=8, tp_rank=1))
    assert len({Identity(model="m", layout=layout).digest for layout in layouts}) == 1


def test_shapes_and_bytes() -> None:
    assert LLAMA.chunk_shape == (32, 2, 256, 8, 128)
    assert replace(LLAMA, order="page_first").chunk_shape == (256, 32, 2, 8, 128)
    assert LLAMA.token_bytes == 128 << 10
    assert DEEPSEEK.chunk_shape == (61, 64, 576)
    assert replace(DEEPSEEK, order="page_first").chunk_shape == (64, 61, 576)
    assert DEEPSEEK.token_bytes == 70_272  # as published
    assert replace(DEEPSEEK, dtype="fp8_e4m3").token_bytes == 70_272 // 2
    shard = replace(LLAMA, tp_size=2, tp_rank=1, pp_size=2, pp_layers=(10, 22), pp_rank=1)
    assert shard.chunk_shape == (22, 2, 256, 4, 128)
    assert shard.shard == "layers 10-31 of 32, heads 4-7 of 8"
    assert hash(shard) == hash(replace(shard))


@given(
    layers=st.integers(1, 90),
    pp_size=st.integers(1, 90),
    chunk_size=st.integers(1, 512),
    order=st.sampled_from(["layer_first", "page_first"]),
)
def test_bytes_are_those_of_the_shape(
    layers: int, pp_size: int, chunk_size: int, order: str
) -> None:
    pp_size = min(layers, pp_size)
    shards = [
        KVLayout(
            layers=layers,
            kv_heads=2,
            head_dim=4,
            dtype="float32",
            chunk_size=chunk_size,
            order=order,
            pp_size=pp_size,
            pp_rank=rank,
        )
        for rank in range(pp_size)
    ]
    assert [layer for shard in shards for layer in shard.layer_range] == list(range(layers))
    assert all(s.chunk_bytes == 4 * math.prod(s.chunk_shape) for s in shards)
    assert sum(s.chunk_bytes for s in shards) == layers * 2 * chunk_size * 2 * 4 * 4


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 0},
        {"layers": True},
        {"kv_heads": 0},
        {"head_dim": 1.5},
        {"latent_dim": 576},
        {"kind": "mla"},
        {"kind": "mha"},
        {"order": "token_first"},
        {"dtype": "float12"},
        {"chunk_size": 0},
        {"tp_size": 3},
        {"tp_size": 2, "tp_rank": 2},
        {"tp_rank": -1},
        {"pp_size": 33},
        {"pp_size": 2, "pp_rank": 2},
        {"pp_size": 2, "pp_layers": (16, 15)},
        {"pp_size": 2, "pp_layers": (32,)},
        {"pp_size": 2, "pp_layers": (32, 0)},
    ],
)
def test_a_layout_that_cannot_be_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as info:
        replace(LLAMA, **wrong)
    named = "latent_dim" if wrong == {"kind": "mla"} else list(wrong)[-1]
    assert named in str(info.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ""},
        {"model": 3},
        {"model": "a\nb=c"},
        {"lora": "a\u2028b"},
        {"engine": "\ud800"},
        {"extra": {"dtype": "float16"}},
        {"extra": {"latent_dim": 1}},
        {"extra": {"salt": "s"}},
        {"extra": {"a b": "1"}},
        {"extra": {"a": 1.5}},
        {"extra": {"a": "x\ny"}},
    ],
)
def test_an_identity_that_could_imitate_another_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        replace(IDENTITY, **wrong)


def test_names_of_types_may_come_from_libraries() -> None:
    np = pytest.importorskip("numpy")
    by_name = replace(LLAMA, dtype="float16")
    for dtype in ("torch.float16", np.float16, np.dtype("float16")):
        assert replace(LLAMA, dtype=dtype) == by_name


def test_what_the_caller_changes_later_is_not_ours() -> None:
    extra = {"a": "1"}
    identity = replace(IDENTITY, extra=extra)
    before = identity.digest
    extra["a"] = "2"
    assert identity.digest == before
    assert hash(identity) == hash(replace(identity))


def test_differences_are_told_in_one_bounded_line() -> None:
    other = replace(IDENTITY, lora="x", layout=replace(LLAMA, dtype="float16"))
    assert difference(other.description, IDENTITY.description) == [
        ("dtype", "float16", "bfloat16"),
        ("lora", "x", None),
    ]
    assert (
        explain_difference(other.description, IDENTITY.description)
        == "differs in: dtype (float16 instead of bfloat16), lora (x instead of none)"
    )
    assert explain_difference(IDENTITY.description, IDENTITY.description) == "does not differ"
    # What a store holds may be anything.
    text = explain_difference("a=\x1b[31m\x00\nnothing\n" + "b=" + "x" * 10_000, "b=1\n")
    assert text.isprintable()
    assert len(text) < 300
    assert "nothing ( instead of none)" in text
