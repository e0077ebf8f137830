"""Threads that move bytes must not interrupt the one that schedules.

When the scheduler hands a batch over, a sleeping I/O thread wakes up. On a host whose cores are all
busy Linux may run it at once, in the scheduler's place, for milliseconds. Under the policy "batch"
a thread keeps its share of the CPU, and waits for the next tick instead.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

__all__ = ["in_the_background"]

_TASKS = "/proc/self/task"


@contextlib.contextmanager
def in_the_background() -> Iterator[None]:
    """Threads that are started within do not interrupt others, where the host allows that."""
    before = _threads()
    yield
    for thread in _threads() - before:
        with contextlib.suppress(OSError):  # it ended, or a sandbox does not want it
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir(_TASKS)}
    except (OSError, ValueError):
        return set()
