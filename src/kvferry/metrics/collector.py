"""The bridge to prometheus-client: series are read when they are scraped, and not before."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from kvferry.errors import UsageError
from kvferry.metrics.exposition import Source, merged

__all__ = ["KVFerryCollector"]


class KVFerryCollector:
    """A collector over the metrics of some caches, which differ in their constant labels.

    ``prometheus_client.REGISTRY.register(KVFerryCollector([cache.metrics]))``

    Raises:
        UsageError: prometheus-client is not installed.
    """

    def __init__(self, metrics: Iterable[Source]) -> None:
        self._metrics = list(metrics)
        try:
            self._core = importlib.import_module("prometheus_client.core")
        except ModuleNotFoundError:
            raise UsageError(
                "this needs prometheus-client: pip install 'kvferry[metrics]'"
            ) from None

    def describe(self) -> list[Any]:
        """Nothing: names are asked for without asking the cache."""
        return []

    def collect(self) -> Iterator[Any]:
        """The families of prometheus-client."""
        kinds = {
            "counter": self._core.CounterMetricFamily,
            "gauge": self._core.GaugeMetricFamily,
            "histogram": self._core.HistogramMetricFamily,
        }
        for group in merged(self._metrics):
            constant, first = group[0]
            names = [*([first.label] if first.label else []), *constant]
            family = kinds[first.kind](first.name, first.help, labels=names)
            for labels, one in group:
                for value, number in one.values.items():
                    family.add_metric(_row(one.label, value, labels), number)
                for value, histogram in one.histograms.items():
                    buckets = [(bound, count) for bound, count in histogram.cumulative()]
                    family.add_metric(_row(one.label, value, labels), buckets, histogram.sum)
            yield family


def _row(label: str, value: str, constant: Any) -> list[str]:
    return [*([value] if label else []), *constant.values()]
