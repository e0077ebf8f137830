"""What fp8 costs in accuracy: predictions of our transformer behind KV that went through it.

The weights are random numbers, so the predictions mean nothing; how far they are from each other
does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvferry import _native
from kvferry.connectors.serde import number_of_fp8
from kvferry.testing.transformer import F32, KVCache, Transformer, TransformerConfig, from_bfloat16
from kvferry_lab.demo.demo_prompt import load_prompt

__all__ = ["Loss", "measure_loss"]


@dataclass(frozen=True)
class Loss:
    """How predictions with KV from fp8 differ from those with the KV itself.

    Attributes:
        kv_tokens: Of the prefix whose KV went through fp8.
        kv_error: Root of the mean square of its errors, by that of its numbers.
        predictions: How many tokens behind it were predicted, each behind the true ones.
        same: Share of those whose most likely token is the same.
        kl_nats: Mean of the Kullback-Leibler divergence.
    """

    kv_tokens: int
    kv_error: float
    predictions: int
    same: float
    kl_nats: float


def measure_loss(tokens: int) -> Loss:
    """By a prefix of that many tokens, in whole pages and one at least."""
    model = Transformer(TransformerConfig(kv_dtype="bfloat16", layers=4), seed=1)
    page = model.config.page_tokens
    kept = max(tokens // page, 1) * page
    prompt = load_prompt(kept + page).tokens[: kept + page]
    exact, lossy = model.new_cache(len(prompt)), model.new_cache(len(prompt))
    model.prefill(prompt[:kept], exact)
    through_fp8(exact.pages, lossy.pages)
    lossy.length = kept
    before, after = _floats(exact), _floats(lossy)
    wrong = float(np.sqrt(np.square(after - before).mean() / np.square(before).mean()))
    p, q = (_log_probabilities(model, prompt[kept:], kv) for kv in (exact, lossy))
    return Loss(
        kv_tokens=kept,
        kv_error=wrong,
        predictions=page,
        same=float((p.argmax(1) == q.argmax(1)).mean()),
        kl_nats=float((np.exp(p) * (p - q)).sum(1).mean()),
    )


def through_fp8(content: npt.NDArray[np.generic], to: npt.NDArray[np.generic]) -> None:
    """What comes back of bf16 numbers, of any shape, that were stored by fp8."""
    source, target = (each.reshape(-1).view(np.uint8) for each in (content, to))
    payload = np.zeros(2 * source.size, np.uint8)
    length = _native.encode_value(number_of_fp8("bfloat16"), source, payload)
    if not _native.decode_value(payload[:length], target):
        raise AssertionError("what was encoded cannot be decoded")


def _floats(kv: KVCache) -> F32:
    pages = kv.pages[: kv.length // kv.pages.shape[3]]
    assert pages.dtype == np.uint16
    return from_bfloat16(pages.astype(np.uint16))


def _log_probabilities(model: Transformer, tokens: list[int], kv: KVCache) -> F32:
    logits = model.logits(model.forward(tokens, kv))
    logits = logits - logits.max(1, keepdims=True)
    result: F32 = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return result
