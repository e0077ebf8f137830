"""Engines that differ do not share KV; engines that are alike do, also as users start them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engines.conftest import OLDEST, VllmVenv, prompt
from engines.integrations import CHUNK, Integration
from engines.stored import frames, settle
from kvferry_lab.engines.engine_process import EngineProcess
from kvferry_lab.engines.vllm_server import EngineServer
from support.servers import TestServer

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1800)]

CHUNKS = 10
FULL = CHUNK * CHUNKS
ASKED = prompt(FULL + 5, 1)
# What makes KV another: settings of the engine, or other weights where the first ones were.
OTHERS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "dtype": {"dtype": "bfloat16"},
    "block size": {"block_size": 64},
    "weights": {},
}


def test_wrong_identity(
    newest_vllm: VllmVenv,
    integration: Integration,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
    tmp_path: Path,
) -> None:
    here = tmp_path / "model"
    shutil.copytree(model("tiny"), here)
    said = {}
    for name in ("first", *OTHERS):
        if name == "weights":
            shutil.rmtree(here)
            shutil.copytree(model("tiny", seed=2), here)
        folder = tmp_path / name.replace(" ", "-")
        folder.mkdir()
        before = frames(store)
        with integration.behind(store.url, folder, newest_vllm.version) as transfer:
            engine = run_engine(newest_vllm, here, transfer, **OTHERS.get(name, {}))
            said[name] = engine.generate([ASKED], 12).outputs[0]
            if name == "first":
                settle(engine, store, before, CHUNKS)
            hits = engine.metrics()["vllm:external_prefix_cache_hits"]
            engine.close()
        assert said[name].cached == hits == (FULL if name == "nothing" else 0), name
    assert said["nothing"].tokens == said["first"].tokens
    assert said["weights"].tokens != said["first"].tokens


def test_preemption(
    vllm: VllmVenv,
    integration: Integration,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
    tmp_path: Path,
) -> None:
    """Requests whose blocks are taken from them, half done, and given back."""
    asked = [prompt(300, seed) for seed in range(5)]
    tight = {"max_model_len": 1024, "num_gpu_blocks_override": 40}  # five need 5 x 16 blocks
    right = run_engine(vllm, model("tiny"), **tight).generate(asked, 200)
    with integration.behind(store.url, tmp_path, vllm.version) as transfer:
        engine = run_engine(vllm, model("tiny"), transfer, **tight)
        for _ in range(2):  # the second time from the cache
            said = engine.generate(asked, 200)
            assert said.tokens == right.tokens
            engine.forget()
        metrics = engine.metrics()
        assert metrics["vllm:num_preemptions"] > 0
        if vllm.version != OLDEST:  # see Lane.hits
            assert metrics["vllm:external_prefix_cache_hits"] > 0
        engine.close()


def test_as_users_start_it(
    vllm: VllmVenv,
    integration: Integration,
    model: Callable[..., Path],
    serve_engine: Callable[..., EngineServer],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
    tmp_path: Path,
) -> None:
    """`vllm serve`, then an engine of three processes: what the first stored, the second loads."""
    with integration.behind(store.url, tmp_path, vllm.version) as transfer:
        server = serve_engine(vllm, model("tiny"), transfer)
        cold = server.complete(ASKED, 12)
        for _ in range(20):
            if len(frames(store)) >= CHUNKS:
                break
            server.complete([5, 6, 7], 1)  # engines work while they have requests
        assert len(frames(store)) >= CHUNKS
        server.close()
    again = tmp_path / "again"
    again.mkdir()
    with integration.behind(store.url, again, vllm.version) as transfer:
        engine = run_engine(vllm, model("tiny"), transfer, one_process=False)
        warm = engine.generate([ASKED], 12).outputs[0]
        engine.close()
    assert warm.cached == FULL
    assert warm.tokens == cold.tokens
