"""Chunks of a real model's size: every byte is a function of prefix and page, and is compared."""

from __future__ import annotations

import pytest

from kvferry.base.errors import UsageError

np = pytest.importorskip("numpy")

from kvferry import Identity, KVLayout, TieredCache  # noqa: E402
from kvferry_lab.serve.app import text_of  # noqa: E402
from kvferry_lab.serve.batcher import Batcher, Pace  # noqa: E402
from kvferry_lab.serve.chunks import SequenceChunks  # noqa: E402
from kvferry_lab.transformer import Transformer, TransformerConfig, encode  # noqa: E402

CONFIG = TransformerConfig(
    layers=2, d_model=32, heads=1, kv_heads=1, d_ff=64, page_tokens=16, window_pages=2
)
HEAD = CONFIG.page_bytes


@pytest.mark.parametrize("size", [HEAD, HEAD + 7, HEAD + 4096 + 8, HEAD + (1 << 20) + 5000])
def test_one_wrong_byte_anywhere_is_found(size: int) -> None:
    model = Transformer(CONFIG, 1)
    kv = model.new_cache(16)
    model.prefill(encode(b"x" * 15), kv)
    chunks, made = SequenceChunks(CONFIG, size), np.empty(size, np.uint8)
    chunks.make(b"a" * 16, kv.pages[0], made)
    again = model.new_cache(16)
    assert chunks.take([b"a" * 16], [memoryview(made)], again) == 1
    assert again.pages.tobytes() == kv.pages.tobytes()
    if size == HEAD:  # nothing to compare with: the cache's own checks are all there is
        return
    assert chunks.take([b"b" * 16], [memoryview(made)], again) == 0
    for at in {0, HEAD - 1, HEAD, HEAD + 6, size // 2, size - 1}:
        made[at] ^= 1
        assert chunks.take([b"a" * 16], [memoryview(made)], again) == 0
        made[at] ^= 1
    assert chunks.take([b"a" * 16], [memoryview(made)[:-1]], again) == 0


def test_what_follows_a_wrong_chunk_is_not_taken() -> None:
    chunks, pages = SequenceChunks(CONFIG, HEAD + 100), Transformer(CONFIG, 1).new_cache(64).pages
    made = np.empty((4, HEAD + 100), np.uint8)
    digests = [bytes([n]) * 16 for n in range(4)]
    for n in range(4):
        chunks.make(digests[n], pages[n], made[n])
    made[2, -1] ^= 1
    views = [memoryview(row) for row in made]
    assert chunks.take(digests, views, Transformer(CONFIG, 1).new_cache(64)) == 2


def test_a_token_smaller_than_the_transformers_own_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 512 bytes"):
        SequenceChunks(CONFIG, HEAD - 1)


def test_with_a_window_tokens_depend_on_loaded_pages_and_bits_repeat() -> None:
    model, prompt = Transformer(CONFIG, 1), encode("the same beginning, again and again, forever")
    computed, loaded, other = (model.new_cache(64) for _ in range(3))
    logits = model.generate(prompt, computed, 8)[1]
    for kv in (loaded, other):
        kv.pages[:2] = computed.pages[:2]
        kv.length = 32
    assert np.array_equal(model.generate(prompt, loaded, 8)[1], logits)
    other.pages[1] += 0.5
    assert not np.array_equal(model.generate(prompt, other, 8)[1], logits)


def test_a_step_takes_what_the_formula_says() -> None:
    pace = Pace(a_s=0.01, c_s_per_token=1e-4, d_s_per_token2=1e-8, decode_s=0.02)
    assert pace.step_s(1000, 1000**2, 0) == pytest.approx(0.01 + 0.1 + 0.01)
    assert pace.step_s(0, 0, 3) == 0.02
    assert pace.step_s(10, 100, 1) == 0.02


def test_every_token_is_one_printable_character() -> None:
    texts = [text_of(token) for token in range(256)]
    assert len(set(texts)) == 256
    assert all(len(text) == 1 and text.strip("\n\r\t") for text in texts)


def test_steps_of_a_few_tokens_do_not_make_a_long_prompt_look_as_quick() -> None:
    model = Transformer(CONFIG, 1)
    layout = KVLayout(layers=2, kv_heads=1, head_dim=32, dtype="float32", chunk_size=16)
    pace = Pace(c_s_per_token=1 / 20_000, decode_s=0.01)
    with TieredCache(
        Identity(model="short steps", layout=layout), max_local_cpu_size=0.001
    ) as cache:
        batcher = Batcher(
            model, SequenceChunks(CONFIG, HEAD), cache, pace, sequences_max=2, step_tokens=2048
        )
        for tokens in (2, 4, 9, 16) * 10:
            cache.observe_step(tokens, tokens**2, 1, 0.012)
        assert 0.4 < cache.prefill.predict_s(10_000) < 1.0
        batcher.close()
