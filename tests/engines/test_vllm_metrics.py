"""vLLM's own ``/metrics`` shows our cache: the dashboard's panels after a run of each way in."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import CHUNK, INTEGRATIONS, connector
from engines.stored import DAMAGE, frames
from kvferry.cli.main import main
from kvferry_lab.engines.vllm_server import EngineServer
from support.cache_server import CacheServerProcess
from support.dashboard import PANELS, dark, page
from support.servers import TestServer

pytestmark = pytest.mark.engines

Serve = Callable[..., EngineServer]
TICK = [5, 6, 7]  # shorter than any chunk
PROMPTS = [prompt(12 * CHUNK + 5, seed) for seed in range(7)]
LIMIT_S = 60.0
OWN_CACHE = "--no-enable-prefix-caching"  # every request asks us

# What is of one moment (two requests that want the same, chunks that wait when somebody looks),
# what needs a peer with NIXL, and what should be zero.
LUCK = {
    "Faults of threads",
    "Waits for another request's load",
    "Write queue",
    *(title for title in PANELS if "one-sided" in title.lower()),
}
# What only a process with the memory can know.
OF_MEMORY = {
    "Decisions",
    "Load and write time by store, p99",
    "Bandwidth by store",
    "Pool",
    "Evictions, and what was wanted again",
    "Stores: part of the capacity",
    "Actual over predicted time",
    "Stores that can be asked",
    "Corrupt values",
    "Not written, by reason",
}


def ours(engine: EngineServer) -> str:
    """What of its metrics is ours and not zero, for people."""
    lines = page(engine.url).splitlines()
    return "\n".join(line for line in lines if "kvferry" in line and not line.endswith(" 0.0"))


# Memory, its times and decisions about it are vLLM's under a tier.
OF_VLLM = {
    "Decisions",
    "Retrieve and lookup",
    "Pool",
    "Evictions, and what was wanted again",
    "Stores: part of the capacity",
    "Actual over predicted time",
    "Share of the time to first token",
    "Bandwidth of memory",
}
MIB = 4  # less than half of what the prompts need


class Run:
    """An engine over a store, made to do all that is counted."""

    def __init__(self, engine: EngineServer, store: TestServer) -> None:
        self.engine, self.store = engine, store

    def ask(self) -> None:
        """Every prompt, one after the other: no memory here holds all of them."""
        for tokens in PROMPTS:
            self.engine.complete(tokens, 2)

    def until(self, done: Callable[[], object], what: str) -> None:
        """Small requests, with whose steps numbers come, until something is so."""
        deadline = time.monotonic() + LIMIT_S
        while not done():
            assert time.monotonic() < deadline, f"{what}\n{ours(self.engine)}"
            self.engine.complete(TICK, 2)
            time.sleep(0.15)

    def through(self, shown: Callable[[], str], but: AbstractSet[str] = frozenset()) -> None:
        """Misses and stores, hits, damage, a store that hangs: until a page lights all panels but
        these."""
        self.ask()
        self.until(lambda: len(frames(self.store)) > 6 * len(PROMPTS), "too little is stored")
        self.ask()
        DAMAGE["flipped"](self.store, sorted(frames(self.store))[::2], [])
        self.ask()
        self.store.pause()
        try:
            self.engine.complete(prompt(12 * CHUNK + 5, 99), 2)
            self.until(lambda: "Not written, by reason" not in dark(shown()), "nothing was shed")
        finally:
            self.store.resume()
        self.until(lambda: dark(shown()) <= LUCK | but, f"dark: {dark(shown()) - LUCK - but}")


def spec(store: TestServer, kind: str) -> dict[str, Any]:
    return {"type": kind, "url": store.url, "max_capacity_gb": 1}


def test_the_connector_lights_all_panels_and_top_shows_it(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Serve,
    store: TestServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "160")
    settings = {
        "kvferry.stores": [spec(store, "redis")],
        "kvferry.chunk_size": CHUNK,
        "kvferry.max_local_cpu_size": MIB / 1024,
        "kvferry.recompute": "never",
        "kvferry.lookup_timeout_s": 5,
    }
    transfer = connector("KvferryConnector", settings)
    with serve_engine(newest_vllm, model("tiny"), transfer, OWN_CACHE) as engine:
        Run(engine, store).through(lambda: page(engine.url))
        assert main(["top", "--once"]) == 0
    shown = capsys.readouterr().out
    assert "in 1 process of this host and user  ready" in shown
    assert "vLLM 0.32.0, rank 0" in shown
    assert any("redis" in line and "ok" in line for line in shown.splitlines())


def test_the_cache_server_lights_all_panels_and_its_engine_what_it_can_know(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Serve,
    store: TestServer,
    tmp_path: Path,
) -> None:
    l2 = json.dumps(spec(store, "resp"))
    with CacheServerProcess(
        tmp_path, "--l2-adapter", l2, mib=MIB, KVFERRY_RECOMPUTE="never"
    ) as server:
        settings = {"kvferry.mp.host": server.endpoint, "kvferry.chunk_size": CHUNK}
        transfer = connector("KvferryMPConnector", {**settings, "kvferry.lookup_timeout_s": 5})
        with serve_engine(newest_vllm, model("tiny"), transfer, OWN_CACHE) as engine:
            run = Run(engine, store)
            run.through(lambda: str(server.http("/metrics")))
            run.until(lambda: dark(page(engine.url)) <= LUCK | OF_MEMORY, "the engine's are dark")


def test_the_tier_lights_the_panels_of_its_store(
    newest_vllm: VllmVenv,
    model: Callable[..., Path],
    serve_engine: Serve,
    store: TestServer,
    tmp_path: Path,
) -> None:
    with INTEGRATIONS["tier"].behind(store.url, tmp_path, newest_vllm.version) as transfer:
        assert transfer is not None
        transfer["kv_connector_extra_config"]["cpu_bytes_to_use"] = MIB << 20
        few = ("--num-gpu-blocks-override", "40", "--max-model-len", "1024")
        with serve_engine(newest_vllm, model("tiny"), transfer, *few) as engine:
            Run(engine, store).through(lambda: page(engine.url), OF_VLLM)
