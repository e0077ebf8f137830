"""What a connector tells vLLM's own log and its ``/metrics``: what its workers and caches count.

Each step, a worker hands over what it and its cache have counted since the last one, as
`kvferry.metrics.deltas` has it; vLLM adds the workers up and carries the sum to the process with
the metrics. There it becomes the series of each engine, with vLLM's labels, and a line in the log.

This module needs vLLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prometheus_client import Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

from kvferry.integrations.vllm.connector.counts import COUNTS, worker_families
from kvferry.metrics.cache import cache_families
from kvferry.metrics.collector import unregister_series
from kvferry.metrics.deltas import add_deltas, observations

__all__ = ["KvferryPromMetrics", "KvferryStats"]

# Gauges of several ranks are added up, but of one store they all say the same.
_OF_RANKS = {
    "kvferry_store_available": min,
    "kvferry_store_refuses": max,
    "kvferry_store_used_bytes": max,
    "kvferry_store_capacity_bytes": max,
}


@dataclass
class KvferryStats(KVConnectorStats):  # type: ignore[misc]
    """What was counted in one interval; `data` as `MetricDeltas` tells it."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> KvferryStats:
        add_deltas(self.data, other.data)
        return self

    def shown(self) -> KvferryStats:
        """What the line in the log is made of."""
        counters = self.data.get("counters", {})
        mine = {count.series: counters.get(count.series, {}) for count in COUNTS}
        grown = {name: values for name, values in mine.items() if any(values.values())}
        return KvferryStats({"counters": grown} if grown else {})

    def reduce(self) -> dict[str, int | float]:
        counters = self.data.get("counters", {})
        sums = {count.name: counters.get(count.series, {}).get("", 0) for count in COUNTS}
        shown: dict[str, int | float] = {
            count.title: int(sums[count.name]) for count in COUNTS if count.title
        }
        if sums["load_s"]:
            shown["load MB/s"] = round(sums["loaded_bytes"] / sums["load_s"] / 1e6, 1)
        return shown

    def is_empty(self) -> bool:
        return not self.data


class KvferryPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The series of `COUNTS` and those of `cache_families`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engines = per_engine_labelvalues
        unregister_series()
        every = [*worker_families().values(), *cache_families(()).values()]
        self._families = {family.name: family for family in every if family.help}
        self._metrics = {
            name: _made(metric_types, family, labelnames) for name, family in self._families.items()
        }
        for count in COUNTS:  # so that rates of them have a beginning
            for engine in per_engine_labelvalues if count.text else ():
                self._metric(count.series, "", engine)
        self._gauges: dict[tuple[int, str, str], dict[str, float]] = {}  # by who said it

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, values in transfer_stats_data.get("counters", {}).items():
            for label, value in values.items():
                self._metric(name, label, engine_idx).inc(value)
        for name, histograms in transfer_stats_data.get("histograms", {}).items():
            for label, (total, counts) in histograms.items():
                metric = self._metric(name, label, engine_idx)
                for value in observations(self._families[name].bounds, total, counts):
                    metric.observe(value)
        for who, families in transfer_stats_data.get("gauges", {}).items():
            for name, values in families.items():
                for label, value in values.items():
                    said = self._gauges.setdefault((engine_idx, name, label), {})
                    said[who] = value
                    shown = _OF_RANKS.get(name, sum)(said.values())
                    self._metric(name, label, engine_idx).set(shown)

    def _metric(self, name: str, label: str, engine: int) -> Any:
        own = [label] if self._families[name].label else []
        return self._metrics[name].labels(*self._engines[engine], *own)


def _made(metric_types: Any, family: Any, labelnames: list[str]) -> Any:
    kind = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}[family.kind]
    more: dict[str, Any] = {}
    if family.kind == "gauge":
        more["multiprocess_mode"] = "mostrecent"
    elif family.kind == "histogram":
        more["buckets"] = family.bounds
    own = [family.label] if family.label else []
    return metric_types[kind](
        name=family.name, documentation=family.help, labelnames=[*labelnames, *own], **more
    )
