"""Engines that compute other KV for the same tokens, on one store: nobody loads another one's.

What an answer has to be is said by an engine of the same kind without a cache.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from engines.adapters import make_adapter
from engines.conftest import VllmVenv, prompt
from engines.integrations import CHUNK, INTEGRATIONS
from kvferry_lab.engines.engine_process import EngineError, EngineProcess
from support.servers import TestServer

TOKENS = 12
PROMPT = prompt(300, 1)
WHOLE = (len(PROMPT) - 1) // CHUNK * CHUNK
LORA: dict[str, Any] = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}
ROPE: dict[str, Any] = {
    "hf_overrides": {"rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"}}
}
WAYS = pytest.mark.parametrize("way", ["tier", "connector"])

pytestmark = pytest.mark.engines


class Engines:
    """Opens engines that are alike but for what a test changes, and asks them one prompt."""

    def __init__(
        self, vllm: VllmVenv, run: Callable[..., EngineProcess], model: Path, url: str, folder: Path
    ) -> None:
        self.vllm, self.run, self.model, self.url, self.folder = vllm, run, model, url, folder
        self.way = "tier"

    def open(self, **settings: Any) -> EngineProcess:
        model, way = settings.pop("model", self.model), settings.pop("way", self.way)
        with ExitStack() as stack:
            behind = INTEGRATIONS[way].behind(self.url, self.folder, self.vllm.version)
            return self.run(self.vllm, model, stack.enter_context(behind), **settings)

    def ask(self, lora: list[Any] | None = None, **settings: Any) -> tuple[int, list[int]]:
        """A new engine: how many tokens came from the store, and the answer."""
        engine = self.open(**(LORA if lora else {}), **settings)
        found = ask(engine, lora)
        engine.close()
        return found


def ask(engine: EngineProcess, lora: list[Any] | None = None) -> tuple[int, list[int]]:
    """The same of one that runs, and the steps in which what it stores goes out and comes back."""
    asked = engine.generate([{"ids": PROMPT, "lora": lora} if lora else PROMPT], TOKENS)
    for _ in range(3):
        engine.generate([[5, 6, 7]], 4)
    return asked.cached[0], asked.tokens[0]


@pytest.fixture
def engines(
    newest_vllm: VllmVenv,
    run_engine: Callable[..., EngineProcess],
    model: Callable[..., Path],
    store: TestServer,
    tmp_path: Path,
) -> Engines:
    return Engines(newest_vllm, run_engine, model("tiny"), store.url, tmp_path)


@pytest.fixture
def right(engines: Engines) -> Callable[[int], list[int]]:
    """What an adapter of a seed answers, by an engine without a cache."""
    plain = engines.open(way="none", **LORA)

    def said(seed: int) -> list[int]:
        folder = make_adapter(engines.folder / f"right-{seed}", engines.model, seed)
        return ask(plain, [f"right-{seed}", seed, str(folder)])[1]

    return said


def test_overrides_have_kv_of_their_own(engines: Engines) -> None:
    """The tier: each kind of engine computes its own, and finds its own again."""
    cached, plain = engines.ask()
    assert cached == 0
    right = engines.ask(way="none", **ROPE)[1]
    assert right != plain, "or this test could not see anything"
    assert engines.ask(**ROPE) == (0, right)
    assert engines.ask(**ROPE) == (WHOLE, right)
    for changed in (
        {"hf_overrides": {"rms_norm_eps": 0.5}},
        {"dtype": "bfloat16"},
        {"environment": {"VLLM_FLOAT32_MATMUL_PRECISION": "medium"}},
    ):
        assert engines.ask(**changed)[0] == 0, changed
    shared = engines.ask(max_model_len=2048, max_num_seqs=4, seed=3)
    assert shared == (WHOLE, plain), "what changes no KV is no reason to compute it again"


def test_a_model_replaced_in_its_place(engines: Engines, model: Callable[..., Path]) -> None:
    place = engines.folder / "model"
    shutil.copytree(model("tiny"), place)
    assert engines.ask(model=place)[0] == 0
    old = (place / "model.safetensors").stat()
    shutil.copyfile(model("tiny", seed=2) / "model.safetensors", place / "model.safetensors")
    os.utime(place / "model.safetensors", ns=(old.st_atime_ns, old.st_mtime_ns))
    right = engines.ask(way="none", model=place)[1]
    assert engines.ask(model=place) == (0, right)


@WAYS
def test_adapters_are_known_by_what_they_hold(
    engines: Engines, right: Callable[[int], list[int]], way: str
) -> None:
    """One name at two places, and other files at the same place."""
    engines.way = way
    folder = make_adapter(engines.folder / "one", engines.model, 1)
    other = make_adapter(engines.folder / "two", engines.model, 2)
    assert right(1) != right(2) != right(3) != right(1), "or this test could not see anything"
    assert engines.ask(["x", 1, str(folder)]) == (0, right(1))
    assert engines.ask(["x", 1, str(folder)]) == (WHOLE, right(1))
    assert engines.ask(["x", 1, str(other)]) == (0, right(2))
    file = folder / "adapter_model.safetensors"
    before = file.stat()
    make_adapter(folder, engines.model, 3)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert engines.ask(["x", 1, str(folder)]) == (0, right(3))


@WAYS
def test_an_adapter_that_is_loaded_anew_while_the_engine_runs(
    engines: Engines, right: Callable[[int], list[int]], way: str
) -> None:
    """As a server is told to do it: under the same name and number, from the same place."""
    engines.way = way
    folder = make_adapter(engines.folder / "one", engines.model, 1)
    lora = ["x", 1, str(folder)]
    engine = engines.open(**LORA)
    engine.call("adapter_calls:add", lora=lora)
    assert ask(engine, lora) == (0, right(1))
    make_adapter(folder, engines.model, 2)  # nobody tells the engine
    engine.forget()  # vLLM's own cache, which knows name and place
    assert ask(engine, lora) == (0, right(1))
    assert "not those that were loaded: its requests are not cached" in engine.log
    engine.call("adapter_calls:remove", number=1)
    engine.call("adapter_calls:add", lora=lora)
    engine.forget()
    assert ask(engine, lora) == (0, right(2))
    engine.forget()
    assert ask(engine, lora) == (WHOLE, right(2))
    make_adapter(folder, engines.model, 3)
    engine.call("adapter_calls:add", lora=lora, in_place=True)
    engine.forget()
    assert ask(engine, lora) == (0, right(3))
    engine.close()
    assert engines.ask(lora)[1] == right(3)


def test_another_connector_is_refused_with_what_to_paste(engines: Engines) -> None:
    """And with that it starts."""
    behind = INTEGRATIONS["tier"].behind(engines.url, engines.folder, engines.vllm.version)
    with behind as transfer:
        assert transfer is not None
    transfer["kv_connector"] = "OffloadingConnector"
    transfer["kv_connector_extra_config"]["secondary_tiers"][0]["identity"] = "by hand"
    with pytest.raises(EngineError) as refused:
        engines.run(engines.vllm, engines.model, transfer)
    told = shlex.split(str(refused.value).partition("use kvferry's connector: ")[2].splitlines()[0])
    assert told[0] == "--kv-transfer-config"
    pasted = json.loads(told[1].removesuffix(";"))
    assert pasted == {**transfer, "kv_connector": "KvferryTierConnector"}
    engine = engines.run(engines.vllm, engines.model, pasted)
    assert ask(engine)[0] == 0
