"""vLLM without a cache runs here, and says the same each time: what the other tests rely on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from engines.conftest import VllmVenv
from kvferry_lab.engines.engine_process import EngineProcess


@pytest.mark.engines
def test_tokens_depend_on_the_whole_prompt_and_on_nothing_else(
    vllm: VllmVenv, model: Callable[..., Path], run_engine: Callable[..., EngineProcess]
) -> None:
    prompt = Random(1).choices(range(300, 2000), k=200)
    other = [prompt[0] + 1, *prompt[1:]]  # far from the end
    engine = run_engine(vllm, model("tiny"))
    assert engine.version.startswith(vllm.version)
    first, second = engine.generate([prompt], 12), engine.generate([prompt], 12)
    assert first.cached == [0]
    assert second.cached == [192]  # vLLM's own prefix cache: whole blocks
    engine.forget()
    third = engine.generate([prompt], 12)
    assert third.cached == [0]
    assert first.tokens == second.tokens == third.tokens
    assert engine.generate([other], 12).tokens != first.tokens
