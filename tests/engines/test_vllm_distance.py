"""Each integration of a real vLLM, at defaults, with its store farther and farther away.

A first engine fills the store, a second one asks from each distance for prompts that no memory has.
What a hit costs is counted in round trips: how much later the first token comes at 100 ms than
next to the store. Medians, over waits much longer than anything that a busy machine adds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import connector
from engines.stored import frames, settle
from kvferry_lab.engines.engine_process import EngineProcess, Output
from support.cache_server import CacheServerProcess
from support.proxy import FaultProxy
from support.servers import start_server

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

BLOCK, CHUNK = 32, 96
TOKENS = 40 * CHUNK + 50
RTT_S = (0.0, 0.01, 0.02, 0.05, 0.1)
EACH = 4  # prompts a distance; the engines' memories hold all of them
ROUND_TRIPS = 1.2


@contextmanager
def _in_process(url: str, folder: Path) -> Iterator[dict[str, Any]]:
    settings = {"remote_url": url, "chunk_size": CHUNK, "max_local_cpu_size": 0.25}
    yield connector("KvferryConnector", {f"kvferry.{name}": settings[name] for name in settings})


@contextmanager
def _mp(url: str, folder: Path) -> Iterator[dict[str, Any]]:
    folder.mkdir()
    store = json.dumps({"type": "resp", "url": url})
    options = ("--l2-adapter", store, "--chunk-size", str(CHUNK))
    with CacheServerProcess(folder, *options, mib=256) as server:
        yield connector("KvferryMPConnector", {"kvferry.mp.host": server.endpoint})


@contextmanager
def _tier(url: str, folder: Path) -> Iterator[dict[str, Any]]:
    extra = {
        "spec_name": "CpuTieringSpec",  # vLLM's own wants a GPU
        "spec_module_path": "cpu_tiering",
        "cpu_bytes_to_use": 256 << 20,
        "secondary_tiers": [{"type": "KvferryTier", "url": url}],
    }
    yield connector("KvferryTierConnector", extra)


@pytest.mark.parametrize(
    ("integration", "chunk"),
    [
        pytest.param(_in_process, CHUNK, id="connector"),
        pytest.param(_mp, CHUNK, id="mp"),
        pytest.param(_tier, BLOCK, id="tier"),  # a chunk is a block of vLLM's
    ],
)
def test_a_hit_waits_for_one_round_trip_at_any_distance(
    integration: Callable[[str, Path], Any],
    chunk: int,
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    open_engine: Callable[..., EngineProcess],
    tmp_path: Path,
) -> None:
    asked = [[prompt(TOKENS, 10 * n + m) for m in range(EACH)] for n in range(len(RTT_S))]
    with ExitStack() as stack:
        store = stack.enter_context(start_server("valkey"))
        proxy = stack.enter_context(FaultProxy(store.host, store.port))
        url = f"{proxy.url}?same_host=tcp"

        def opened(life: ExitStack, name: str) -> EngineProcess:
            transfer = life.enter_context(integration(url, tmp_path / name))
            return open_engine(life, newest_vllm, model("tiny"), transfer)

        with ExitStack() as life:
            engine = opened(life, "writer")
            for each in chain.from_iterable(asked):
                before = frames(store)
                computed_s = engine.generate([each], 1).outputs[0].ttft_s
                settle(engine, store, before, TOKENS // chunk)
        engine = opened(stack, "reader")
        got: dict[float, list[Output]] = {}
        for rtt_s, prompts in zip(RTT_S, asked, strict=True):
            proxy.down.delay_s = rtt_s
            got[rtt_s] = [engine.generate([each], 1).outputs[0] for each in prompts]
        missed = [engine.generate([prompt(TOKENS, 999 + n)], 1).outputs[0] for n in range(EACH)]
    ttft_s = {at: median(each.ttft_s or 0.0 for each in outputs) for at, outputs in got.items()}
    cached = {at: [each.cached for each in outputs] for at, outputs in got.items()}
    print(f"\n{ttft_s}\n{cached}\ncomputed {computed_s} missed {[m.ttft_s for m in missed]}")
    for at, each in cached.items():
        assert each == [TOKENS // chunk * chunk] * EACH, (at, cached, ttft_s, computed_s)
    slope = (ttft_s[RTT_S[-1]] - ttft_s[0.0]) / RTT_S[-1]
    assert slope <= ROUND_TRIPS, (slope, ttft_s)
