"""The NumPy transformer: right by a naive reference, and bit-equal with and without its cache."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from typing import Literal

import numpy as np
import numpy.typing as npt
import pytest

from kvferry_lab.transformer import (
    VOCABULARY,
    KVCache,
    Transformer,
    TransformerConfig,
    encode,
    from_bfloat16,
    to_bfloat16,
)
from kvferry_lab.transformer import _rotate as rotate
from kvferry_lab.transformer import _rotation as rotation

PROMPT = encode("A chunk is the KV of a fixed number of consecutive tokens.")  # 59 tokens
SMALL = TransformerConfig(layers=3, d_model=64, heads=8, kv_heads=2, d_ff=96, page_tokens=16)


def small(**changes: object) -> Transformer:
    return Transformer(TransformerConfig(**{**vars(SMALL), **changes}), seed=7)


def naive_logits(model: Transformer, tokens: list[int]) -> npt.NDArray[np.float64]:
    """The textbook formulas in float64: one position, one head, one score at a time."""
    c = model.config
    d, half = c.head_dim, c.head_dim // 2

    def norm(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        power: npt.NDArray[np.float64] = (x**2).mean(-1, keepdims=True)
        return x / np.sqrt(power + 1e-5)

    def rope(x: npt.NDArray[np.float64], position: int) -> npt.NDArray[np.float64]:
        z = (x[:half] + 1j * x[half:]) * np.exp(
            1j * position * c.rope_base ** (-2 * np.arange(half) / d)
        )
        return np.concatenate([z.real, z.imag])

    x = model.embedding[tokens].astype(np.float64)
    for layer in model.layers:
        qkv = (norm(x) @ layer.qkv).reshape(len(tokens), -1, d)
        mixed = np.zeros((len(tokens), c.heads, d))
        for i in range(len(tokens)):
            for head in range(c.heads):
                k_row = c.heads + head // (c.heads // c.kv_heads)
                q = rope(qkv[i, head], i)
                scores = np.array([q @ rope(qkv[j, k_row], j) for j in range(i + 1)]) / d**0.5
                weights = np.exp(scores - scores.max())
                mixed[i, head] = weights / weights.sum() @ qkv[: i + 1, k_row + c.kv_heads]
        x = x + mixed.reshape(len(tokens), -1) @ layer.out
        gate, up = np.split(norm(x) @ layer.gate_up, 2, axis=1)
        x = x + (gate / (1 + np.exp(-gate)) * up) @ layer.down
    logits: npt.NDArray[np.float64] = norm(x) @ model.head
    return logits


@pytest.mark.parametrize("kv_heads", [1, 2, 8])
@pytest.mark.parametrize("tied_head", [False, True])
def test_it_computes_what_the_textbook_says(kv_heads: int, tied_head: bool) -> None:
    model = small(kv_heads=kv_heads, tied_head=tied_head)
    logits = model.prefill(PROMPT, model.new_cache(64))
    expected = naive_logits(model, PROMPT)[-1]
    np.testing.assert_allclose(logits, expected, rtol=2e-4, atol=2e-4 * np.abs(expected).max())


@pytest.mark.parametrize("page_tokens", [1, 5, 16, 59, 64])
def test_the_page_size_does_not_change_the_function(page_tokens: int) -> None:
    model = small(page_tokens=page_tokens)
    tokens, logits = model.generate(PROMPT, model.new_cache(80), 8)
    wanted, expected = small().generate(PROMPT, small().new_cache(80), 8)
    assert tokens == wanted
    np.testing.assert_allclose(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("pages", [1, 2, 3])
def test_loaded_pages_lead_to_the_same_bits(
    kv_dtype: Literal["float32", "bfloat16"], pages: int
) -> None:
    model = small(kv_dtype=kv_dtype)
    computed = model.new_cache(80)
    tokens, logits = model.generate(PROMPT, computed, 12)
    stored = [bytes(page) for page in computed.pages[:pages]]
    assert {len(page) for page in stored} == {model.config.page_bytes}

    loaded = model.new_cache(80)
    for page, value in zip(loaded.pages, stored, strict=False):
        memoryview(page).cast("B")[:] = value
    loaded.length = pages * model.config.page_tokens
    again, again_logits = small(kv_dtype=kv_dtype).generate(PROMPT, loaded, 12)
    assert again == tokens
    assert again_logits.tobytes() == logits.tobytes()
    assert loaded.pages.tobytes() == computed.pages.tobytes()


def test_pages_of_another_text_lead_elsewhere() -> None:
    model = small()
    right, wrong = model.new_cache(80), model.new_cache(80)
    tokens, logits = model.generate(PROMPT, right, 12)
    model.prefill(PROMPT[:1] + PROMPT[:0:-1], wrong)
    wrong.length = 48
    other, other_logits = model.generate(PROMPT, wrong, 12)
    assert other != tokens
    assert not np.allclose(other_logits[0], logits[0], atol=1e-2)


def test_a_later_token_does_not_change_earlier_states() -> None:
    model = small()
    changed = [*PROMPT[:10], 99, *PROMPT[11:16]]
    a = model.forward(PROMPT[:16], model.new_cache(16))
    b = model.forward(changed, model.new_cache(16))
    assert a[:10].tobytes() == b[:10].tobytes()
    assert all((a[i] != b[i]).any() for i in range(10, 16))


def test_positions_are_relative_within_rotation() -> None:
    """RoPE: the product of a rotated query and key depends on their distance alone."""
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 1, 1, 32), np.float32)

    def score(i: int, j: int) -> float:
        a, b = (rotate(x, rotation(p, 1, 32, 1e4)) for x, p in ((q, i), (k, j)))
        return float((a * b).sum())

    assert score(7, 3) == pytest.approx(score(107, 103), abs=1e-3)
    assert score(7, 3) != pytest.approx(score(8, 3), abs=1e-2)


def test_a_seed_gives_the_same_model_in_every_process() -> None:
    code = (
        "import hashlib; from kvferry_lab.transformer import *;"
        f"model = Transformer({SMALL!r}, seed=7);"
        f"_, logits = model.generate({PROMPT!r}, model.new_cache(80), 4);"
        "print(hashlib.sha256(logits.tobytes()).hexdigest())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, logits = small().generate(PROMPT, small().new_cache(80), 4)
    assert out.stdout.strip() == hashlib.sha256(logits.tobytes()).hexdigest()
    assert (Transformer(SMALL, seed=8).embedding != small().embedding).any()


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([0, -0.0, 1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1e30], np.float32)
    rounded = from_bfloat16(to_bfloat16(values))
    exact = [0, 0, 1, 1, 1 + 2**-6, 1 + 2**-7]
    assert rounded[:6].tolist() == exact
    assert rounded[6] == pytest.approx(-1e30, rel=2**-8)
    assert np.signbit(rounded[1])


def test_shapes_and_limits() -> None:
    model = small()
    assert model.parameters == sum(
        w.size
        for w in [model.embedding, model.head, *(w for x in model.layers for w in vars(x).values())]
    )
    kv = model.new_cache(20)
    assert (kv.capacity_tokens, kv.pages[0].shape) == (32, SMALL.page_shape)
    assert kv.pages[0].nbytes == SMALL.page_bytes
    with pytest.raises(ValueError, match="32 fit"):
        model.prefill(PROMPT, kv)
    kv.length = 5
    with pytest.raises(ValueError, match="one at least"):
        model.prefill(PROMPT[:5], kv)
    assert model.prefill(PROMPT[:20], KVCache(SMALL, 20)).shape == (VOCABULARY,)
    with pytest.raises(ValueError, match="divide"):
        TransformerConfig(d_model=100)
