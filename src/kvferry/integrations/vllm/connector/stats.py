"""What a connector tells vLLM's own log and its ``/metrics``: sums of what its workers did.

Each step, a worker hands over what it has done since the last one, as plain numbers; vLLM adds the
workers up and carries the sum to the process with the metrics. There it becomes the series below,
one of each for every engine, and a line in the log. Under the name "deltas" comes what the cache
has counted itself (`kvferry.metrics.deltas`): it becomes the series of `kvferry.metrics`, by the
names that they have everywhere, with vLLM's labels.

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

from kvferry.integrations.vllm.connector.counts import COUNTS
from kvferry.metrics.cache import cache_families
from kvferry.metrics.collector import unregister_series
from kvferry.metrics.deltas import add_deltas, observations

__all__ = ["DELTAS", "KvferryPromMetrics", "KvferryStats"]

DELTAS = "deltas"
# Gauges of several ranks are added up, but of one store they all say the same.
_OF_RANKS = {
    "kvferry_store_available": min,
    "kvferry_store_refuses": max,
    "kvferry_store_used_bytes": max,
    "kvferry_store_capacity_bytes": max,
}


@dataclass
class KvferryStats(KVConnectorStats):  # type: ignore[misc]
    """Sums of one interval; `data` has a number for each name."""

    def reset(self) -> None:
        self.data: dict[str, Any] = {}

    def aggregate(self, other: Any) -> KvferryStats:
        for name, value in other.data.items():
            if name == DELTAS:
                add_deltas(self.data.setdefault(DELTAS, {}), value)
            else:
                self.data[name] = self.data.get(name, 0) + value
        return self

    def shown(self) -> KvferryStats:
        """What the line in the log is made of."""
        return KvferryStats({name: sum for name, sum in self.data.items() if name != DELTAS})

    def reduce(self) -> dict[str, int | float]:
        shown: dict[str, int | float] = {
            count.title: int(self.data.get(count.name, 0)) for count in COUNTS if count.title
        }
        if self.data.get("load_s"):
            rate = self.data.get("loaded_bytes", 0) / self.data["load_s"]
            shown["load MB/s"] = round(rate / 1e6, 1)
        return shown

    def is_empty(self) -> bool:
        return not self.data


class KvferryPromMetrics(KVConnectorPromMetrics):  # type: ignore[misc]
    """The series of `COUNTS`, as counters, and those of `kvferry.metrics`."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._engines = per_engine_labelvalues
        counter = metric_types[Counter]
        self._series: dict[str, dict[int, Any]] = {}
        for count in COUNTS:
            if not count.text:
                continue
            metric = counter(name=count.series, documentation=count.text, labelnames=labelnames)
            self._series[count.name] = {
                engine: metric.labels(*values) for engine, values in per_engine_labelvalues.items()
            }
        unregister_series()
        self._families = {family.name: family for family in cache_families(()).values()}
        self._metrics = {
            name: _made(metric_types, family, labelnames) for name, family in self._families.items()
        }
        self._gauges: dict[tuple[int, str, str], dict[str, float]] = {}  # by who said it

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        for name, engines in self._series.items():
            value = transfer_stats_data.get(name, 0)
            if value > 0:
                engines[engine_idx].inc(value)
        deltas = transfer_stats_data.get(DELTAS, {})
        for name, values in deltas.get("counters", {}).items():
            for label, value in values.items():
                self._metric(name, label, engine_idx).inc(value)
        for name, histograms in deltas.get("histograms", {}).items():
            for label, (total, counts) in histograms.items():
                metric = self._metric(name, label, engine_idx)
                for value in observations(self._families[name].bounds, total, counts):
                    metric.observe(value)
        for who, families in deltas.get("gauges", {}).items():
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
