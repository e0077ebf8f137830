"""The two files of llmperf's token benchmark, field by field, and its lines for people.

Source: github.com/ray-project/llmperf, its `common_metrics` and `RESULTS_VERSION`, and files that
its program wrote. It takes the events of a stream for its tokens where it divides by them. It has
no files where requests fail: they are as its code would have them.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kvferry_lab.openai_client import Answer
from kvferry_lab.tokens.run import TokenPlan, TokenRun

__all__ = ["individual", "quantile", "summary", "summary_lines", "write_results"]

_VERSION = "2023-08-31"
_QUANTILES = (25, 50, 75, 90, 95, 99)
_SPREAD = (
    "inter_token_latency_s",
    "ttft_s",
    "end_to_end_latency_s",
    "request_output_throughput_token_per_s",
    "number_input_tokens",
    "number_output_tokens",
)


def individual(run: TokenRun) -> list[dict[str, Any]]:
    """What was measured of each request."""
    return [_one(answer, tokens) for answer, tokens in run.answers]


def _one(answer: Answer, input_tokens: int) -> dict[str, Any]:
    tokens = answer.output_tokens
    failed = bool(answer.error)
    code = (answer.status if answer.status is not None else -1) if failed else None
    seconds = 0.0 if failed else answer.seconds  # as llmperf leaves them
    return {
        "error_code": code,
        "error_msg": answer.error,
        "inter_token_latency_s": _inter_token_s(answer),
        "ttft_s": answer.ttft_s or answer.seconds,
        "end_to_end_latency_s": seconds,
        "request_output_throughput_token_per_s": tokens / seconds if seconds > 0 else 0,
        "number_total_tokens": input_tokens + tokens,
        "number_output_tokens": tokens,
        "number_input_tokens": input_tokens,
    }


def _inter_token_s(answer: Answer) -> float:
    events = answer.events or answer.output_tokens
    return (answer.last_s or answer.seconds) / events if answer.output_tokens else 0


def results(run: TokenRun) -> dict[str, Any]:
    """Of all requests: distributions of those that were answered, and counts."""
    metrics = individual(run)
    fine = [one for one in metrics if one["error_code"] is None]
    found: dict[str, Any] = {key: _spread([one[key] for one in fine]) for key in _SPREAD}
    codes = [one["error_code"] for one in metrics if one["error_code"] is not None]
    produced = sum(one["number_output_tokens"] for one in fine)
    seconds = max(run.seconds, 1e-9)
    return {
        **found,
        "num_requests_started": len(metrics),
        "error_rate": len(codes) / len(metrics) if metrics else 0,
        "number_errors": len(codes),
        "error_code_frequency": str(dict(Counter(codes))),
        "mean_output_throughput_token_per_s": produced / seconds,
        "num_completed_requests": len(fine),
        "num_completed_requests_per_min": len(fine) / seconds * 60,
    }


def summary(run: TokenRun, metadata: Mapping[str, str]) -> dict[str, Any]:
    """One flat object."""
    plan = run.plan
    found = {
        "version": _VERSION,
        "name": f"{_stem(plan)}_summary",
        "model": plan.model,
        "mean_input_tokens": plan.mean_input_tokens,
        "stddev_input_tokens": plan.stddev_input_tokens,
        "mean_output_tokens": plan.mean_output_tokens,
        "stddev_output_tokens": plan.stddev_output_tokens,
        "num_concurrent_requests": plan.num_concurrent_requests,
        "additional_sampling_params": plan.additional_sampling_params,
        "results": results(run),
        **metadata,
        "timestamp": int(time.time()),
    }
    return dict(_flat(found, ""))


def write_results(run: TokenRun, folder: Path, metadata: Mapping[str, str]) -> list[Path]:
    """Write both files; their names."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, value in (("summary", summary(run, metadata)), ("individual_responses", None)):
        path = folder / f"{_stem(run.plan)}_{name}.json"
        path.write_text(json.dumps(individual(run) if value is None else value, indent=4))
        written.append(path)
    return written


def summary_lines(run: TokenRun) -> Iterator[str]:
    """What llmperf prints."""
    found = results(run)
    for key in _SPREAD:
        yield key
        spread = found[key]
        for name, value in {**spread["quantiles"], **spread}.items():
            if name != "quantiles":
                yield f"    {name} = {value}"
    yield f"Number Of Errored Requests: {found['number_errors']}"
    if found["number_errors"]:
        yield f"Error Code Frequency: {found['error_code_frequency']}"
    yield f"Overall Output Throughput: {found['mean_output_throughput_token_per_s']}"
    yield f"Number Of Completed Requests: {found['num_completed_requests']}"
    yield f"Completed Requests Per Minute: {found['num_completed_requests_per_min']}"


def _spread(values: Sequence[float]) -> dict[str, Any]:
    """Quantiles with linear interpolation, and the rest; null without values."""
    ordered = sorted(values)
    return {
        "quantiles": {f"p{part}": quantile(ordered, part / 100) for part in _QUANTILES},
        "mean": statistics.fmean(ordered) if ordered else None,
        "min": _written(ordered[0]) if ordered else None,
        "max": _written(ordered[-1]) if ordered else None,
        "stddev": statistics.stdev(ordered) if len(ordered) > 1 else None,
    }


def _written(value: float) -> float | str:
    """Whole numbers of pandas end up as texts."""
    return str(value) if isinstance(value, int) else value


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """By linear interpolation between sorted values; None without any."""
    if not ordered:
        return None
    place = part * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _stem(plan: TokenPlan) -> str:
    name = f"{plan.model}_{plan.mean_input_tokens}_{plan.mean_output_tokens}"
    return re.sub(r"-{2,}", "-", re.sub(r"[^\w\d-]+", "-", name))


def _flat(value: Mapping[str, Any], above: str) -> Iterator[tuple[str, Any]]:
    for name, inner in value.items():
        key = f"{above}_{name}" if above else name
        if isinstance(inner, Mapping):
            yield from _flat(inner, key)
        else:
            yield key, inner
