"""When tokens come, inside an engine of one process: `EngineProcess.call`."""

from __future__ import annotations

import itertools
import time
from typing import Any

_COUNT = itertools.count()


def between_tokens(llm: Any, ids: list[int], tokens: int) -> list[float]:
    """Generate that many tokens; seconds between each and the next one."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    engine = llm.llm_engine
    engine.add_request(f"between-{next(_COUNT)}", {"prompt_token_ids": ids}, sampling)
    moments, count = [], 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if len(output.outputs[0].token_ids) > count:
                count = len(output.outputs[0].token_ids)
                moments.append(time.perf_counter())
    return [after - before for before, after in itertools.pairwise(moments)]
