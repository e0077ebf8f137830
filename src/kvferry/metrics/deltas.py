"""What was counted since the last look, as plain numbers that other processes can add up.

    deltas = MetricDeltas(cache.metrics)
    deltas.take()    # {"counters": {"kvferry_tokens_hit": {"l1": 512}}, ...}: what has grown
    add_deltas(sums, deltas.take())

Counters and histograms are differences; gauges are values, each under the name of the process that
said it, so that gauges of several processes stay apart. A series is told once before it grows, if
whoever shows it needs a beginning. Nothing is told where nothing is new.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from kvferry.metrics.series import Source

__all__ = ["MetricDeltas", "add_deltas", "observations"]

_COUNTERS, _HISTOGRAMS, _GAUGES = "counters", "histograms", "gauges"


class MetricDeltas:
    """See the module. One thread at a time.

    Args:
        source: Whose metrics.
        who: The name of this process, for gauges.
        only: Names of the families that are told; default: all.
        begin: Whether a series is told once before it grows.
    """

    def __init__(
        self,
        source: Source,
        who: str = "",
        only: Collection[str] | None = None,
        *,
        begin: bool = True,
    ) -> None:
        self._source = source
        self._who = who
        self._only = only
        self._begin = begin
        self._values: dict[tuple[str, str], float] = {}
        self._counts: dict[tuple[str, str], tuple[float, list[int]]] = {}

    def take(self) -> dict[str, Any]:
        """What is new since the last call."""
        found: dict[str, Any] = {}
        for family in self._source.families():
            if self._only is not None and family.name not in self._only:
                continue
            place = found
            for label, value in family.values.items():
                before = self._values.get((family.name, label), None if self._begin else 0)
                if value == before:
                    continue
                self._values[family.name, label] = value
                if family.kind == "gauge":
                    place = found.setdefault(_GAUGES, {}).setdefault(self._who, {})
                    place.setdefault(family.name, {})[label] = value
                else:
                    place = found.setdefault(_COUNTERS, {}).setdefault(family.name, {})
                    place[label] = value - (before or 0)
            for label, histogram in family.histograms.items():
                last = self._counts.get((family.name, label))
                total, counts = last or (0.0, [0] * len(histogram.counts))
                if histogram.counts == counts and (last is not None or not self._begin):
                    continue
                self._counts[family.name, label] = (histogram.sum, list(histogram.counts))
                grown = [new - old for new, old in zip(histogram.counts, counts, strict=True)]
                place = found.setdefault(_HISTOGRAMS, {}).setdefault(family.name, {})
                place[label] = [histogram.sum - total, grown]
        return found


def add_deltas(into: dict[str, Any], deltas: Mapping[str, Any]) -> None:
    """Add later deltas, or those of somebody else, to some that are changed by it."""
    for family, values in deltas.get(_COUNTERS, {}).items():
        sums = into.setdefault(_COUNTERS, {}).setdefault(family, {})
        for label, value in values.items():
            sums[label] = sums.get(label, 0) + value
    for family, histograms in deltas.get(_HISTOGRAMS, {}).items():
        sums = into.setdefault(_HISTOGRAMS, {}).setdefault(family, {})
        for label, (total, counts) in histograms.items():
            before, was = sums.get(label) or (0.0, [0] * len(counts))
            added = [one + other for one, other in zip(was, counts, strict=True)]
            sums[label] = [before + total, added]
    for who, families in deltas.get(_GAUGES, {}).items():
        theirs = into.setdefault(_GAUGES, {}).setdefault(who, {})
        for family, values in families.items():
            theirs.setdefault(family, {}).update(values)


def observations(bounds: Sequence[float], total: float, counts: Sequence[int]) -> Iterator[float]:
    """Values that fall between these bounds as often as was counted, and have this sum.

    A histogram of others takes single values only. What was above the last bound takes what is left
    of the sum.
    """
    lows, above = [0.0, *bounds[:-1]], counts[-1]
    inside = [(n, low, high) for n, low, high in zip(counts, lows, bounds, strict=False) if n]
    least = sum(n * low for n, low, _ in inside)
    width = sum(n * (high - low) for n, low, high in inside)
    # Just above the lower bounds, where the rest can have what is left.
    part = 0.0 if above or not width else (total - least) / width
    part = min(1.0, max(1e-9, part))
    said = 0.0
    for n, low, high in inside:
        value = min(high, low + part * (high - low))
        said += n * value
        for _ in range(n):
            yield value
    for _ in range(above):
        yield max((total - said) / above, bounds[-1] * (1 + 1e-9))
