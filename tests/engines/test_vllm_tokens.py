"""A cache keeps no token waiting: neither while its store writes what it can, nor while it hangs.

The time between one token and the next, of one request alone, with a cache and without, turn by
turn. The tiny model on a processor makes a token in a few milliseconds, so that anything that a
step does for the cache shows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median, quantiles

import pytest

from engines.conftest import VllmVenv, prompt
from engines.doors import connector
from kvferry.lab.engines.process import EngineProcess
from support.proxy import FaultProxy
from support.servers import start_server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

ROUNDS, TOKENS = 9, 400
LATER = 1.05  # at the 99th percentile, the median of all rounds
NOISE = 0.1  # what rounds without a cache differ among each other on a machine with other work


@pytest.mark.parametrize("trouble", ["writes", "hangs"])
def test_a_store_that_is_busy_delays_no_token(
    trouble: str,
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        settings = {"kvferry.remote_url": proxy.url, "kvferry.max_local_cpu_size": 0.25}
        transfer = connector("KvferryConnector", settings)
        plain = open_engine(stack, newest_vllm, model("tiny"), None)
        cached = open_engine(stack, newest_vllm, model("tiny"), transfer)
        if trouble == "hangs":
            proxy.black_hole()
        else:
            proxy.up.bandwidth_bytes_per_s = 20_000_000  # so that it never ends while tokens come
        seen: dict[EngineProcess, list[float]] = {plain: [], cached: []}
        for turn in range(ROUNDS):
            for engine, p99_s in seen.items():
                engine.generate([prompt(3000, 100 * turn + n) for n in range(4)], 1)
                values = {"ids": prompt(40, turn), "tokens": TOKENS}
                waits = engine.call("token_times:between_tokens", **values)
                p99_s.append(quantiles(waits, n=100)[98])
    ratio = median(seen[cached]) / median(seen[plain])
    print(f"\np99 between tokens {trouble}: {ratio:.3f} of without a cache", seen.values())
    assert ratio <= LATER + NOISE
