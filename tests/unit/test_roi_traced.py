"""Traces as time and money: the hits are the index's, the sums are the arithmetic's."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from kvferry import _native
from kvferry_lab.roi.money import Prices
from kvferry_lab.roi.traced import outcomes
from kvferry_lab.trace.format import Trace, load_trace
from kvferry_lab.trace.replay import prefix_hits, replay
from support.roi import round_case

MOONCAKE = (
    Path(__file__).resolve().parents[1] / "data" / "traces" / "mooncake_conversation.jsonl.gz"
)


def trace_of(*requests: list[int]) -> Trace:
    hashes = [_native.hash_chunks(array("I", ids), 1, b"") for ids in requests]
    return Trace.of("made", "mooncake", 100, hashes)


def test_a_trace_by_hand() -> None:
    # Ten chunks; the same ten; five of them and five others: 0, 10 and 5 chunks are hits.
    trace = trace_of(list(range(10)), list(range(10)), [*range(5), *range(20, 25)])
    case = round_case()
    none, lru = outcomes(
        trace, case, policies=["LRU"], capacities=[100], requests_a_day=3, prices=Prices()
    )
    whole = case.prefill.compute_s(1000)
    assert (none.hit_rate, none.ttft_mean_s) == pytest.approx((0, whole))
    assert none.ttft_s == {part: pytest.approx(whole) for part in (50, 90, 99)}
    # The second computes its last token at least: 999 are loaded.
    times = [whole, case.loaded_s(1000, 999), case.loaded_s(1000, 500)]
    assert lru.hit_rate == pytest.approx(0.5)
    assert lru.loaded_rate == pytest.approx(1499 / 3000)
    assert lru.ttft_mean_s == pytest.approx(sum(times) / 3)
    assert lru.ttft_s[50] == pytest.approx(sorted(times)[1])
    assert lru.ttft_s[99] == pytest.approx(max(times))
    saved = case.saved_s(1000, 999) + case.saved_s(1000, 500)
    assert none.gpu_s - lru.gpu_s == pytest.approx(saved)
    assert lru.day.gpu_s_after == pytest.approx(lru.gpu_s), "three requests a day are the trace"
    # 100 chunks of 100 tokens of 100,000 bytes, billed 1.25 times.
    assert lru.day.ram_bytes == pytest.approx(1.25e9)
    # 10 and 5 chunks are written, 999 and 500 tokens read.
    assert lru.day.written_bytes_s * 86_400 == pytest.approx(1500 * 100_000)
    assert lru.day.read_bytes_s * 86_400 == pytest.approx(1499 * 100_000)


def test_what_does_not_pay_is_computed() -> None:
    trace = trace_of(list(range(10)), list(range(10)))
    case = round_case(bytes_s=1e6)
    none, lru = outcomes(
        trace, case, policies=["LRU"], capacities=[100], requests_a_day=3, prices=Prices()
    )
    assert (lru.hit_rate, lru.loaded_rate) == (0.5, 0)
    assert (lru.gpu_s, lru.ttft_mean_s) == pytest.approx((none.gpu_s, none.ttft_mean_s))
    assert lru.day.saved_money < 0


def test_the_hits_are_those_of_the_replay() -> None:
    trace = load_trace(MOONCAKE)
    for policy, capacity in (("LRU", 500), ("S3-FIFO", 2000)):
        seen: list[int] = []
        hits = list(prefix_hits(trace, policy, capacity, progress=seen.append))
        assert sum(hits) == replay(trace, policy, capacity).prefix_hits
        assert len(hits) == len(trace.requests) >= sum(seen)


def test_more_memory_is_never_slower_for_lru() -> None:
    trace = load_trace(MOONCAKE)
    rows = list(
        outcomes(
            trace,
            round_case(),
            policies=["LRU"],
            capacities=[300, 3000, 30_000],
            requests_a_day=1e5,
            prices=Prices(),
        )
    )
    times = [row.ttft_mean_s for row in rows]
    assert times == sorted(times, reverse=True)
    assert all(row.ttft_s[50] <= row.ttft_s[90] <= row.ttft_s[99] for row in rows)


def test_an_empty_trace_is_no_division_by_zero() -> None:
    (none,) = outcomes(
        trace_of(), round_case(), policies=[], capacities=[], requests_a_day=1, prices=Prices()
    )
    assert (none.requests, none.hit_rate, none.ttft_mean_s) == (0, 0, 0)
