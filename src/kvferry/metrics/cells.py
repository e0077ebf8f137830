"""Counters without a lock: every thread has a set of its own, and readers add them up.

A lock costs more than all the rest of a count, and a thread that waits for one would make another
thread's request slower. Here the only lock is taken when a thread counts for the first time, and by
readers. What a thread has counted outlives it.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

from kvferry.metrics.series import Family

__all__ = ["Cells"]

Families = dict[str, Family]

_all: weakref.WeakSet[Cells] = weakref.WeakSet()


class _Local(threading.local):
    """Its __init__ runs in each thread that looks at it."""

    def __init__(self, cells: Cells) -> None:
        self.families = cells._new()


class Cells:
    """The families of all threads; `mine.families` are those of the calling one.

    Threads: any. A child of fork() goes on with what the parent had counted.
    """

    def __init__(self, make: Callable[[], Families]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._live: list[tuple[threading.Thread, Families]] = []
        self._past = make()  # of threads that have ended
        self.mine = _Local(self)
        _all.add(self)

    def _new(self) -> Families:
        made = self._make()
        with self._lock:
            self._live.append((threading.current_thread(), made))
        return made

    def total(self) -> Families:
        """The sum over all threads, in families that are the caller's."""
        with self._lock:
            live, self._live = self._live, []
            for thread, families in live:
                if thread.is_alive():
                    self._live.append((thread, families))
                else:
                    _add(self._past, families)
            total = self._make()
            for families in (self._past, *(families for _, families in self._live)):
                _add(total, families)
        return total


def _add(total: Families, part: Families) -> None:
    """Most threads count few things: what is zero is passed over, which is most of the time."""
    for name, family in part.items():
        into = total[name]
        for label, value in family.values.copy().items():  # copied: its thread may be counting
            if value or label not in into.values:
                into.values[label] = into.values.get(label, 0) + value
        for label, histogram in family.histograms.copy().items():
            if any(histogram.counts) or label not in into.histograms:
                into.of(label).add(histogram)


def _renew_locks() -> None:
    for cells in tuple(_all):
        cells._lock = threading.Lock()


os.register_at_fork(after_in_child=_renew_locks)
