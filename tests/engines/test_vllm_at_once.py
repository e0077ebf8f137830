"""Many prompts at once that are in the store, or in memory: all are loaded, and soon.

One engine without a cache gets as many prompts in turn, each round others, so that other work of
the machine changes little of the ratio. What is loaded is counted, and has to be all of it; the
ratios are a verdict only where they do not say different things.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import connector
from engines.stored import frames, settle
from kvferry_lab.bench.intervals import Interval, ratios
from kvferry_lab.engines.engine_process import EngineProcess
from support.cache_server import CacheServerProcess
from support.servers import TestServer, start_server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

CHUNK, CHUNKS = 256, 8
TOKENS = CHUNK * CHUNKS + 1
MOST, ROUNDS = 32, 3
FROM_STORE, FROM_MEMORY = 0.15, 0.10  # of the time without a cache, at 16
SETTINGS = {
    "dtype": "bfloat16",
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "num_gpu_blocks_override": 4096,
}
MEMORY_MIB = 512


class Door:
    """A new engine over a full store, and one without a cache."""

    def __init__(self, name: str, engine: EngineProcess, plain: EngineProcess) -> None:
        self.name, self.engine, self.plain = name, engine, plain

    def ask(self, asked: list[list[int]]) -> tuple[list[int], float]:
        """What was cached of each, and the median time to the first token."""
        said = self.engine.generate(asked, 1)
        self.engine.forget()
        return said.cached, median(one.ttft_s or 0.0 for one in said.outputs)

    def compute(self, count: int, seed: int) -> float:
        """The median without a cache, of as many others."""
        said = self.plain.generate([prompt(TOKENS, seed + n) for n in range(count)], 1)
        self.plain.forget()
        return median(one.ttft_s or 0.0 for one in said.outputs)


def asked(turn: int, count: int) -> list[list[int]]:
    return [prompt(TOKENS, 1000 * turn + n) for n in range(count)]


@pytest.fixture(scope="module", params=["KvferryConnector", "KvferryMPConnector"])
def door(
    request: pytest.FixtureRequest,
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Door]:
    def opened(stack: ExitStack, store: TestServer | None) -> EngineProcess:
        if store is None:
            return open_engine(stack, newest_vllm, model("tiny"), None, **SETTINGS)
        settings: dict[str, Any] = {"kvferry.chunk_size": CHUNK}
        if request.param == "KvferryConnector":
            settings |= {
                "kvferry.remote_url": store.url,
                "kvferry.max_local_cpu_size": MEMORY_MIB / 1024,
            }
        else:
            adapter = json.dumps({"type": "resp", "url": store.url})
            folder = tmp_path_factory.mktemp("server")
            server = stack.enter_context(
                CacheServerProcess(folder, "--l2-adapter", adapter, mib=MEMORY_MIB)
            )
            settings["kvferry.mp.host"] = server.endpoint
        transfer = connector(request.param, settings)
        return open_engine(stack, newest_vllm, model("tiny"), transfer, **SETTINGS)

    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        with ExitStack() as filling:
            engine = opened(filling, store)
            for turn in range(ROUNDS):
                before = frames(store)
                engine.generate(asked(turn, MOST), 1)
                settle(engine, store, before, CHUNKS * MOST)
        plain = opened(stack, None)
        engine = opened(stack, store)
        for seed in range(4):  # what a prompt takes, and how far away the store is
            engine.generate([prompt(TOKENS, 10**6 + seed)], 1)
            plain.generate([prompt(TOKENS, 10**6 + seed)], 1)
        yield Door(request.param, engine, plain)


@pytest.mark.parametrize("count", [16, 4, 8, 32])
def test_all_of_them_are_loaded(door: Door, count: int) -> None:
    """From the store, what the counts before have left there; then all from memory."""
    seen: dict[str, list[float]] = {"without": [], "store": [], "memory": []}
    cached = []
    first = {16: 0, 4: 16, 8: 20, 32: 0}[count]
    for turn in range(ROUNDS):
        some = asked(turn, MOST)[first : first + count]
        seen["without"].append(door.compute(count, 10**7 + 1000 * turn))
        for where in ("store", "memory"):
            found, p50_s = door.ask(some)
            cached += found
            seen[where].append(p50_s)
    whole = cached.count(TOKENS - 1)
    store = Interval.of_median(ratios(seen["store"], seen["without"]))
    memory = Interval.of_median(ratios(seen["memory"], seen["without"]))
    print(f"\n{door.name} {count} at once: {whole} of {len(cached)} loaded whole")
    print(f"p50 of that without a cache: {store} from the store, {memory} from memory; {seen}")
    assert whole == len(cached), cached
    if count == 16:
        assert store.low <= FROM_STORE, seen
        assert memory.low <= FROM_MEMORY, seen
        if store.middle > FROM_STORE or memory.middle > FROM_MEMORY:
            pytest.skip(f"no verdict: the machine has other work; {store}, {memory}")
