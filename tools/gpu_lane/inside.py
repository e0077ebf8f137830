"""What the report asks inside an engine of one process: `EngineProcess.call`. Needs vLLM."""

from __future__ import annotations

import itertools
import time
from typing import Any

_COUNT = itertools.count()


def gaps(
    llm: Any, prompts: list[list[int]], tokens: int, late: list[int], after: int
) -> list[float]:
    """Seconds between the tokens of requests, from the moment that one more request comes.

    Args:
        prompts: One request each, of so many `tokens`.
        late: The prompt of one more request, for one token; empty: nobody comes.
        after: It comes behind so many steps.
    """
    engine = llm.llm_engine
    for prompt in prompts:
        _begin(engine, prompt, tokens)
    moments: list[float] = []
    step = 0
    while engine.has_unfinished_requests():
        if step == after and late:
            _begin(engine, late, 1)
        spoken = engine.step()
        step += 1
        if step > after and spoken:
            moments.append(time.perf_counter())
    return [later - sooner for sooner, later in itertools.pairwise(moments)]


def sleep(llm: Any) -> bool:
    """Give the memory of the device away and take it back."""
    llm.sleep(level=1)
    llm.wake_up()
    return True


def _begin(engine: Any, prompt: list[int], tokens: int) -> None:
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine.add_request(f"gpu-lane-{next(_COUNT)}", {"prompt_token_ids": prompt}, sampling)
