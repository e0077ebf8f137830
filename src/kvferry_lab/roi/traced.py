"""A trace, a model, an engine and a store: times to the first token, GPU-hours and money.

The trace is replayed through the index and the policies of the cache, request by request, and the
arithmetic is done for each of them with what it would find. What is replayed in order is not
replayed in time: requests do not wait for each other, and what was computed is there at once.

Source: nearest-rank percentiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kvferry_lab.bench.intervals import percentile
from kvferry_lab.roi.arithmetic import Case
from kvferry_lab.roi.money import DayAccount, Prices, account_of
from kvferry_lab.trace.format import HASH_BYTES, Trace
from kvferry_lab.trace.replay import prefix_hits

__all__ = ["Outcome", "outcomes"]

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One policy with one size.

    Attributes:
        policy: Empty: without a store.
        capacity_bytes: Of KV; the memory is more, see `DayAccount.ram_bytes`.
        hit_rate: Share of tokens that were there, in an unbroken run from the beginning.
        loaded_rate: Share of tokens that were there and sooner loaded than computed.
        ttft_s: Percentile to seconds.
        gpu_s: For the prompts of the trace, all GPUs together.
        day: The account of a day with as many requests like these as were said.
    """

    trace: str
    chunk_tokens: int
    policy: str
    capacity_chunks: int
    capacity_bytes: float
    requests: int
    tokens: int
    hit_rate: float
    loaded_rate: float
    ttft_s: dict[int, float]
    ttft_mean_s: float
    gpu_s: float
    day: DayAccount


def outcomes(
    trace: Trace,
    case: Case,
    *,
    policies: Sequence[str],
    capacities: Sequence[int],
    requests_a_day: float,
    prices: Prices,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[Outcome]:
    """Without a store, then each policy with each capacity, in chunks of the trace."""
    lengths = [len(hashes) // HASH_BYTES for hashes in trace.requests]
    scale = requests_a_day / max(1, len(lengths))
    yield _outcome(trace, case, lengths, [0] * len(lengths), "", 0, scale, prices)
    for policy in policies:
        for capacity in capacities:
            hits = list(prefix_hits(trace, policy, capacity, progress=progress))
            yield _outcome(trace, case, lengths, hits, policy, capacity, scale, prices)


def _outcome(
    trace: Trace,
    case: Case,
    lengths: Sequence[int],
    hits: Sequence[int],
    policy: str,
    capacity: int,
    scale: float,
    prices: Prices,
) -> Outcome:
    size = trace.chunk_tokens
    before_s = saved_s = read_bytes = written_bytes = 0.0
    there = loaded = 0
    ttfts = []
    for length, hit in zip(lengths, hits, strict=True):
        tokens = length * size
        cached = min(hit * size, tokens - 1)  # an engine computes the last token in any case
        there += hit * size
        before_s += case.prefill.compute_s(tokens)
        if policy:
            ttfts.append(case.ttft_s(tokens, cached))
            written_bytes += case.kv.prompt_bytes((length - hit) * size)
            if case.pays(tokens, cached):
                loaded += cached
                saved_s += case.saved_s(tokens, cached)
                read_bytes += case.kv.prompt_bytes(cached)
        else:
            ttfts.append(case.prefill.compute_s(tokens))
    tokens = sum(lengths) * size
    capacity_bytes = case.kv.prompt_bytes(1) * size * capacity
    day = account_of(
        before_s=before_s * scale,
        saved_s=saved_s * scale,
        read_bytes=read_bytes * scale,
        written_bytes=written_bytes * scale,
        stored_bytes=capacity_bytes,
        gpus=case.prefill.gpus,
        prices=prices,
    )
    return Outcome(
        trace=trace.name,
        chunk_tokens=size,
        policy=policy,
        capacity_chunks=capacity,
        capacity_bytes=capacity_bytes,
        requests=len(lengths),
        tokens=tokens,
        hit_rate=there / tokens if tokens else 0.0,
        loaded_rate=loaded / tokens if tokens else 0.0,
        ttft_s={part: percentile(ttfts, part) if ttfts else 0.0 for part in PERCENTILES},
        ttft_mean_s=sum(ttfts) / len(ttfts) if ttfts else 0.0,
        gpu_s=(before_s - saved_s) * case.prefill.gpus,
        day=day,
    )
