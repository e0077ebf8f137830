"""Replays through the real index: as other simulators have it, and leaf-first never worse."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from pathlib import Path

import pytest

from kvferry.base.errors import UsageError
from kvferry_lab.trace.format import HASH_BYTES, Trace, TraceOptions, load_trace
from kvferry_lab.trace.replay import POLICIES, Replay, capacities_of, replay
from support.simulators import SIMULATORS, block_hits, prefix_hits

DATA = Path(__file__).resolve().parents[1] / "data" / "traces"
MOONCAKE = "mooncake_conversation.jsonl.gz"
FILES = (MOONCAKE, "agentic_coding.jsonl.gz", "lmcache_agent.jsonl.gz")
CAPACITIES = {MOONCAKE: (300, 1500, 6000), FILES[1]: (150, 600, 2500), FILES[2]: (20, 60, 120)}
POINTS = [(file, size) for file, sizes in CAPACITIES.items() for size in sizes]
NEAR = 0.005  # half a point
LEAF_FIRST_LOSS_MAX = 0.002


@functools.cache
def trace_of(file: str) -> Trace:
    chunk = 64 if file == FILES[2] else None
    return load_trace(DATA / file, TraceOptions(chunk_tokens=chunk, users=8))


def keys_of(trace: Trace) -> list[list[bytes]]:
    return [
        [hashes[i : i + HASH_BYTES] for i in range(0, len(hashes), HASH_BYTES)]
        for hashes in trace.requests
    ]


def test_the_extracts_are_worth_replaying() -> None:
    for file in FILES:
        trace = trace_of(file)
        assert trace.prefix_hits_max > trace.chunks / 20
        assert trace.distinct + trace.block_hits_max == trace.chunks
        assert max(CAPACITIES[file]) < trace.distinct


@pytest.mark.parametrize("policy", list(SIMULATORS))
@pytest.mark.parametrize(("file", "capacity"), POINTS)
def test_hit_rates_are_those_of_the_papers(policy: str, file: str, capacity: int) -> None:
    trace = trace_of(file)
    point = replay(trace, policy, capacity, leaf_first=False)
    blocks = block_hits(SIMULATORS[policy](capacity), keys_of(trace))
    prefix = prefix_hits(SIMULATORS[policy](capacity), keys_of(trace))
    assert point.block_hit_rate == pytest.approx(blocks / trace.chunks, abs=NEAR)
    assert point.prefix_hit_rate == pytest.approx(prefix / trace.chunks, abs=NEAR)


@pytest.mark.parametrize("policy", list(SIMULATORS))
@pytest.mark.parametrize(("file", "capacity"), POINTS)
def test_hit_rates_are_those_of_libcachesim(policy: str, file: str, capacity: int) -> None:
    pytest.importorskip("libcachesim")
    library = importlib.import_module("libcachesim")
    trace = trace_of(file)
    cache = getattr(library, policy)(cache_size=capacity)
    numbers: dict[bytes, int] = {}
    hits = 0
    request = library.Request()
    request.obj_size = 1
    for keys in keys_of(trace):
        for key in keys:
            request.obj_id = numbers.setdefault(key, len(numbers) + 1)
            hits += cache.get(request)
    point = replay(trace, policy, capacity, leaf_first=False)
    assert point.block_hit_rate == pytest.approx(hits / trace.chunks, abs=NEAR)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("file", "capacity"), POINTS)
def test_leaf_first_is_never_worse_than_plain(policy: str, file: str, capacity: int) -> None:
    trace = trace_of(file)
    rates = [replay(trace, policy, capacity, order).prefix_hit_rate for order in (True, False)]
    assert rates[0] >= rates[1] - LEAF_FIRST_LOSS_MAX


@pytest.mark.parametrize("policy", POLICIES)
def test_a_cache_that_holds_all_hits_all_that_can_be(policy: str) -> None:
    trace = trace_of(MOONCAKE)
    point = replay(trace, policy, trace.distinct, chunk_bytes=1 << 30)
    assert point.prefix_hits == trace.prefix_hits_max
    assert point.block_hits == trace.block_hits_max
    assert point.evictions == 0
    assert point.capacity_gb == trace.distinct
    assert point.prefix_hit_rate == point.infinite_hit_rate


def test_a_plan_makes_every_combination_and_tells_its_progress() -> None:
    trace = trace_of(FILES[2])
    plan = Replay(
        traces=[trace, dataclasses.replace(trace, name="again")],
        policies=["LRU", "FIFO"],
        capacities=[[10, 20], [30]],
        leaf_first=[True, False],
        chunk_bytes=[1, 1],
    )
    heard: list[int] = []
    points = list(plan.run(heard.append))
    shown = [(point.trace, point.policy, point.order, point.capacity_chunks) for point in points]
    assert len(set(shown)) == len(shown) == 12
    assert sum(heard) == plan.requests == 12 * len(trace.requests)


def test_default_capacities_show_the_whole_curve() -> None:
    trace = trace_of(MOONCAKE)
    sizes = capacities_of(trace)
    assert sizes[-1] == trace.distinct
    rates = [replay(trace, "LRU", size).prefix_hit_rate for size in sizes]
    assert rates == sorted(rates)
    assert rates[0] < rates[-1] / 2


def test_what_cannot_be_replayed_is_usage() -> None:
    trace = trace_of(FILES[2])
    with pytest.raises(UsageError, match="nonsense"):
        replay(trace, "nonsense", 10)
    with pytest.raises(UsageError):
        replay(trace, "LRU", 0)
