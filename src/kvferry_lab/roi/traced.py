"""A trace, a model, an engine and a store: times to the first token, GPU-hours and money.

The trace is replayed through the index and the policies of the cache, request by request, and the
arithmetic is done for each of them with what it would find. What is replayed in order is not
replayed in time: requests do not wait for each other, and what was computed is there at once.

What `kvferry trace replay --json` wrote becomes money too (`replayed`). Its points have rates and
no requests, so every request is taken to be of the mean length, and a rate of hits to be the share
of requests that are hits; `kvferry roi --trace` is exact.

Source: nearest-rank percentiles.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.roi.arithmetic import Case
from kvferry_lab.roi.money import Day, DayAccount, Prices, account, account_of
from kvferry_lab.trace.format import HASH_BYTES, Trace
from kvferry_lab.trace.replay import prefix_hits

__all__ = ["Outcome", "outcomes", "replayed"]

PERCENTILES = (50, 90, 99)
_NUMBERS = ("capacity_chunks", "chunk_tokens", "requests", "chunks", "prefix_hits")


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
    ttfts.sort()
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
        ttft_s={part: _percentile(ttfts, part) for part in PERCENTILES},
        ttft_mean_s=sum(ttfts) / len(ttfts) if ttfts else 0.0,
        gpu_s=(before_s - saved_s) * case.prefill.gpus,
        day=day,
    )


def _percentile(ordered: Sequence[float], part: int) -> float:
    """The smallest value that is not below `part` percent of all."""
    return ordered[max(0, math.ceil(len(ordered) * part / 100) - 1)] if ordered else 0.0


def replayed(path: Path, case: Case, requests_a_day: float, prices: Prices) -> Iterator[Outcome]:
    """An outcome for each point; times to the first token are not known.

    Raises:
        UsageError: The file cannot be read, or is no replay.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--replay: {path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise UsageError(f"--replay: {path} is no JSON") from None
    points = found.get("points") if isinstance(found, dict) else None
    if not isinstance(points, list) or not points or not all(map(_is_point, points)):
        raise UsageError(f"--replay: {path} is not of kvferry trace replay --json")
    for point in points:
        yield _of_point(point, case, requests_a_day, prices)


def _is_point(point: Any) -> bool:
    if not isinstance(point, Mapping) or not isinstance(point.get("policy"), str):
        return False
    values = [point.get(name) for name in _NUMBERS]
    whole = all(isinstance(value, int) and value >= 0 for value in values)
    return whole and point["requests"] > 0 and point["chunks"] > 0


def _of_point(
    point: Mapping[str, Any], case: Case, requests_a_day: float, prices: Prices
) -> Outcome:
    size, requests, chunks = point["chunk_tokens"], point["requests"], point["chunks"]
    case = replace(case, chunk_tokens=size)
    # One more token than its chunks, so that all of them are loaded on a hit.
    tokens = max(1, round(chunks / requests)) * size + 1
    hit_rate = point["prefix_hits"] / chunks
    capacity_bytes = case.kv.prompt_bytes(1) * size * point["capacity_chunks"]
    bill = account(
        case,
        Day(
            requests=requests_a_day,
            prompt_tokens=tokens,
            hit_rate=hit_rate,
            stored_bytes=capacity_bytes,
        ),
        prices,
    )
    kept = case.kept_tokens(tokens)
    hit_s = case.ttft_s(tokens, kept)
    return Outcome(
        trace=str(point.get("trace", "")),
        chunk_tokens=size,
        policy=point["policy"],
        capacity_chunks=point["capacity_chunks"],
        capacity_bytes=capacity_bytes,
        requests=requests,
        tokens=chunks * size,
        hit_rate=hit_rate,
        loaded_rate=hit_rate if case.pays(tokens, kept) else 0.0,
        ttft_s={},
        ttft_mean_s=hit_rate * hit_s + (1 - hit_rate) * case.miss_s(tokens),
        gpu_s=bill.gpu_s_after / requests_a_day * requests,
        day=bill,
    )
