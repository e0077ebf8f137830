"""When tokens come, inside an engine of one process: `EngineProcess.call`."""

from __future__ import annotations

import itertools
import os
import threading
import time
from pathlib import Path
from typing import Any

_COUNT = itertools.count()
_TASKS = Path("/proc/self/task")


def between_tokens(llm: Any, ids: list[int], tokens: int) -> list[float]:
    """Generate that many tokens; seconds between each and the next one."""
    begin(llm, ids, tokens)
    return [wall_s for wall_s, _ in some_tokens(llm, tokens)]


def begin(llm: Any, ids: list[int], tokens: int) -> None:
    """Begin a request of so many tokens, for `some_tokens`."""
    from vllm import SamplingParams

    sampling = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True)
    prompt = {"prompt_token_ids": ids}
    llm.llm_engine.add_request(f"between-{next(_COUNT)}", prompt, sampling)


def some_tokens(llm: Any, tokens: int) -> list[tuple[float, float]]:
    """Generate so many tokens more, or all that are left. Seconds between each and the next one, by
    the clock, and less those in which this thread waited for a processor."""
    engine = llm.llm_engine
    moments: list[tuple[float, float]] = []
    with (_TASKS / str(threading.get_native_id()) / "schedstat").open("rb", buffering=0) as file:
        while len(moments) < tokens and engine.has_unfinished_requests():
            if engine.step():
                moments.append((time.perf_counter(), _kept_waiting_s(file)))
    return [
        (after - before, after - before - (late_after - late_before))
        for (before, late_before), (after, late_after) in itertools.pairwise(moments)
    ]


def processor_s(llm: Any, of: str) -> float:
    """Seconds of a processor that threads have used whose names begin so."""
    names = {thread.native_id: thread.name for thread in threading.enumerate()}
    found = 0.0
    for task in _TASKS.iterdir():
        try:
            name = names.get(int(task.name)) or (task / "comm").read_text()
            if name.startswith(of):
                found += int((task / "schedstat").read_text().split()[0]) / 1e9
        except OSError:  # it has ended
            continue
    return found


def _kept_waiting_s(file: Any) -> float:
    """How long a thread has waited for a processor (Documentation/scheduler/sched-stats.rst)."""
    return int(os.pread(file.fileno(), 100, 0).split()[1]) / 1e9
