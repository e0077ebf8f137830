"""What vLLM's log and its metrics say of what workers and their caches have counted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from prometheus_client import REGISTRY, Counter, Gauge, Histogram

from kvferry.integrations.vllm.connector.counts import COUNTS, Counts
from kvferry.metrics import CacheMetrics
from kvferry.metrics.deltas import MetricDeltas, add_deltas

STATS = "kvferry.integrations.vllm.connector.stats"
VLLM = "vllm.distributed.kv_transfer.kv_connector.v1.metrics"


@dataclass
class KVConnectorStats:
    """As vLLM has it."""

    data: dict[str, Any] = field(default_factory=dict)


class KVConnectorPromMetrics:
    """As vLLM has it."""

    def __init__(self, *_: object) -> None: ...


@pytest.fixture
def stats(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, over a vLLM that is not there; its series go with the test."""
    there = set(REGISTRY._collector_to_names)
    names = VLLM.split(".")
    for end in range(1, len(names) + 1):
        module: Any = ModuleType(".".join(names[:end]))
        module.__path__ = []
        module.KVConnectorStats = KVConnectorStats
        module.KVConnectorPromMetrics = KVConnectorPromMetrics
        monkeypatch.setitem(sys.modules, module.__name__, module)
    yield import_module(STATS)
    sys.modules.pop(STATS)
    for collector in set(REGISTRY._collector_to_names) - there:
        REGISTRY.unregister(collector)


def told(rank: int) -> dict[str, Any]:
    """What one worker tells: two loads of a MB in half a second, and what its cache counts."""
    counts, metrics = Counts(), CacheMetrics()
    for name, value in (("loads", 2), ("load_s", 0.5), ("loaded_bytes", 1e6), ("lost_chunks", 1)):
        counts.add(name, value)
    metrics.hit("l1", 5, 6)
    metrics.retrieved(0.2)
    metrics.gauge("pool_pages", 3)
    taken = MetricDeltas(metrics, str(rank)).take()
    add_deltas(taken, counts.take())
    return taken


def test_workers_are_added_up_for_the_log(stats: Any) -> None:
    both = stats.KvferryStats(told(0)).aggregate(stats.KvferryStats(told(1)))
    line = stats.KvferryStats(json.loads(json.dumps(both.data))).shown().reduce()
    assert [*line] == [count.title for count in COUNTS if count.title] + ["load MB/s"]
    assert line["load MB/s"] == 2.0
    assert stats.KvferryStats({"gauges": both.data["gauges"]}).shown().is_empty()


def test_series_of_an_engine_begin_at_zero_and_grow(stats: Any) -> None:
    kinds = {Counter: Counter, Gauge: Gauge, Histogram: Histogram}
    shown = stats.KvferryPromMetrics(None, kinds, ["engine"], {0: ["0"], 1: ["1"]})

    def of(name: str, engine: str = "1", **labels: str) -> float | None:
        return REGISTRY.get_sample_value(name, {"engine": engine, **labels})

    for count in COUNTS:
        assert of(f"{count.series}_total") == (0 if count.text else None)
    for rank in (0, 1):
        shown.observe(told(rank), 1)
    assert of("vllm:kvferry_loads_total") == 4
    assert of("vllm:kvferry_load_seconds_total") == 1
    assert of("vllm:kvferry_loads_total", "0") == 0
    assert of("kvferry_tokens_hit_total", tier="l1") == 10
    assert of("kvferry_retrieve_seconds_count") == 2
    assert of("kvferry_pool_pages") == 6  # of both ranks
