"""Hit rates on a synthetic trace of conversations: against libcachesim, and leaf-first or not."""

from __future__ import annotations

import random
from functools import cache

import pytest

from kvferry._native import ChunkCache

POLICIES = ["LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"]
CAPACITIES = [100, 500, 2000]


@cache
def trace() -> list[list[int]]:
    """Conversations that grow turn by turn, some with a popular system prompt, some of one turn."""
    rng = random.Random(5)
    names: dict[tuple[int, ...], int] = {}
    live: list[list[int]] = []
    requests = []
    for _ in range(2500):
        if len(live) < 30 or rng.random() < 0.3:
            prompt = [int(rng.paretovariate(0.8)) % 50] * rng.randrange(1, 6)
            live.append([*prompt, rng.randrange(10**9)])
        talk = live[min(int(rng.expovariate(0.08)), len(live) - 1) * -1 - 1]
        talk.extend(rng.randrange(10**9) for _ in range(rng.randrange(1, 8)))
        if rng.random() < 0.1 or len(talk) > 60:
            live.remove(talk)
        requests.append(
            [names.setdefault(tuple(talk[: end + 1]), len(names)) for end in range(len(talk))]
        )
    return requests


def hit_rates(policy: str, capacity: int, leaf_first: bool) -> tuple[float, float]:
    """Share of blocks in the leading run that was there, and of all that were there, in percent."""
    chunk_cache = ChunkCache(capacity, policy, leaf_first=leaf_first)
    prefix = block = total = 0
    for request in trace():
        hits = chunk_cache.access(b"".join(number.to_bytes(16, "little") for number in request))
        prefix, block, total = prefix + hits[0], block + hits[1], total + len(request)
    return 100 * prefix / total, 100 * block / total


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", ["LRU", "LFU", "FIFO", "ARC"])
def test_hit_rates_are_those_of_libcachesim(policy: str, capacity: int) -> None:
    oracle = pytest.importorskip("libcachesim")
    simulated = getattr(oracle, policy)(capacity)
    request = oracle.Request()
    request.obj_size = 1
    hits = total = 0
    for numbers in trace():
        for number in numbers:
            request.obj_id = number + 1
            hits += simulated.get(request)
            total += 1
    _, block = hit_rates(policy, capacity, leaf_first=False)
    assert 1 < block < 99
    assert block == pytest.approx(100 * hits / total, abs=0.5)


@pytest.mark.parametrize("capacity", CAPACITIES)
@pytest.mark.parametrize("policy", POLICIES)
def test_leaf_first_is_never_worse_for_prefixes(policy: str, capacity: int) -> None:
    plain, _ = hit_rates(policy, capacity, leaf_first=False)
    leaf_first, block = hit_rates(policy, capacity, leaf_first=True)
    assert leaf_first == block  # a chunk that is there is of use
    assert leaf_first >= plain - 0.2
