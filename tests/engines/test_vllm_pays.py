"""Loaded where that is quicker, computed where it is not: by what a real vLLM's steps have taken.

The store is behind a proxy that lets so many bytes through a second as make loading take a fifth of
computing, or five times as long. Memory keeps nothing, so each request asks the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import connector
from engines.stored import frames, settle
from kvferry_lab.engines.engine_process import EngineProcess
from support.proxy import FaultProxy
from support.servers import TestServer, start_server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

CHUNK = 96
CHUNKS = 20
TOKENS = CHUNKS * CHUNK + 50
PROMPTS = 8
BURST, BURST_CHUNKS = 32, 4


class Engine:
    """An engine whose store has some prompts."""

    def __init__(self, engine: EngineProcess, store: TestServer, proxy: FaultProxy) -> None:
        self.engine, self.store, self.proxy = engine, store, proxy
        self.prompts = [prompt(TOKENS, seed) for seed in range(PROMPTS)]
        self.compute_s = median(self.fill([each], CHUNKS) for each in self.prompts)

    def fill(self, asked: list[list[int]], chunks: int) -> float:
        """Have prompts in the store; the time to the first token of the first."""
        before = frames(self.store)
        outputs = self.engine.generate(asked, 1).outputs
        settle(self.engine, self.store, before, chunks * len(asked))
        self.engine.forget()
        assert outputs[0].ttft_s is not None
        return outputs[0].ttft_s

    def ask(self) -> tuple[list[int], list[float]]:
        """For each prompt what was cached of it, and the time to its first token."""
        cached, ttft_s = [], []
        for each in self.prompts:
            output = self.engine.generate([each], 1).outputs[0]
            cached.append(output.cached)
            ttft_s.append(output.ttft_s or 0.0)
            self.engine.forget()
        return cached, ttft_s

    def shape(self, share: float) -> None:
        """Let loading take the time of computing, divided by this."""
        value = len(self.store.cli("GET", next(iter(frames(self.store)))))
        self.proxy.down.shared = True
        self.proxy.down.bandwidth_bytes_per_s = share * value * CHUNKS / self.compute_s

    def probe(self, what: str, **values: Any) -> Any:
        return self.engine.call(f"cost_probe:{what}", **values)


@pytest.fixture(scope="module")
def one(
    newest_vllm: VllmVenv, model: Callable[..., Path], open_engine: Callable[..., EngineProcess]
) -> Iterator[Engine]:
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        settings = {
            "kvferry.remote_url": f"redis://{proxy.host}:{proxy.port}",
            "kvferry.chunk_size": CHUNK,
            "kvferry.local_cpu": False,
            "kvferry.max_local_cpu_size": 0.25,
        }
        transfer = connector("KvferryConnector", settings)
        engine = open_engine(stack, newest_vllm, model("tiny"), transfer, max_num_seqs=8)
        yield Engine(engine, store, proxy)


def test_steps_have_taught_what_a_prompt_takes(one: Engine) -> None:
    learnt = one.probe("prefill")
    assert learnt["samples"] >= PROMPTS * TOKENS // 512
    steps = -(-TOKENS // 512)
    foretold_s = learnt["a_s"] * steps + learnt["c_s_per_token"] * TOKENS
    foretold_s += learnt["d_s_per_token2"] * TOKENS**2
    assert one.compute_s / 4 < foretold_s < one.compute_s * 2


def test_a_store_that_is_quick_is_used(one: Engine) -> None:
    one.shape(5.0)
    cached, ttft_s = one.ask()
    assert cached.count(CHUNKS * CHUNK) >= PROMPTS - 2, (cached, ttft_s, one.compute_s)


def test_a_burst_of_prompts_that_are_stored_is_loaded_whole(one: Engine) -> None:
    """They queue for the loads, and some for their question; none is computed for that."""
    one.proxy.down.bandwidth_bytes_per_s = None
    asked = [prompt(BURST_CHUNKS * CHUNK + 9, 1000 + n) for n in range(BURST)]
    one.fill(asked, BURST_CHUNKS)
    one.probe("believe", s_per_token=0.01)
    try:
        for _ in range(2):
            assert one.engine.generate(asked, 1).cached == [BURST_CHUNKS * CHUNK] * BURST
            one.engine.forget()
        one.proxy.down.delay_s = 0.1  # far away: each wait for it is 25 ms of 4 s
        assert one.engine.generate(asked, 1).cached == [BURST_CHUNKS * CHUNK] * BURST
        one.engine.forget()
    finally:
        one.proxy.down.delay_s = 0.0
        one.probe("believe", s_per_token=0.0)


def test_a_store_that_is_slow_is_left_alone(one: Engine) -> None:
    one.shape(0.2)
    first = one.ask()
    cached, ttft_s = one.ask()
    assert sum(cached) <= 0.3 * PROMPTS * CHUNKS * CHUNK, (first, cached, ttft_s, one.compute_s)
