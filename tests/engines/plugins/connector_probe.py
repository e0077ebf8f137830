"""What a test of the connector asks inside an engine of one process: `EngineProcess.call`."""

from __future__ import annotations

import time
from typing import Any


def _scheduler(llm: Any) -> Any:
    return llm.llm_engine.engine_core.engine_core.scheduler


def _worker(llm: Any) -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()._worker


def counts(llm: Any) -> dict[str, float]:
    """What the worker's half of the connector has counted."""
    found: dict[str, float] = _worker(llm).counts.read()
    return found


def free_blocks(llm: Any) -> int:
    """Blocks that no request has."""
    return int(_scheduler(llm).kv_cache_manager.block_pool.get_num_free_blocks())


def begin_and_abort(llm: Any, prompt: list[int], steps: int) -> dict[str, Any]:
    """Ask for a completion, abort it after some steps of the engine, and wait for what is left.

    Returns whether it was waiting for its KV then, and whether it is forgotten in the end.
    """
    from vllm import SamplingParams

    engine, scheduler = llm.llm_engine, _scheduler(llm)
    sampling = SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)
    engine.add_request("aborted", {"prompt_token_ids": prompt}, sampling)
    loading = False
    for _ in range(steps):
        engine.step()
        loading = any("REMOTE" in request.status.name for request in scheduler.requests.values())
    engine.abort_request(["aborted"], internal=False)
    deadline = time.monotonic() + 60
    while scheduler.requests and time.monotonic() < deadline:
        engine.step()
    return {"loading": loading, "forgotten": not scheduler.requests}


def reset(llm: Any) -> bool:
    """Empty the engine's prefix cache, and the connector's."""
    return bool(llm.reset_prefix_cache(reset_connector=True))
