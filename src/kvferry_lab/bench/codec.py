"""What codecs of values save and cost: ratio and speed of one thread, on KV or on a file.

The content is cut and encoded as it would be for a store, in stripes of 4 MiB, and every byte that
comes back is compared. Of fp8, which loses something, `Loss` says what that does to predictions of
our transformer behind KV that went through it. The weights are random numbers, so the predictions
mean nothing; how far they are from each other does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from kvferry import _native
from kvferry.base.errors import CorruptError, UsageError
from kvferry.cli.table import console, number, table
from kvferry.connectors.serde import CODECS, number_of_fp8
from kvferry_lab.demo.demo_prompt import load_prompt
from kvferry_lab.output import machine_facts, machine_line
from kvferry_lab.transformer import F32, KVCache, Transformer, TransformerConfig, from_bfloat16

__all__ = ["content_of", "figures", "measure", "measure_loss", "say"]

U8 = npt.NDArray[np.uint8]
_STRIPE_BYTES = 4 << 20
_BLOCK_BYTES = 64 << 10  # each has four bytes of head


@dataclass(frozen=True)
class CodecRow:
    """What one codec made of the content.

    Attributes:
        ratio: Bytes before by bytes after; 1: it does not pay.
        encode_gb_s, decode_gb_s: Content bytes by the time of one thread, median of the rounds;
            None where nothing is encoded.
    """

    codec: str
    content_bytes: int
    payload_bytes: int
    ratio: float
    encode_gb_s: float | None
    decode_gb_s: float | None


def content_of(file: Path | None, tokens: int) -> tuple[U8, str]:
    """The bytes of a file, or the KV of that many tokens, and what they are.

    Raises:
        UsageError: The file cannot be read, or is empty.
    """
    if file is not None:
        try:
            content = np.fromfile(file, np.uint8)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from error
        if not content.size:
            raise UsageError(f"{file} is empty")
        return content, str(file)
    config = TransformerConfig(kv_dtype="bfloat16", layers=4)
    kv = (model := Transformer(config, seed=1)).new_cache(tokens)
    model.prefill(load_prompt(tokens).tokens, kv)
    what = f"KV of {tokens} tokens, bf16, {config.layers} layers; the weights are random numbers"
    return kv.pages.reshape(-1).view(np.uint8), what


def measure(codec: str, content: U8, rounds: int) -> CodecRow:
    """Encode and decode all of it, that many times; `codec`: of `CODECS`, or fp8 of bf16.

    Raises:
        CorruptError: What comes back is something else.
    """
    number = CODECS.get(codec) or number_of_fp8("bfloat16")
    stripes = [content[at : at + _STRIPE_BYTES] for at in range(0, content.size, _STRIPE_BYTES)]
    payloads = [np.zeros(s.size + 4 * (s.size // _BLOCK_BYTES + 1), np.uint8) for s in stripes]
    back = np.zeros_like(content)
    targets = [back[at : at + _STRIPE_BYTES] for at in range(0, content.size, _STRIPE_BYTES)]
    lengths: list[int] = []

    def encode() -> None:
        pairs = zip(stripes, payloads, strict=True)
        lengths[:] = [_native.encode_value(number, *pair) for pair in pairs]

    def decode() -> None:
        for payload, length, target in zip(payloads, lengths, targets, strict=True):
            if length and not _native.decode_value(payload[:length], target):
                raise CorruptError(f"{codec}: what was encoded cannot be decoded")

    encode_s = statistics.median(_timed(encode) for _ in range(rounds))
    decode_s = statistics.median(_timed(decode) for _ in range(rounds))
    coded = 0
    for length, stripe, target in zip(lengths, stripes, targets, strict=True):
        if length and codec in CODECS and not np.array_equal(stripe, target):
            raise CorruptError(f"{codec}: what comes back is something else")
        coded += stripe.size if length else 0
    payload_bytes = sum(length or s.size for length, s in zip(lengths, stripes, strict=True))
    return CodecRow(
        codec=codec,
        content_bytes=content.size,
        payload_bytes=payload_bytes,
        ratio=content.size / payload_bytes,
        encode_gb_s=content.size / encode_s / 1e9 if coded else None,
        decode_gb_s=coded / decode_s / 1e9 if coded else None,
    )


def _timed(call: Callable[[], None]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def say(rows: Sequence[CodecRow], what: str, loss: Loss | None) -> None:
    """The table, for people."""
    out = console()
    out.print(machine_line(machine_facts()))
    out.print(f"{what}: {rows[0].content_bytes / 1e6:.1f} MB; one thread")
    cells = (
        (row.codec, number(row.ratio, 3), number(row.encode_gb_s), number(row.decode_gb_s))
        for row in rows
    )
    out.print(table(("codec", "ratio", "encode GB/s", "decode GB/s"), cells))
    if loss is not None:
        out.print(
            f"fp8 of {loss.kv_tokens} tokens of KV: error {loss.kv_error:.2%} of the numbers' "
            f"size; of {loss.predictions} predictions behind them {loss.same:.1%} are the same, "
            f"KL divergence {loss.kl_nats:.4f} nats"
        )


def figures(rows: Sequence[CodecRow], what: str, loss: Loss | None) -> list[dict[str, Any]]:
    """An object for each codec, for JSON."""
    facts = {**machine_facts(), "content": what, "fp8": loss and asdict(loss)}
    return [{**asdict(row), "run": facts} for row in rows]


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
    """Decode into `to` what fp8 keeps of bf16 numbers of any shape."""
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
