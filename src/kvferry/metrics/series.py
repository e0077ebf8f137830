"""Counters, gauges and histograms as plain numbers, counted without a lock.

    cells = Cells(make)                          # make: new families by name, all at zero
    cells.mine.families["load_bytes"].add("redis", 4096)
    cells.total()["load_bytes"].values           # over all threads

Nothing is formatted, and no library is asked, until somebody reads the numbers.

Every thread counts in a set of families of its own, and readers add the sets up. A lock costs more
than all the rest of a count, and a thread that waits for one would make another thread's request
slower. The only lock is taken when a thread counts for the first time, and by readers. What a
thread has counted outlives the thread.
"""

from __future__ import annotations

import math
import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from kvferry.base.errors import UsageError

__all__ = [
    "RATIO_BOUNDS",
    "SECONDS_BOUNDS",
    "SHARE_BOUNDS",
    "Cells",
    "Family",
    "HistogramValue",
    "Source",
    "family_of",
]

# From what one chunk in this host's memory takes to a retrieve that ran into its limit.
SECONDS_BOUNDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1),
    *(0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
RATIO_BOUNDS = (0.25, 0.5, 0.667, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)
SHARE_BOUNDS = (0.001, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1.0)

_HUGE = 1e300
_all: weakref.WeakSet[Cells] = weakref.WeakSet()


@dataclass(slots=True)
class HistogramValue:
    """How many observations fell below each bound, and their sum."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one observation; what is not finite counts as beyond all bounds."""
        if -_HUGE < value < _HUGE:
            self.counts[bisect_left(self.bounds, value)] += 1
            self.sum += value
        else:
            self.counts[-1] += 1

    @property
    def count(self) -> int:
        """All observations."""
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[str, int]]:
        """The bounds as Prometheus writes them, each with how many were not above it."""
        total = 0
        for bound, count in zip((*self.bounds, math.inf), self.counts, strict=True):
            total += count
            yield ("+Inf" if math.isinf(bound) else repr(float(bound))), total

    def add(self, other: HistogramValue) -> None:
        """Count all observations of another one with the same bounds."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum += other.sum


@dataclass(slots=True)
class Family:
    """All series of one name; each has a value of `label`, or there is one with the label "".

    Attributes:
        name: Without ``_total``.
        kind: "counter", "gauge" or "histogram".
        closed: Whether its series are those that were declared, and another one is a bug.
        values: Counters and gauges by the value of their label.
        histograms: Histograms likewise.
    """

    name: str
    kind: str
    help: str
    label: str = ""
    bounds: tuple[float, ...] = ()
    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, HistogramValue] = field(default_factory=dict)
    closed: bool = False

    def declare(self, names: Iterable[str] = ("",)) -> None:
        """Have series before anything happens, so that rates of them have a beginning."""
        for name in names:
            if self.kind == "histogram":
                self.histograms.setdefault(name, HistogramValue(self.bounds))
            else:
                self.values.setdefault(name, 0)

    def add(self, name: str, amount: float) -> None:
        """Move a counter. UsageError: the family is closed and has no such series."""
        try:
            self.values[name] += amount
        except KeyError:
            self._open(name)
            self.values[name] = amount

    def of(self, name: str) -> HistogramValue:
        """The histogram of a label, made if there is none. UsageError as `add`."""
        found = self.histograms.get(name)
        if found is None:
            self._open(name)
            found = self.histograms[name] = HistogramValue(self.bounds)
        return found

    def _open(self, name: str) -> None:
        if self.closed:
            known = ", ".join(self.values or self.histograms)
            raise UsageError(f"{self.name} has no {self.label} {name!r}; known are: {known}")


class Source(Protocol):
    """What has series: a `CacheMetrics`, and whoever is like it."""

    @property
    def labels(self) -> Mapping[str, str]:
        """Constant labels of all of them."""

    def families(self) -> list[Family]:
        """All of them as they are now; of the same names in the same order for all sources."""


def family_of(
    prefix: str,
    name: str,
    kind: str,
    text: str,
    values: Mapping[str, float] | float,
    label: str = "",
) -> Family:
    """A family of counters or gauges with these values, or one without a label."""
    given = dict(values) if isinstance(values, Mapping) else {"": values}
    return Family(prefix + name, kind, text, label, values=given)


Families = dict[str, Family]


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
