"""A row of figures for each cell, and what follows from the rows of several distances.

The inter-token mean has two forms. llmperf's divides the time of the last token by the number of
tokens, so the time to the first token is in it, and it rises with the distance to a store though
tokens come as quickly as before. The other one is the time between the first token and the last,
over the gaps between them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import Any

from kvferry.base.errors import UsageError
from kvferry_lab.bench.intervals import quantile
from kvferry_lab.latency.experiment import CellRun
from kvferry_lab.openai_client import Answer

__all__ = ["LatencyRow", "Slope", "published", "read_rows", "row_of", "series_of", "slopes"]

_NEAR_MS = 100.0  # what lies farther is another regime: it would outweigh all the rest
_FILE_BYTES_MAX = 256 << 20


@dataclass(frozen=True, kw_only=True)
class LatencyRow:
    """One cell. Times are in seconds; None: not measured.

    Attributes:
        hit_share: Of the prompts' tokens, those that were loaded.
        inter_token_s, inter_token_after_first_s: Means over requests, in both forms.
        tokens_s_mean, tokens_s_overall: Of each request over its time, the mean; of all tokens
            over the time of the cell.
        waits: For the store, one after the other, of a request; the mean.
        cache_wait_s: For the cache, by the server's own clock; the mean.
        up_bytes, down_bytes: To and from the store, of a request.
    """

    rtt_ms: float
    client: str = ""
    workload: str = "miss"
    prompt_tokens: int = 128
    concurrency: int = 1
    requests: int = 0
    failed: int = 0
    hit_share: float | None = None
    ttft_min_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p99_s: float | None = None
    e2e_p50_s: float | None = None
    inter_token_s: float | None = None
    inter_token_after_first_s: float | None = None
    tokens_s_mean: float | None = None
    tokens_s_overall: float | None = None
    completed_per_min: float | None = None
    waits: float | None = None
    cache_wait_s: float | None = None
    up_bytes: float | None = None
    down_bytes: float | None = None

    @property
    def series(self) -> tuple[str, str, int, int]:
        """The fields that rows of several distances have in common."""
        return self.client, self.workload, self.prompt_tokens, self.concurrency


@dataclass(frozen=True, kw_only=True)
class Slope:
    """How much later the first token comes for each round trip, up to 100 ms.

    Attributes:
        least, median: Of the least and the median time of each distance, by least squares.
        waits: The most, of any distance.
    """

    series: tuple[str, str, int, int]
    least: float
    median: float
    waits: float | None


def row_of(run: CellRun) -> LatencyRow:
    """The figures of a cell; failed requests are in none but their number."""
    fine = [answer for answer in run.answers if not answer.error]
    ttft = sorted(answer.ttft_s or answer.seconds for answer in fine)
    prompts = sum(answer.usage.prompt_tokens or 0 for answer in fine)
    cached = [answer.usage.cached_tokens for answer in fine]
    waits = [one for one in run.waits if one is not None]
    seconds = max(run.seconds, 1e-9)
    asked = max(1, len(run.answers))
    cell = run.cell
    return LatencyRow(
        rtt_ms=cell.rtt_ms,
        client=cell.client,
        workload=cell.workload,
        prompt_tokens=cell.prompt_tokens,
        concurrency=cell.concurrency,
        requests=len(run.answers),
        failed=len(run.answers) - len(fine),
        hit_share=None
        if None in cached or not prompts
        else sum(map(int, filter(None, cached))) / prompts,
        ttft_min_s=ttft[0] if ttft else None,
        ttft_p50_s=quantile(ttft, 0.5),
        ttft_p99_s=quantile(ttft, 0.99),
        e2e_p50_s=quantile([answer.seconds for answer in fine], 0.5),
        inter_token_s=_mean(_inter_token_s(answer) for answer in fine),
        inter_token_after_first_s=_mean(_after_first_s(answer) for answer in fine),
        tokens_s_mean=_mean(answer.output_tokens / answer.seconds for answer in fine),
        tokens_s_overall=sum(answer.output_tokens for answer in fine) / seconds,
        completed_per_min=len(fine) / seconds * 60,
        waits=_mean(waits),
        cache_wait_s=run.cache_wait_s,
        up_bytes=None if run.up_bytes is None else run.up_bytes / asked,
        down_bytes=None if run.down_bytes is None else run.down_bytes / asked,
    )


def series_of(rows: Iterable[LatencyRow]) -> dict[tuple[str, str, int, int], list[LatencyRow]]:
    """Rows of one client, workload, length and concurrency, near ones first."""
    found: dict[tuple[str, str, int, int], list[LatencyRow]] = {}
    for row in sorted(rows, key=lambda row: row.rtt_ms):
        found.setdefault(row.series, []).append(row)
    return found


def slopes(rows: Iterable[LatencyRow]) -> list[Slope]:
    """Of each series with two distances or more."""
    found = []
    for series, line in series_of(rows).items():
        near = [row for row in line if row.rtt_ms <= _NEAR_MS and row.ttft_min_s is not None]
        if len({row.rtt_ms for row in near}) < 2:
            continue
        far_s = [row.rtt_ms / 1e3 for row in near]
        waits = [row.waits for row in near if row.waits is not None]
        found.append(
            Slope(
                series=series,
                least=_slope(far_s, [row.ttft_min_s or 0.0 for row in near]),
                median=_slope(far_s, [row.ttft_p50_s or 0.0 for row in near]),
                waits=max(waits, default=None),
            )
        )
    return found


def read_rows(file: Path) -> list[LatencyRow]:
    """The rows of a JSON file of this command, or of one like it.

    Raises:
        UsageError: It is none.
    """
    try:
        with file.open("rb") as opened:
            return _rows(json.loads(opened.read(_FILE_BYTES_MAX)))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{file} has no rows of kvferry lab latency") from None


def published() -> list[LatencyRow]:
    """The seven rows of the experiment that this one repeats; the file names its source."""
    return _rows(json.loads(files(__package__).joinpath("published.json").read_text()))


def _rows(found: Mapping[str, Any]) -> list[LatencyRow]:
    known = {field.name for field in fields(LatencyRow)}
    rows = [{**found.get("all_rows", {}), **row} for row in found["rows"]]
    return [LatencyRow(**{name: row[name] for name in row if name in known}) for row in rows]


def _inter_token_s(answer: Answer) -> float:
    return answer.last_s / max(1, answer.output_tokens)


def _after_first_s(answer: Answer) -> float | None:
    gaps = answer.output_tokens - 1
    return None if gaps < 1 or answer.ttft_s is None else (answer.last_s - answer.ttft_s) / gaps


def _mean(values: Iterable[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return statistics.fmean(there) if there else None


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return statistics.linear_regression(x, y).slope
