"""Threads that vLLM's binding to processors does not reach.

On a CPU, vLLM binds a worker's main thread to one processor and its OpenMP threads to one each,
where they spin between two operations. Threads that the main thread starts are bound as it is, and
would wait behind the very thread that waits for them. So ours may run wherever the
process that started the worker may. On a GPU nothing is changed: who binds workers there means it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["all_processors", "thread_start", "unbind", "warn_of_no_processor_left"]

_log = logging.getLogger("kvferry.integrations.vllm")


def unbind() -> set[int] | None:
    """Let this thread run wherever the parent process may; what it had before, None: unchanged."""
    try:
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, before | os.sched_getaffinity(os.getppid()))
    except OSError:  # no parent that we may ask, or a kernel that does not let us
        return None
    return before


@contextmanager
def all_processors() -> Iterator[None]:
    """Threads that are started here are not bound, if this is a vLLM for CPUs."""
    before = unbind() if _binds() else None
    try:
        yield
    finally:
        if before is not None:
            os.sched_setaffinity(0, before)


def thread_start() -> Callable[[], object] | None:
    """What a thread that is started later does first; None: nothing."""
    return unbind if _binds() else None


def warn_of_no_processor_left(threads: int) -> None:
    """Say so if this is a vLLM for CPUs that computes on every processor it may use.

    vLLM reserves a processor for itself and one more where there is any connector; where that would
    leave none to compute on, it reserves none at all.

    Args:
        threads: How many compute.
    """
    try:
        count = len(os.sched_getaffinity(os.getppid()))
    except OSError:
        return
    if threads < count or count < 2 or not _binds():
        return
    _log.warning(
        "vLLM computes on all %d processors and turns in circles there when it waits, so that "
        "loads, saves and vLLM's own scheduler starve: with a connector it would keep two free, "
        "and where there are no more than two it keeps none. Start it with "
        "VLLM_CPU_NUM_OF_RESERVED_CPU=1, or name its processors in VLLM_CPU_OMP_THREADS_BIND",
        count,
    )


def _binds() -> bool:
    from vllm.platforms import current_platform

    return bool(current_platform.is_cpu())
