"""What was counted since the last look: told once, added up, and shown by histograms of others."""

from __future__ import annotations

import math
from random import Random
from typing import Any

import pytest

from kvferry.base.errors import UsageError
from kvferry.metrics import CacheMetrics
from kvferry.metrics.cache import FROM_OTHERS
from kvferry.metrics.deltas import MetricDeltas, add_deltas, observations
from kvferry.metrics.series import RATIO_BOUNDS, SECONDS_BOUNDS, SHARE_BOUNDS, HistogramValue


def test_only_what_is_new_is_told() -> None:
    metrics = CacheMetrics(stores=["redis"])
    deltas = MetricDeltas(metrics, "0")
    first = deltas.take()
    assert first["counters"]["kvferry_tokens_hit"] == {"l1": 0, "redis": 0}  # they exist
    assert deltas.take() == {}
    metrics.hit("redis", 512, 2048)
    metrics.retrieved(0.2)
    metrics.gauge("pool_pages", 8)
    told = deltas.take()
    assert told["counters"] == {
        "kvferry_tokens_hit": {"redis": 512},
        "kvferry_bytes_hit": {"redis": 2048},
    }
    total, counts = told["histograms"]["kvferry_retrieve_seconds"][""]
    assert (total, sum(counts)) == (0.2, 1)
    assert told["gauges"]["0"]["kvferry_pool_pages"] == {"": 8}
    assert deltas.take() == {}


def test_some_families_alone_are_told() -> None:
    metrics = CacheMetrics()
    deltas = MetricDeltas(metrics, only=("kvferry_ttft_share",))
    metrics.requested(5)
    metrics.first_token(1.0, 2.0)
    told = deltas.take()
    assert [*told] == ["histograms"]
    assert [*told["histograms"]] == ["kvferry_ttft_share"]


def test_news_of_several_are_added_up_and_their_gauges_stay_apart() -> None:
    total: dict[str, Any] = {}
    for rank in (0, 1):
        metrics = CacheMetrics()
        metrics.hit("l1", 10 * (rank + 1), 1)
        metrics.retrieved(0.5)
        metrics.gauge("pool_pages_used", rank)
        add_deltas(total, MetricDeltas(metrics, str(rank)).take())
    assert total["counters"]["kvferry_tokens_hit"] == {"l1": 30}
    took_s, counts = total["histograms"]["kvferry_retrieve_seconds"][""]
    assert (took_s, sum(counts)) == (1.0, 2)
    used = {who: said["kvferry_pool_pages_used"][""] for who, said in total["gauges"].items()}
    assert used == {"0": 0, "1": 1}


@pytest.mark.parametrize("bounds", [SECONDS_BOUNDS, RATIO_BOUNDS, SHARE_BOUNDS])
def test_observations_have_the_counts_and_the_sum_of_a_histogram(bounds: tuple[float, ...]) -> None:
    random = Random(str(bounds))
    for _ in range(300):
        scale = random.choice((bounds[0], bounds[len(bounds) // 2], 3 * bounds[-1]))
        seen, again = HistogramValue(bounds), HistogramValue(bounds)
        for _ in range(random.randint(1, 20)):
            seen.observe(random.choice((random.random() * scale, random.choice(bounds))))
        for value in observations(bounds, seen.sum, seen.counts):
            again.observe(value)
        assert again.counts == seen.counts
        assert math.isclose(again.sum, seen.sum, rel_tol=1e-6)


def test_a_server_counts_what_its_engines_tell() -> None:
    engine, server = CacheMetrics(), CacheMetrics(stores=["redis"])
    deltas = MetricDeltas(engine, only=FROM_OTHERS, begin=False)
    assert deltas.take() == {}
    engine.first_token(0.1, 0.4)
    engine.copied("out", 100, 0.5)
    told = deltas.take()
    assert told["counters"] == {"kvferry_memory_bytes": {"out": 100}}
    assert [*told["histograms"]["kvferry_memory_seconds"]] == ["out"]
    server.add(told["counters"], told["histograms"])
    server.add(told["counters"], told["histograms"])
    taken = server.snapshot()
    assert taken["kvferry_ttft_share"] == {"count": 2, "sum": 0.5}
    assert taken["kvferry_memory_bytes_total"]["out"] == 200


SHARE = [0] * (len(SHARE_BOUNDS) + 1)
NONSENSE: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"kvferry_tokens_hit": {"l1": 1}}, {}),
    ({"kvferry_ttft_share": {"": 1}}, {}),
    ({"nonsense": {"": 1}}, {}),
    ({"kvferry_missed_chunks": {"evicted": 1}}, {}),
    ({"kvferry_memory_bytes": {"nonsense": 1}}, {}),
    ({"kvferry_memory_bytes": {"out": -1}}, {}),
    ({"kvferry_memory_bytes": {"out": float("nan")}}, {}),
    ({}, {"kvferry_ttft_share": {"": (1.0, SHARE[1:])}}),
    ({}, {"kvferry_ttft_share": {"": (1.0, [])}}),
    ({}, {"kvferry_ttft_share": {"": (-1.0, SHARE)}}),
    ({}, {"kvferry_ttft_share": {"": (1.0, [-1, *SHARE[1:]])}}),
    ({}, {"kvferry_ttft_share": {"else": (1.0, SHARE)}}),
]


@pytest.mark.parametrize(("sums", "histograms"), NONSENSE)
def test_a_server_takes_no_nonsense(sums: dict[str, Any], histograms: dict[str, Any]) -> None:
    server = CacheMetrics()
    before = server.snapshot()
    with pytest.raises(UsageError):
        server.add({"kvferry_memory_bytes": {"in": 5}, **sums}, histograms)
    assert server.snapshot() == before
