"""Every integration of vLLM in short: another process gets the KV from the store, or computes it.

The long suite is in test_vllm_scenarios.py and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engines.conftest import VllmVenv, prompt
from engines.integrations import CHUNK, Integration
from engines.stored import DAMAGE, FORGERIES, frames, settle
from kvferry_lab.engines.engine_process import EngineProcess
from support.servers import TestServer

CHUNKS = 10
TOKENS = CHUNK * CHUNKS + 5


@pytest.mark.timeout(900)
def test_a_new_process_loads_what_is_right_and_computes_the_rest(
    newest_vllm: VllmVenv,
    integration: Integration,
    model: Callable[..., Path],
    run_engine: Callable[..., EngineProcess],
    store: TestServer,
    tmp_path: Path,
) -> None:
    whole, damaged, forged = (prompt(TOKENS, seed) for seed in range(3))
    keys = []
    with integration.behind(store.url, tmp_path, newest_vllm.version) as transfer:
        engine = run_engine(newest_vllm, model("tiny"), transfer)
        cold = []
        for asked in (whole, damaged, forged):
            before = frames(store)
            cold += engine.generate([asked], 12).outputs
            keys.append(sorted(settle(engine, store, before, CHUNKS)))
        engine.close()
    assert [output.cached for output in cold] == [0, 0, 0]
    assert [len(found) for found in keys] == [CHUNKS] * 3

    DAMAGE["flipped"](store, keys[1], keys[0])
    FORGERIES["swapped"](store, keys[2], keys[0])
    again = tmp_path / "again"
    again.mkdir()
    with integration.behind(store.url, again, newest_vllm.version) as transfer:
        engine = run_engine(newest_vllm, model("tiny"), transfer)
        warm = [engine.generate([asked], 12).outputs[0] for asked in (whole, damaged, forged)]
        hits = engine.metrics()["vllm:external_prefix_cache_hits"]
        engine.close()
    assert warm[0].cached == CHUNK * CHUNKS
    assert hits >= CHUNK * CHUNKS
    assert warm[0].tokens == cold[0].tokens
    assert warm[1].tokens == cold[1].tokens  # what is damaged was noticed
    assert warm[2].tokens != cold[2].tokens  # and what cannot be would have been seen by this test
