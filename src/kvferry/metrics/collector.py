"""The bridge to prometheus-client: series are read when they are scraped, and not before.

prometheus_client.REGISTRY.register(KVFerryCollector([cache.metrics]))
exposition([cache.metrics])      # the text, without a registry of the caller's
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from kvferry.metrics.series import Family, Source

__all__ = ["KVFerryCollector", "exposition", "text_of", "unregister_series"]

_KINDS: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}


class KVFerryCollector(Collector):
    """A collector over the metrics of some caches, which differ in their constant labels."""

    def __init__(self, metrics: Iterable[Source]) -> None:
        self._metrics = list(metrics)

    def describe(self) -> list[Metric]:
        """Nothing: names are asked for without asking the cache."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of prometheus-client."""
        sources = [[(one.labels, family) for family in one.families()] for one in self._metrics]
        for group in zip(*sources, strict=True):
            yield _merged(group)


def exposition(metrics: Iterable[Source], *, openmetrics: bool = False) -> str:
    """All series of some caches, which differ in their constant labels."""
    registry = CollectorRegistry()
    registry.register(KVFerryCollector(metrics))
    write = generate_openmetrics if openmetrics else generate_latest
    return write(registry).decode()


def text_of(families: Iterable[Family]) -> str:
    """Families without constant labels as text."""
    return exposition([_Families(list(families))])


def unregister_series() -> None:
    """Remove every series of ours from the registry that prometheus-client has for all.

    An engine that registers them anew, in a process that had an engine before, would fail without
    this: a name can be registered only once.
    """
    for collector in list(REGISTRY._collector_to_names):
        if str(getattr(collector, "_name", "")).startswith("kvferry_"):
            REGISTRY.unregister(collector)


@dataclass
class _Families:
    made: list[Family]
    labels: Mapping[str, str] = field(default_factory=dict)

    def families(self) -> list[Family]:
        return self.made


def _merged(group: Sequence[tuple[Mapping[str, str], Family]]) -> Metric:
    """The family of this name of several caches, each with the constant labels of its cache."""
    constant, first = group[0]
    names = [*([first.label] if first.label else []), *constant]
    made: Metric = _KINDS[first.kind](first.name, first.help, labels=names)
    for labels, one in group:
        for label, number in one.values.items():
            _add(made, one.label, label, labels, number)
        for label, histogram in one.histograms.items():
            _add(made, one.label, label, labels, list(histogram.cumulative()), histogram.sum)
    return made


def _add(made: Any, name: str, label: str, constant: Mapping[str, str], *numbers: Any) -> None:
    made.add_metric([*([label] if name else []), *constant.values()], *numbers)
