"""A store may be slow: no request is later for it than without a cache, by more than a tenth.

Time to first token is the time of `retrieve` and the predicted time of computing the rest. The bar
is 1.10 of computing everything. `ALLOWED_S` comes on top of it for this machine: its two processors
run the engine, the proxy and the server, and whatever else there is. That a fast store is used is
judged in the soak alone: on a full machine no store is fast.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvferry import Identity, KVLayout, TieredCache
from support import clock
from support.engines import open_engine
from support.servers import TestServer, start_server
from support.stamps import until

TESTS = Path(__file__).parents[1]
BAR = 1.10
ALLOWED_S = 0.04
ATTEMPTS = 3  # at the bar, for the machine may be busy with other things
USED = 0.7  # of computing, at most, where the store is fast
LAYOUT = KVLayout(layers=8, kv_heads=4, head_dim=64, dtype="float32", chunk_size=128)  # 2 MiB
IDENTITY = Identity(model="slow", layout=LAYOUT)
TOKENS = list(range(3600))
CHUNKS = len(TOKENS) // LAYOUT.chunk_size
SIZE_BYTES = CHUNKS * LAYOUT.chunk_bytes

PROXY = """
import json, sys
sys.path.insert(0, sys.argv[1])
from support.proxy import FaultProxy
with FaultProxy(sys.argv[2], int(sys.argv[3])) as proxy:
    print(proxy.port, flush=True)
    for line in sys.stdin:
        rate, rtt_s = json.loads(line)
        proxy.up.delay_s = proxy.down.delay_s = rtt_s / 2
        proxy.down.shared, proxy.down.bandwidth_bytes_per_s = True, rate
        print("ok", flush=True)
"""


class Way:
    """A proxy in a process of its own: slow is what it is told to be, and not what Python is."""

    def __init__(self, server: TestServer) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROXY, *map(str, (TESTS, server.host, server.port))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = int(self._say(None))

    def shape(self, gb_per_s: float | None, rtt_s: float) -> None:
        self._say([gb_per_s and gb_per_s * 1e9, rtt_s])

    def _say(self, words: Any) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if words is not None:
            self._process.stdin.write(json.dumps(words) + "\n")
            self._process.stdin.flush()
        return self._process.stdout.readline()

    def close(self) -> None:
        self._process.communicate(timeout=10)


@pytest.fixture(scope="module")
def slow() -> Iterator[Way]:
    """The way to a server that has the whole prompt."""
    chunks = [
        np.frombuffer(np.random.default_rng(seed).bytes(LAYOUT.chunk_bytes), np.uint8)
        for seed in range(CHUNKS)
    ]
    with start_server("valkey") as server:
        stores = [{"type": "redis", "url": server.url}]
        with open_engine(identity=IDENTITY, stores=stores, max_local_cpu_size=0.2) as engine:
            engine.store(TOKENS, chunks)
            assert engine.flush(30)
        way = Way(server)
        yield way
        way.close()


def engine_before(way: Way, recompute_s: float, connections: int) -> TieredCache:
    """An engine that knows how fast it computes, and nothing of its store."""
    count = len(TOKENS)
    url = f"redis://127.0.0.1:{way.port}?connections={connections}"
    prefill = {
        "a_s": 0.0,
        "c_s_per_token": 0.6 * recompute_s / count,
        "d_s_per_token2": 0.4 * recompute_s / count**2,
    }
    return open_engine(
        identity=IDENTITY,
        stores=[{"type": "redis", "url": url}],
        max_local_cpu_size=0.2,
        tuning={"prefill": tuple(prefill.values())},
    )


def ratios(engine: TieredCache, requests: int, recompute_s: float) -> list[float]:
    """Time to first token of requests one after the other, as a part of computing everything."""
    seen = []
    for _ in range(requests):
        began = clock.now_s()
        with engine.retrieve(TOKENS) as hit:
            took_s = clock.now_s() - began
            rest_s = engine.prefill.predict_s(len(TOKENS), hit.tokens)
            seen.append((took_s + rest_s) / recompute_s)
        engine.clear(stores=False)
        time.sleep(0.05)
    return seen


def judge(
    way: Way,
    gb_per_s: float | None,
    rtt_s: float,
    recompute_s: float,
    *,
    connections: int = 4,
    requests: int = 6,
    is_used: bool = False,
) -> None:
    """In one of `ATTEMPTS`, each with an engine that knows nothing yet, the bar is kept.

    Args:
        is_used: And a store that is fast enough shortens the wait.
    """
    way.shape(gb_per_s, rtt_s)
    load_s = 4 * rtt_s + (SIZE_BYTES / (gb_per_s * 1e9) if gb_per_s else 0.0)
    told = []
    for _ in range(ATTEMPTS):
        with engine_before(way, recompute_s, connections) as engine:
            seen = ratios(engine, requests, recompute_s)
        told.append([round(ratio, 2) for ratio in seen])
        used = load_s >= 0.3 * recompute_s or min(seen[3:]) < USED
        if (used or not is_used) and max(seen) <= BAR + ALLOWED_S / recompute_s:
            return
    raise AssertionError(f"too late, or a fast store that is not used: {told}")


@pytest.mark.parametrize(
    ("gb_per_s", "rtt_s"), [(0.05, 0.0), (0.1, 0.05), (0.5, 0.0), (None, 0.05), (0.3, 0.1)]
)
def test_a_slow_store_never_costs_a_tenth(slow: Way, gb_per_s: float | None, rtt_s: float) -> None:
    judge(slow, gb_per_s, rtt_s, 1.0)


@pytest.mark.soak
@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("recompute_s", [0.5, 1.0])
@pytest.mark.parametrize("rtt_s", [0.0, 0.005, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("gb_per_s", [0.05, 0.1, 0.2, 0.5, None])
def test_the_grid(
    slow: Way, gb_per_s: float | None, rtt_s: float, recompute_s: float, connections: int
) -> None:
    """Up to 10 GB/s, which is more than a proxy lets through: then it is not limited."""
    how = {"connections": connections, "requests": 8}
    judge(slow, gb_per_s, rtt_s, recompute_s, **how, is_used=True)


def test_a_store_that_becomes_slow_is_left_and_found_again(slow: Way) -> None:
    """The first request after a change may pay for what was believed; that is bounded as well.

    In one of `ATTEMPTS`, as in `judge`.
    """
    told = []
    for _ in range(ATTEMPTS):
        slow.shape(None, 0.0)
        with engine_before(slow, 1.0, 4) as engine:

            def is_used(engine: TieredCache = engine) -> bool:
                return min(ratios(engine, 1, 1.0)) < USED

            until(is_used, 60)
            slow.shape(0.03, 0.0)
            seen = ratios(engine, 4, 1.0)
            slow.shape(None, 0.0)
            until(is_used, 60)
        told.append([round(ratio, 2) for ratio in seen])
        if max(seen) <= BAR + ALLOWED_S:
            return
    raise AssertionError(f"too late: {told}")


def test_loads_at_the_same_time_teach_what_the_store_delivers_to_all(slow: Way) -> None:
    """Not what one of them had of it: what others are loading is reckoned with when it is used."""
    size, count, many = LAYOUT.chunk_size, 7, 4
    prompts = [[1_000_000 + number] * count * size for number in range(many)]
    chunks = [np.zeros(LAYOUT.chunk_bytes, np.uint8)] * count
    stores = [{"type": "redis", "url": f"redis://127.0.0.1:{slow.port}?connections=4"}]
    slow.shape(None, 0.0)
    with open_engine(identity=IDENTITY, stores=stores, max_local_cpu_size=0.2) as engine:
        for tokens in prompts:
            engine.store(tokens, chunks)
        assert engine.flush(30)
    slow.shape(0.1, 0.0)
    with open_engine(identity=IDENTITY, stores=stores, max_local_cpu_size=0.2) as engine:
        until(lambda: engine.contains(prompts[0]) == len(prompts[0]), 30)
        began = time.monotonic()
        with ThreadPoolExecutor(many) as pool:
            hits = list(pool.map(lambda tokens: engine.retrieve(tokens).tokens, prompts))
        rate = many * count * LAYOUT.chunk_bytes / (time.monotonic() - began)
        assert hits == [len(tokens) for tokens in prompts]
        assert engine.tiers[0].tier.bandwidth_bytes_s > 0.6 * rate
