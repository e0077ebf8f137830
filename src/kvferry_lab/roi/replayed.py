"""What `kvferry trace replay --json` found, as money.

Its points have rates and no requests, so every request is taken to be of the mean length, and a
rate of hits to be the share of requests that are hits; `kvferry roi --trace` is exact.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.roi.arithmetic import Case
from kvferry_lab.roi.money import Day, Prices, account
from kvferry_lab.roi.traced import Outcome

__all__ = ["replayed"]

_NUMBERS = ("capacity_chunks", "chunk_tokens", "requests", "chunks", "prefix_hits")


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
        yield _outcome(point, case, requests_a_day, prices)


def _is_point(point: Any) -> bool:
    if not isinstance(point, Mapping) or not isinstance(point.get("policy"), str):
        return False
    values = [point.get(name) for name in _NUMBERS]
    whole = all(isinstance(value, int) and value >= 0 for value in values)
    return whole and point["requests"] > 0 and point["chunks"] > 0


def _outcome(
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
