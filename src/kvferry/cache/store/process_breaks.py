"""Since when this process runs without a break.

A process that was stopped, or slept with its host, goes on as if nothing had happened, and has not
heard what others said meanwhile. Whoever answers by what was heard asks `since` first.

Threads: any; one of its own ticks, so that a process that has nothing to do is not taken for one
that was stopped. A process that got no processor for so long is taken for one, and asks once too
often.
"""

from __future__ import annotations

import os
import threading
import time

from kvferry.base.threads import Guarded

__all__ = ["since", "watch_breaks"]

_TICK_S = 0.25
_BREAK_S = 1.5  # without a tick: the process was stopped


class _BreakWatch:
    def __init__(self) -> None:
        self.ticked = _now()
        self.since = float("-inf")
        self._pause = threading.Event()  # is never set

    def run(self) -> None:
        while True:
            self._pause.wait(_TICK_S)
            self.tick()

    def tick(self) -> None:
        since()


def _now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)  # counts while the host sleeps


_lock = threading.Lock()
_watch: _BreakWatch | None = None


def watch_breaks() -> None:
    """Begin to look; in each process once."""
    global _watch
    with _lock:
        if _watch is None:
            _watch = _BreakWatch()
            Guarded(_watch.run, "awake").start()


def _after_fork_in_child() -> None:
    global _watch, _lock
    _watch, _lock = None, threading.Lock()  # nobody ticks there


os.register_at_fork(after_in_child=_after_fork_in_child)


def since() -> float:
    """The end of the last break, on ``time.monotonic``; minus infinity: there was none."""
    one = _watch
    if one is None:
        return float("-inf")
    now = _now()
    if now - one.ticked > _BREAK_S:
        one.since = time.monotonic()
    one.ticked = now
    return one.since
