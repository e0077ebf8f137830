"""Looks into the connector of a worker, for tests; imported by the engine.

Called through `EngineProcess.call`. The worker may be another process than the engine's, so what
is to be done there is sent to it by name, which takes VLLM_ALLOW_INSECURE_SERIALIZATION=1.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

LIMIT_S = 30.0


def stored(llm: Any, tokens: list[int], path: str) -> dict[str, Any]:
    """Write the chunks of a prompt, one after the other, to a file; what they are."""
    return dict(llm.collective_rpc(_stored, args=(tokens, path))[0])


def stats(llm: Any) -> dict[str, Any]:
    """The counters of the worker's half, and of its cache."""
    return dict(llm.collective_rpc(_stats)[0])


def settled(llm: Any, saved: int) -> int:
    """Wait until so many chunks were saved; how many were."""
    return int(llm.collective_rpc(_settled, args=(saved,))[0])


def kill_at_load(llm: Any, pid: int) -> None:
    """Kill a process when the next load has its pages, before they are copied."""
    llm.collective_rpc(_kill_at_load, args=(pid,))


def _half() -> Any:
    return get_kv_transfer_group()._worker


def _stored(worker: Any, tokens: list[int], path: str) -> dict[str, Any]:
    half = _half()
    with half.backend.retrieve(tokens, timeout_s=LIMIT_S) as hit:
        with open(path, "wb") as file:
            for page in hit.pages:
                file.write(page)
        return {
            "name": half._copier.name,
            "layers": half._copier.layers,
            "tokens": hit.tokens,
            "chunk_size": half._chunk_size,
            "chunk_blocks": half._chunk_blocks,
        }


def _stats(worker: Any) -> dict[str, Any]:
    half = _half()
    return {**half.counts.read(), "cache": half.backend.stats()}


def _settled(worker: Any, saved: int) -> int:
    counts, until = _half().counts, time.monotonic() + LIMIT_S
    while (done := int(counts.read().get("saved_chunks", 0))) < saved and time.monotonic() < until:
        time.sleep(0.01)
    return done


def _kill_at_load(worker: Any, pid: int) -> None:
    half = _half()
    scatter = half._copier.scatter

    def killing(*args: Any, **more: Any) -> None:
        half._copier.scatter = scatter
        os.kill(pid, signal.SIGKILL)
        scatter(*args, **more)

    half._copier.scatter = killing
