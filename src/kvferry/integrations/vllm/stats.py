"""What a connector tells vLLM's own log and its ``/metrics``: sums of what its workers did.

Each step, a worker hands over what it has done since the last one, as plain numbers; vLLM adds the
workers up and carries the sum to the process with the metrics. There it becomes the series below,
one of each for every engine, and a line in the log.

This module needs vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

__all__ = ["SERIES", "KvferryPromMetrics", "KvferryStats"]

# Name of the series: the sum that it shows, and what that is.
SERIES: dict[str, tuple[str, str]] = {
    "vllm:kvferry_loads": ("loads", "Loads of prompts from the cache that have ended."),
    "vllm:kvferry_loaded_chunks": ("loaded_chunks", "Chunks that were put into blocks."),
    "vllm:kvferry_loaded_bytes": ("loaded_bytes", "Bytes that were put into blocks."),
    "vllm:kvferry_failed_chunks": (
        "failed_chunks",
        "Chunks that were to be loaded and were gone, damaged, or out of reach; computed instead.",
    ),
    "vllm:kvferry_declined_chunks": (
        "declined_chunks",
        "Chunks that were there and not loaded, because computing them is quicker.",
    ),
    "vllm:kvferry_late_chunks": (
        "late_chunks",
        "Chunks that did not come within the time of a load; computed instead.",
    ),
    "vllm:kvferry_load_seconds": ("load_s", "Seconds that loads took, added up."),
    "vllm:kvferry_saved_chunks": ("saved_chunks", "Chunks that were given to the cache."),
    "vllm:kvferry_saved_bytes": ("saved_bytes", "Bytes that were given to the cache."),
    "vllm:kvferry_known_chunks": ("known_chunks", "Chunks that the cache had already."),
    "vllm:kvferry_shed_chunks": ("shed_chunks", "Chunks that were not saved for want of room."),
    "vllm:kvferry_save_seconds": ("save_s", "Seconds that saving took behind the steps, added up."),
}


@dataclass
class KvferryStats(KVConnectorStats):  # type: ignore[misc]
    """Sums of one interval; `data` has a number for each name."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> KvferryStats:
        for name, value in other.data.items():
            self.data[name] = self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        shown: dict[str, int | float] = {}
        for title, name in (
            ("kvferry loaded chunks", "loaded_chunks"),
            ("failed", "failed_chunks"),
            ("declined", "declined_chunks"),
            ("late", "late_chunks"),
            ("saved", "saved_chunks"),
            ("shed", "shed_chunks"),
        ):
            shown[title] = int(self.data.get(name, 0))
        if self.data.get("load_s"):
            rate = self.data.get("loaded_bytes", 0) / self.data["load_s"]
            shown["load MB/s"] = round(rate / 1e6, 1)
        return shown

    def is_empty(self) -> bool:
        return not self.data


class KvferryPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The series of `SERIES`, as counters."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        counter = metric_types[Counter]
        self._series: dict[str, dict[int, Any]] = {}
        for series, (name, text) in SERIES.items():
            metric = counter(name=series, documentation=text, labelnames=labelnames)
            self._series[name] = {
                engine: metric.labels(*values) for engine, values in per_engine_labelvalues.items()
            }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, engines in self._series.items():
            value = transfer_stats_data.get(name, 0)
            if value > 0:
                engines[engine_idx].inc(value)
