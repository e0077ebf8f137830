"""`kvferry roi --validate`: figures that others have published, recomputed from their set-ups.

What a set-up does not say is fitted on some rows of its table, which say so; the others are
predicted. The fit of computing is the one that engines are calibrated with. The published figures
stand first; nothing of them is ours or a prediction, and milliseconds are as printed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvferry_lab.roi.arithmetic import Case, Kv, Prefill, Store, crossover, fit_line, fit_prefill
from kvferry_lab.roi.models import find_model
from kvferry_lab.roi.rates import roofline

__all__ = ["DELAYS", "GLM", "TABLES", "Check", "rounds_hit_rate", "validate"]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One prompt at a time, computed on one H200, or pulled from another pod."""

    name: str
    source: str
    tokens: tuple[int, ...]
    compute_ms: tuple[float, ...]
    pull_ms: tuple[float, ...]


# gpt-oss-120b (MXFP4), one H200 for each pod, NIXL over InfiniBand. Both say of the crossover that
# it lies below the smallest prefix that was measured.
TABLES = (
    Table(
        name="gpt-oss-120b, table 1",
        source="llm-d blog, 15 August 2026",
        tokens=(2048, 8192, 16384, 32768, 49152),
        compute_ms=(78, 250, 510, 1173, 1988),
        pull_ms=(35, 57, 86, 165, 235),
    ),
    Table(
        name="gpt-oss-120b, table 2",
        source="llm-d guide, another revision of the rig",
        tokens=(2048, 8192, 16384, 32768, 49152),
        compute_ms=(70.6, 205.4, 426.3, 983.0, 1695),
        pull_ms=(49.0, 120.1, 196.2, 376.3, 550.5),
    ),
)


class GLM:
    """GLM-5.2-FP8 on 32 H200, from the same post: tie near 8K tokens, crossover near 8.7K."""

    floor_s = (1.2, 1.3)  # of a pull, up to 2 GiB and more
    quicker = ((12 * 1024, 0.27), (24 * 1024, 0.61))  # tokens: how much sooner the pull is
    crossover_tokens = (8_000, 9_000)
    kv_gib = ((24 * 1024, 2.1), (70 * 1024, 6.2))


class PODS:
    """128 prefixes of 48K tokens, 16 pods of table 2, all offered more than they can compute."""

    count = 16
    prefix_tokens = 49_152
    requests_s = (9.01, 9.21)  # the least and the most that was reached at 24 and 30 offered


# Model of our table, tokens of a block, GPUs, MiB of a block on each. Source: vLLM blog, 8 January
# 2026 (blocks of 16 and 64); llm-d blog, 24 September 2025 (128).
BLOCKS = (
    ("llama-3.1-8b", 16, 1, 2.0),
    ("llama-3.2-1b", 16, 1, 0.5),
    ("llama-3.1-70b", 16, 4, 1.25),
    ("mistral-7b", 16, 1, 2.0),
    ("mistral-small-24b", 16, 1, 2.5),
    ("qwen2.5-3b", 16, 1, 0.56),
    ("qwen2.5-7b", 16, 1, 0.87),
    ("qwen2.5-1.5b", 16, 1, 0.44),
    ("qwen3-0.6b", 16, 1, 1.75),
    ("qwen3-1.7b", 16, 1, 1.75),
    ("qwen3-4b", 16, 1, 2.25),
    ("qwen3-32b", 16, 2, 2.0),
    ("r1-distill-qwen-32b", 16, 2, 2.0),
    ("deepseek-v2-lite", 64, 1, 1.9),
    ("deepseek-r1", 128, 1, 8.6),
    ("qwen3-8b", 16, 1, 1.97),
)


class VALUES:
    """GB/s of SET and GET by the size of a value in MB: LMCache's page on its RESP connector,
    Redis 8.2 with four I/O threads, eight workers, 500 keys (200 of 8 MB)."""

    set_gbps = ((1, 3.5), (4, 4.4), (8, 4.2))
    get_gbps = ((1, 5.2), (4, 5.9), (8, 1.4))


class P2P:
    """50 documents of 10,000 tokens on two engines with Llama-3.1-8B, whose GPU is not said.
    Source: LMCache's page on sharing between peers."""

    ttft_s = (2.286, 1.036, -0.547)  # without, with, published change
    round_s = (37.957, 13.814, -0.636)
    log = (1002, 0.1223, 60.3595, 2.0264)  # tokens, "gb", ms, "GB/s": both are of 2^30


class DELAYS:
    """Qwen3-0.6B with LMCache on Redis behind a delay: prompts of some 140 tokens, in chunks of
    256, none of which is ever found. Source: nadongjun/LMCache-Network-Perf."""

    chunks_asked = 1  # of a prompt, each in a round trip of its own
    # Round trip in ms: TTFT least, TTFT p50, end to end p50; in ms.
    rows = (
        (0, 12.3, 13.3, 257.0),
        (10, 22.0, 23.5, 266.6),
        (20, 33.2, 34.7, 282.0),
        (30, 42.7, 47.8, 295.5),
        (40, 51.2, 60.2, 315.0),
        (50, 63.2, 72.3, 320.3),
        (1000, 1018.9, 2307.9, 2573.6),
    )


_GIB, _MIB = 1 << 30, 1 << 20
_FITTED_ROWS = (0, 2, 4)  # of the tables: the shortest, the middle and the longest prompt
_COMPUTE, _LOAD, _SIZE = 0.02, 0.10, 0.02  # the error that is allowed
# The allocator gives freed memory of this size back at once, so that each value is faulted in anew.
# Source: docs/decisions/0005-stripes.md, measured with SET.
_FAULTING_MIB, _FAULTING_S = 8, 6.0e-3


@dataclass(frozen=True, kw_only=True)
class Check:
    """One published figure.

    Attributes:
        published: The figure, or the least and the most that it may be.
        bar: The relative error that is allowed; None: nothing is promised, and `note` says why.
        note: What the prediction rests on.
    """

    group: str
    what: str
    unit: str
    predicted: float
    published: float | tuple[float, float]
    bar: float | None
    note: str

    @property
    def error(self) -> float | None:
        """Relative; None for a range."""
        if isinstance(self.published, tuple):
            return None
        return self.predicted / self.published - 1

    @property
    def passed(self) -> bool | None:
        """Whether it holds; None where nothing is promised."""
        if isinstance(self.published, tuple):
            return self.published[0] <= self.predicted <= self.published[1]
        return None if self.bar is None else abs(self.predicted / self.published - 1) <= self.bar

    def to_dict(self) -> dict[str, Any]:
        """All fields, the error and the verdict."""
        return {**asdict(self), "error": self.error, "passed": self.passed}


def rounds_hit_rate(rounds: int) -> float:
    """Of a conversation of so many alike rounds: all but the first find what was there."""
    return (rounds - 1) / rounds


def validate() -> list[Check]:
    """Every published figure that is known here."""
    parts = (_tables(), _first_principles(), _glm(), _pods(), _sizes(), _values(), _rest())
    return [check for part in parts for check in part] + list(_delays())


def _fits(table: Table) -> tuple[Prefill, Store]:
    """Computing and loading, from three rows; the load is per token, whatever its bytes."""
    rows = [(table.tokens[i], table.compute_ms[i] / 1e3) for i in _FITTED_ROWS]
    pulls = [(table.tokens[i], table.pull_ms[i] / 1e3) for i in _FITTED_ROWS]
    fixed_s, per_token_s = fit_line(pulls)
    return fit_prefill(rows), Store(bytes_s=1 / per_token_s, fixed_s=fixed_s)


def _tables() -> Iterator[Check]:
    for table in TABLES:
        prefill, store = _fits(table)
        rows = zip(table.tokens, table.compute_ms, table.pull_ms, strict=True)
        for row, (tokens, compute_ms, pull_ms) in enumerate(rows):
            note = "fitted on this row" if row in _FITTED_ROWS else "held out"
            check = Check(
                group=table.name, what=f"compute {tokens:,} tokens", unit="ms",
                predicted=prefill.compute_s(tokens) * 1e3, published=compute_ms,
                bar=_COMPUTE, note=note,
            )  # fmt: skip
            yield check
            yield replace(
                check, what=f"load {tokens:,} tokens", predicted=store.load_s(tokens) * 1e3,
                published=pull_ms, bar=_LOAD,
            )  # fmt: skip
        yield Check(
            group=table.name, what="crossover", unit="tokens",
            predicted=crossover(
                prefill, Kv(whole_bytes=1), store.fixed_s - prefill.a_s, store.bytes_s
            ),
            published=(0, table.tokens[0]), bar=None,
            note="from both fits; published: below the smallest prefix measured",
        )  # fmt: skip


def _first_principles() -> Iterator[Check]:
    """The same tables from the model's config.json and the data sheet, with nothing fitted."""
    prefill = roofline(find_model("gpt-oss-120b"), "h200")
    for table in TABLES:
        for tokens, compute_ms in zip(table.tokens, table.compute_ms, strict=True):
            yield Check(
                group="first principles", what=f"{table.name[-7:]}: compute {tokens:,}", unit="ms",
                predicted=prefill.compute_s(tokens) * 1e3, published=compute_ms, bar=None,
                note="half of the peak of an H200 assumed, nothing fitted",
            )  # fmt: skip
    yield Check(
        group="first principles", what="Llama-3.1-8B, H100: compute 20,000", unit="ms",
        predicted=roofline(find_model("llama-3.1-8b"), "h100").compute_s(20_000) * 1e3,
        published=900, bar=None, note="as above; published in ai-dynamo/dynamo issue 6101",
    )  # fmt: skip


def _glm() -> Iterator[Check]:
    floor_s = sum(GLM.floor_s) / 2
    rows = [(tokens, floor_s / (1 - part)) for tokens, part in GLM.quicker]
    a_s, c_s = fit_line(rows)
    prefill = Prefill(a_s=a_s, c_s_per_token=c_s, d_s_per_token2=0)
    yield Check(
        group="GLM-5.2-FP8", what="crossover", unit="tokens",
        predicted=crossover(prefill, Kv(whole_bytes=0), floor_s - a_s, 1.0),
        published=GLM.crossover_tokens, bar=None,
        note="floor as published, computing fitted on the two ratios at 12K and 24K",
    )  # fmt: skip
    (short, short_gib), (long, long_gib) = GLM.kv_gib
    yield Check(
        group="GLM-5.2-FP8", what="KV of 70K tokens", unit="GiB",
        predicted=Kv(whole_bytes=short_gib / short).prompt_bytes(long), published=long_gib,
        bar=_SIZE, note="bytes of a token fitted on the KV of 24K tokens",
    )  # fmt: skip


def _pods() -> Iterator[Check]:
    prefill, _ = _fits(TABLES[1])
    yield Check(
        group="16 pods", what="requests of 48K tokens", unit="1/s",
        predicted=PODS.count / prefill.compute_s(PODS.prefix_tokens), published=PODS.requests_s[1],
        bar=_LOAD, note="pods / compute time, of table 2, which was fitted on this length",
    )  # fmt: skip


def _sizes() -> Iterator[Check]:
    for name, tokens, gpus, published in BLOCKS:
        predicted = find_model(name).shard_bytes_per_token(gpus) * tokens / _MIB
        odd = name == "qwen3-8b"
        note = "config.json" + (
            ": 36 layers and 8 heads of 128 give 2.25; the post's figure is odd" if odd else ""
        )
        yield Check(
            group="blocks", what=f"{name}, {tokens} tokens, 1 of {gpus} GPUs", unit="MiB",
            predicted=predicted, published=published, bar=None if odd else _SIZE, note=note,
        )  # fmt: skip
    big = Kv.of(find_model("llama-3.1-70b"))
    for what, tokens, published in (("128K", 131_072, 40), ("1M", 1_000_000, 305)):
        yield Check(
            group="blocks", what=f"llama-3.1-70b, {what} tokens", unit="GiB",
            predicted=big.prompt_bytes(tokens) / _GIB, published=published, bar=_SIZE,
            note="config.json; published by Mooncake and llm-d",
        )  # fmt: skip


def _values() -> Iterator[Check]:
    """Rate over the size of a value: a fixed part and a bandwidth, fitted below the drop, and what
    one thread can do where every value is given fresh pages."""
    faulting = _FAULTING_MIB / 1024 / _FAULTING_S  # "GB" of that page are 2^30
    for name, curve in (("SET", VALUES.set_gbps), ("GET", VALUES.get_gbps)):
        fixed, per_mb = fit_line([(size, size / gbps) for size, gbps in curve[:2]])
        for size, gbps in curve:
            predicted = size / (fixed + per_mb * size)
            note = "fitted on 1 and 4 MB" if size <= 4 else "held out"
            if name == "GET" and size >= _FAULTING_MIB:
                predicted = min(predicted, faulting)
                note = (
                    f"our explanation, not theirs: {_FAULTING_S * 1e3:g} ms of a server's time "
                    f"for {_FAULTING_MIB} MiB in fresh pages, which we measured on another "
                    "machine; a reply is copied by one thread, a SET arrives in four"
                )
            yield Check(
                group="RESP values", what=f"{name} of {size} MB", unit="GB/s",
                predicted=predicted, published=gbps, bar=_LOAD, note=note,
            )  # fmt: skip


def _rest() -> Iterator[Check]:
    kv = Kv.of(find_model("llama-3.1-8b"))
    tokens, gib, took_ms, rate = P2P.log
    rows: Sequence[tuple[str, str, float, float, float, str]] = (
        ("a token", "bytes", kv.prompt_bytes(1), 131_072, 1e-9, "config.json"),
        ("10,000 tokens", "GB", kv.prompt_bytes(10_000) / 1e9, 1.31, _SIZE, "config.json"),
        ("10,000 tokens", "GiB", kv.prompt_bytes(10_000) / _GIB, 1.22, _SIZE, "config.json"),
        (f"{tokens:,} tokens", "GiB", kv.prompt_bytes(tokens) / _GIB, gib, _SIZE, "config.json"),
        (f"{tokens:,} tokens, loaded in {took_ms:.1f} ms", "GiB/s",
         kv.prompt_bytes(tokens) / _GIB / (took_ms / 1e3), rate, _SIZE, "config.json, their time"),
    )  # fmt: skip
    for what, unit, predicted, published, bar, note in rows:
        yield Check(
            group="Llama-3.1-8B", what=what, unit=unit, predicted=predicted,
            published=published, bar=bar, note=note,
        )  # fmt: skip
    yield Check(
        group="posts", what="2 GB/s over 0.278 GB/s", unit="times", predicted=2 / 0.278,
        published=7, bar=0.05, note="division; the post rounds",
    )  # fmt: skip
    yield Check(
        group="posts", what="hit rate of 3 rounds", unit="%", predicted=100 * rounds_hit_rate(3),
        published=66.7, bar=0.001, note="(N - 1) / N",
    )  # fmt: skip
    for what, (before, after, change) in (
        ("time to first token", P2P.ttft_s), ("round time", P2P.round_s),
    ):  # fmt: skip
        yield Check(
            group="posts", what=f"{what} with peers", unit="%",
            predicted=100 * (after / before - 1), published=100 * change, bar=0.005,
            note="division of the published times; their GPU is not said, so no prediction",
        )  # fmt: skip


def _delays() -> Iterator[Check]:
    _, least_ms, p50_ms, end_ms = DELAYS.rows[0]
    for round_trip_ms, least, p50, end in DELAYS.rows:
        store = Store(bytes_s=math.inf, miss_s=DELAYS.chunks_asked * round_trip_ms / 1e3)

        def ttft_ms(near_ms: float, store: Store = store) -> float:
            prefill = Prefill(a_s=near_ms / 1e3, c_s_per_token=0, d_s_per_token2=0)
            return Case(kv=Kv(whole_bytes=0), prefill=prefill, store=store).miss_s(1) * 1e3

        at = f"at {round_trip_ms} ms"
        given = round_trip_ms == 0
        rows = (
            ("least TTFT", ttft_ms(least_ms), least, _LOAD, "one wait for its one chunk"),
            ("median TTFT", ttft_ms(p50_ms), p50, None, "writes of 16 MB a request add to it"),
            ("median end to end", p50 + end_ms - p50_ms, end, _LOAD, "TTFT as published"),
        )
        for what, predicted, published, bar, note in rows:
            yield Check(
                group="round trips", what=f"{what} {at}", unit="ms", predicted=predicted,
                published=published, bar=bar, note="given" if given else note,
            )  # fmt: skip
