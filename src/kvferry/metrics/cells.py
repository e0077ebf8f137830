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

__all__ = ["Cell", "Cells"]

_all: weakref.WeakSet[Cells] = weakref.WeakSet()


class Cell:
    """The families of one thread, and those of them that are moved most, without a search."""

    __slots__ = (
        *("families", "thread", "requested", "hit_tokens", "hit_bytes", "missed"),
        *("load_seconds", "load_bytes", "store_seconds", "store_bytes"),
        *("predicted", "actual", "ratio"),
    )

    def __init__(self, families: dict[str, Family]) -> None:
        self.families = families
        self.thread = threading.current_thread()
        self.requested = families["tokens_requested"].values
        self.hit_tokens = families["tokens_hit"].values
        self.hit_bytes = families["bytes_hit"].values
        self.missed = families["missed_chunks"].values
        self.load_seconds = families["load_seconds"].histograms
        self.load_bytes = families["load_bytes"].values
        self.store_seconds = families["store_seconds"].histograms
        self.store_bytes = families["store_bytes"].values
        self.predicted = families["predicted_seconds"].values
        self.actual = families["actual_seconds"].values
        self.ratio = families["prediction_ratio"].histograms


class _Local(threading.local):
    """Its __init__ runs in each thread that looks at it."""

    def __init__(self, cells: Cells) -> None:
        self.cell = cells._new()


class Cells:
    """The cells of all threads; `mine.cell` is that of the calling one.

    Threads: any. A child of fork() goes on with what the parent had counted.
    """

    def __init__(self, make: Callable[[], dict[str, Family]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._live: list[Cell] = []
        self._past = make()  # of threads that have ended
        self.mine = _Local(self)
        _all.add(self)

    def _new(self) -> Cell:
        cell = Cell(self._make())
        with self._lock:
            self._live.append(cell)
        return cell

    def total(self) -> dict[str, Family]:
        """The sum over all threads, in families that are the caller's."""
        with self._lock:
            for cell in [cell for cell in self._live if not cell.thread.is_alive()]:
                _add(self._past, cell.families)
                self._live.remove(cell)
            total = self._make()
            _add(total, self._past)
            for cell in self._live:
                _add(total, cell.families)
        return total


def _add(total: dict[str, Family], part: dict[str, Family]) -> None:
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
