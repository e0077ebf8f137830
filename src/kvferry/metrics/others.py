"""What caches have counted is added to the metrics of the cache server that they use.

Series go by their names and labels: counters as sums, histograms as a sum and how often something
was observed below each bound.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvferry.base.errors import UsageError
from kvferry.metrics.families import FROM_OTHERS
from kvferry.metrics.series import Family, HistogramValue

__all__ = ["add_counted"]

_MUCH = 1 << 60


def add_counted(
    families: Mapping[str, Family],
    sums: Mapping[str, Mapping[str, float]],
    histograms: Mapping[str, Mapping[str, tuple[float, Sequence[int]]]],
) -> None:
    """Add to families that are found by their names without ``kvferry_``.

    Raises:
        UsageError: A series is none of `FROM_OTHERS`, or its numbers cannot be; nothing is added.
    """
    for name, values in sums.items():
        family = _known(families, name, "counter")
        for label, value in values.items():
            if label not in family.values or not 0 <= value < _MUCH:
                raise UsageError(f"{name} of {label!r} cannot grow by {value}")
    for name, observed in histograms.items():
        family = _known(families, name, "histogram")
        for label, (total, counts) in observed.items():
            possible = len(counts) == len(family.bounds) + 1 and min(counts) >= 0
            if label not in family.histograms or not possible or not 0 <= total < _MUCH:
                raise UsageError(f"{name} of {label!r} cannot have {len(counts)} such bounds")
    for name, values in sums.items():
        for label, value in values.items():
            _known(families, name, "counter").add(label, value)
    for name, observed in histograms.items():
        family = _known(families, name, "histogram")
        for label, (total, counts) in observed.items():
            histogram = HistogramValue(family.bounds, sum=total)
            histogram.counts = list(counts)
            family.of(label).add(histogram)


def _known(families: Mapping[str, Family], name: str, kind: str) -> Family:
    family = families.get(name.removeprefix("kvferry_"))
    if name not in FROM_OTHERS or family is None or family.kind != kind:
        raise UsageError(f"{name!r} is no {kind} that engines tell")
    return family
