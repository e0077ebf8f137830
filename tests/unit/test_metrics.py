"""Metrics of an engine: what is counted, from any thread, at what cost, and how it is read."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client import parser as plain_parser
from prometheus_client.openmetrics import parser as strict_parser

from kvferry.base.errors import UsageError
from kvferry.base.threads import noticed
from kvferry.metrics import DECISIONS, MISS_REASONS, SHED_REASONS, CacheMetrics
from kvferry.metrics.cache import ONE_SIDED
from kvferry.metrics.collector import KVFerryCollector, exposition

COST_LIMIT_S = 2e-6  # of a call, on a machine that does other things as well


@pytest.fixture
def metrics() -> CacheMetrics:
    return CacheMetrics(stores=["redis", "file"])


def use(metrics: CacheMetrics) -> None:
    """Everything that can be counted, once."""
    metrics.requested(1000)
    metrics.hit("l1", 512, 2048)
    metrics.hit("redis", 256, 1024)
    metrics.count("prefill_saved_seconds", 0.4)
    for reason in MISS_REASONS:
        metrics.missed(reason, 2)
    for reason in SHED_REASONS:
        metrics.shed(reason)
    for decision in DECISIONS:
        metrics.count("decisions", label=decision)
    metrics.count("corrupt_values", label="checksum")
    metrics.looked_up(0.0002)
    metrics.retrieved(0.2)
    for store, work, took_s in (("redis", "load", 0.02), ("file", "store", 0.03)):
        metrics.observe(f"{work}_seconds", took_s, store)
        metrics.count(f"{work}_bytes", 1 << 20, store)
    for name in ONE_SIDED:
        metrics.count(name, 4, "peer one")
    metrics.copied("out", 512, 0.001)
    metrics.first_token(0.1, 0.4)
    metrics.count("evicted_chunks", 5, "l1")
    metrics.count("evicted_then_missed_chunks", label="l1")
    metrics.count("single_flight_waits", 3)
    metrics.predicted("load", 0.1, 0.12)
    for name, value in (("pool_pages_used", 3), ("pool_pages", 8)):
        metrics.gauge(name, value)
    for name, value in (("write_queue_chunks", 2), ("write_queue_bytes", 4096)):
        metrics.gauge(name, value)
    for name, value in (("available", 0), ("refuses", 1), ("used_bytes", 10)):
        metrics.gauge(f"store_{name}", value, "redis")
    metrics.gauge("store_capacity_bytes", 100, "redis")
    noticed("a test", ValueError("of a plug-in"))


def test_a_snapshot_has_every_number(metrics: CacheMetrics) -> None:
    use(metrics)
    taken = metrics.snapshot()
    assert taken["kvferry_tokens_requested_total"] == 1000
    assert taken["kvferry_tokens_hit_total"] == {"l1": 512, "redis": 256, "file": 0}
    assert taken["kvferry_bytes_hit_total"]["redis"] == 1024
    assert taken["kvferry_missed_chunks_total"] == dict.fromkeys(MISS_REASONS, 2)
    assert taken["kvferry_shed_chunks_total"] == dict.fromkeys(SHED_REASONS, 1)
    assert taken["kvferry_decisions_total"] == dict.fromkeys(DECISIONS, 1)
    assert taken["kvferry_corrupt_values_total"]["checksum"] == 1
    assert taken["kvferry_lookup_seconds"] == {"count": 1, "sum": 0.0002}
    assert taken["kvferry_load_seconds"]["redis"] == {"count": 1, "sum": 0.02}
    assert taken["kvferry_load_seconds"]["file"]["count"] == 0
    assert taken["kvferry_store_bytes_total"]["file"] == 1 << 20
    for name in ONE_SIDED:
        assert taken[f"kvferry_{name}_total"] == {"peer one": 4}
    assert taken["kvferry_memory_bytes_total"] == {"in": 0, "out": 512}
    assert taken["kvferry_memory_seconds"]["out"] == {"count": 1, "sum": 0.001}
    assert taken["kvferry_ttft_share"] == {"count": 1, "sum": 0.25}
    assert taken["kvferry_evicted_chunks_total"]["l1"] == 5
    assert taken["kvferry_evicted_then_missed_chunks_total"]["l1"] == 1
    assert taken["kvferry_single_flight_waits_total"] == 3
    assert taken["kvferry_predicted_seconds_total"] == {"load": 0.1, "prefill": 0}
    assert taken["kvferry_actual_seconds_total"]["load"] == 0.12
    assert taken["kvferry_prediction_ratio"]["load"]["count"] == 1
    assert (taken["kvferry_pool_pages_used"], taken["kvferry_pool_pages"]) == (3, 8)
    assert taken["kvferry_write_queue_bytes"] == 4096
    assert taken["kvferry_store_available"]["redis"] == 0
    assert taken["kvferry_store_used_bytes"]["redis"] == 10
    assert taken["kvferry_thread_failures_total"]["a test"] > 0
    untouched = CacheMetrics(stores=["redis", "file"]).snapshot()
    same = [name for name in taken if taken[name] == untouched[name]]
    # use() leaves nothing out; whose cache it is that is asked is all the same to threads
    assert same == ["kvferry_thread_failures_total"]


def test_what_does_not_exist_is_a_bug(metrics: CacheMetrics) -> None:
    calls: tuple[Callable[[str], None], ...] = (metrics.missed, metrics.shed)
    for call in calls:
        with pytest.raises(UsageError, match=r"nonsense.*; known are: .*error"):
            call("nonsense")
    for name in ("decisions", "predicted_seconds", "corrupt_values"):
        with pytest.raises(UsageError, match=rf"kvferry_{name} has no \w+ 'nonsense'"):
            metrics.count(name, label="nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        metrics.observe("prediction_ratio", 1, "nonsense")
    with pytest.raises(UsageError, match="nonsense"):
        metrics.copied("nonsense", 1, 1)
    with pytest.raises(UsageError, match="no name of a label"):
        CacheMetrics({"a-b": "1"})


def test_a_store_that_was_not_announced_counts_as_well(metrics: CacheMetrics) -> None:
    metrics.count("load_bytes", 1, "late")
    metrics.hit("late", 1, 1)
    taken = metrics.snapshot()
    assert taken["kvferry_load_bytes_total"]["late"] == 1
    assert taken["kvferry_tokens_hit_total"]["late"] == 1


def test_observations_that_are_no_numbers_spoil_no_sum(metrics: CacheMetrics) -> None:
    metrics.predicted("load", 1e-300, 1e300)
    metrics.predicted("load", 0.0, 1.0)
    metrics.retrieved(float("nan"))
    metrics.retrieved(float("inf"))
    metrics.retrieved(1.0)
    assert metrics.snapshot()["kvferry_retrieve_seconds"] == {"count": 3, "sum": 1.0}
    assert metrics.snapshot()["kvferry_prediction_ratio"]["load"] == {"count": 1, "sum": 0.0}


def test_no_count_is_lost_between_threads(metrics: CacheMetrics) -> None:
    def work() -> None:
        for _ in range(5000):
            metrics.hit("l1", 1, 2)
            metrics.missed("evicted")
            metrics.observe("load_seconds", 0.001, "redis")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = metrics.snapshot()
    assert taken["kvferry_tokens_hit_total"]["l1"] == 20_000
    assert taken["kvferry_bytes_hit_total"]["l1"] == 40_000
    assert taken["kvferry_missed_chunks_total"]["evicted"] == 20_000
    assert taken["kvferry_load_seconds"]["redis"]["count"] == 20_000


def test_what_a_thread_counted_outlives_it_and_its_memory_does_not(metrics: CacheMetrics) -> None:
    for _ in range(50):
        thread = threading.Thread(target=use, args=(metrics,))
        thread.start()
        thread.join()
        taken = metrics.snapshot()
        assert len(metrics._cells._live) <= 1
    assert taken["kvferry_tokens_requested_total"] == 50_000
    assert taken["kvferry_retrieve_seconds"]["count"] == 50
    assert taken["kvferry_pool_pages"] == 8


def test_reading_while_others_count_loses_nothing(metrics: CacheMetrics) -> None:
    done = threading.Event()

    def work() -> None:
        for index in range(3000):
            metrics.hit(f"tier-{index % 100}", 1, 1)
            metrics.observe("load_seconds", 0.1, f"store-{index % 100}")
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    seen = [0]
    while not done.is_set():
        seen.append(sum(metrics.snapshot()["kvferry_tokens_hit_total"].values()))
    thread.join()
    assert seen == sorted(seen)
    taken = metrics.snapshot()
    assert sum(taken["kvferry_tokens_hit_total"].values()) == 3000
    assert sum(value["count"] for value in taken["kvferry_load_seconds"].values()) == 3000


def test_counting_is_cheap(metrics: CacheMetrics) -> None:
    calls: list[Callable[[], None]] = [
        lambda: metrics.hit("l1", 256, 1 << 20),
        lambda: metrics.missed("evicted"),
        lambda: metrics.observe("load_seconds", 0.01, "redis"),
        lambda: metrics.predicted("load", 0.1, 0.1),
    ]
    for call in calls:
        best = float("inf")
        for _ in range(50):  # on a full machine the caches are others' most of the time
            start = time.thread_time()
            for _ in range(5000):
                call()
            best = min(best, (time.thread_time() - start) / 5000)
            if best < COST_LIMIT_S:
                break
        assert best < COST_LIMIT_S


def test_gauges_may_be_read_when_they_are_asked_for(
    metrics: CacheMetrics, caplog: pytest.LogCaptureFixture
) -> None:
    used = iter((1, 2, 3))
    remove = metrics.on_collect(lambda m: m.gauge("pool_pages_used", next(used)))
    assert metrics.snapshot()["kvferry_pool_pages_used"] == 1
    assert "kvferry_pool_pages_used 2.0" in metrics.text()
    remove()
    remove()
    assert metrics.snapshot()["kvferry_pool_pages_used"] == 2

    def broken(_: CacheMetrics) -> None:
        raise RuntimeError("closed")

    metrics.on_collect(broken)
    assert metrics.snapshot()["kvferry_pool_pages_used"] == 2
    assert "gauges could not be read" in caplog.text


def test_the_child_of_a_fork_does_not_hang(metrics: CacheMetrics) -> None:
    metrics.hit("l1", 1, 1)
    with metrics._cells._lock:  # another thread is reading while this one forks
        child = os.fork()
        if child == 0:
            metrics.hit("l1", 1, 1)
            os._exit(metrics.snapshot()["kvferry_tokens_hit_total"]["l1"])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2


def test_text_is_that_of_prometheus(metrics: CacheMetrics) -> None:
    use(metrics)
    lines = metrics.text().splitlines()
    assert "# TYPE kvferry_tokens_hit_total counter" in lines
    assert 'kvferry_tokens_hit_total{tier="l1"} 512.0' in lines
    assert 'kvferry_load_seconds_bucket{le="0.01",store="redis"} 0.0' in lines
    assert 'kvferry_load_seconds_bucket{le="0.025",store="redis"} 1.0' in lines
    assert 'kvferry_load_seconds_bucket{le="+Inf",store="redis"} 1.0' in lines
    assert 'kvferry_load_seconds_count{store="redis"} 1.0' in lines
    assert 'kvferry_load_seconds_sum{store="redis"} 0.02' in lines
    assert "kvferry_pool_pages 8.0" in lines


def test_both_formats_have_every_series(metrics: CacheMetrics) -> None:
    use(metrics)
    plain = list(plain_parser.text_string_to_metric_families(metrics.text()))
    text = metrics.text(openmetrics=True)
    read = strict_parser.text_string_to_metric_families
    strict = list(read(text))  # type: ignore[no-untyped-call]
    assert [family.name for family in plain] == [family.name for family in strict]
    samples = [{_identified(s) for f in one for s in f.samples} for one in (plain, strict)]
    assert samples[0] == samples[1]
    assert len(samples[0]) > 100


def test_several_engines_differ_in_their_labels() -> None:
    ranks = [CacheMetrics({"rank": str(rank), "model": 'a"b\\\n'}) for rank in range(2)]
    ranks[1].hit("l1", 7, 1)
    text = exposition(ranks)
    assert text.count("# TYPE kvferry_tokens_hit_total counter") == 1
    assert 'kvferry_tokens_hit_total{model="a\\"b\\\\\\n",rank="1",tier="l1"} 7.0' in text
    registry = CollectorRegistry()
    registry.register(KVFerryCollector(ranks))
    labels = {"tier": "l1", "rank": "1", "model": 'a"b\\\n'}
    assert registry.get_sample_value("kvferry_tokens_hit_total", labels) == 7


def _identified(sample: object) -> tuple[object, ...]:
    name, labels, value = sample[0], sample[1], sample[2]  # type: ignore[index]
    return name, tuple(sorted(labels.items())), float(value)
