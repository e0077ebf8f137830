"""How sure a figure is: medians with their 95 % interval, and figures of samples that come in runs.

    ours, theirs = in_turn(15, measure_ours, measure_theirs)
    interval = Interval.of_median(ratios(ours, theirs))
    interval.middle, interval.low, interval.high

A ratio is that of two neighbours in time: what else a machine does hits both, and cancels out.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeVar

__all__ = ["Interval", "in_turn", "percentile", "quantile", "ratios"]

_OUTSIDE = 0.025  # on each side
_RESAMPLES = 1000

T = TypeVar("T")
Runs = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Interval:
    """A figure, and where it lies with a confidence of 95 %."""

    middle: float
    low: float
    high: float

    @classmethod
    def of_median(cls, values: Sequence[float]) -> Interval:
        """By order statistics, so whatever the distribution is.

        How many of n values lie below the true median is a binomial of n and 1/2. Fewer than six
        values cannot say it with that confidence: theirs is from the least to the greatest.

        Source: H. A. David and H. N. Nagaraja, Order Statistics, 3rd edition, 7.1.
        """
        ordered = sorted(values)
        rank = max(1, _rank(len(ordered)))
        return cls(statistics.median(ordered), ordered[rank - 1], ordered[-rank])

    @classmethod
    def of_ratio(
        cls, ours: Runs, theirs: Runs, figure: Callable[[Sequence[float]], float]
    ) -> Interval:
        """Of figure(all of ours) / figure(all of theirs), by drawing pairs of runs anew.

        Samples of one run are not independent of each other, so whole runs are drawn.

        Source: B. Efron and R. J. Tibshirani, An Introduction to the Bootstrap, chapters 8 and 13.
        """
        pairs = list(zip(ours, theirs, strict=True))
        draw = random.Random(18)  # the same samples, the same interval

        def ratio(drawn: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
            mine, other = (list(chain.from_iterable(runs)) for runs in zip(*drawn, strict=True))
            return figure(mine) / figure(other)

        drawn = sorted(ratio(draw.choices(pairs, k=len(pairs))) for _ in range(_RESAMPLES))
        outside = int(_RESAMPLES * _OUTSIDE)
        return cls(ratio(pairs), drawn[outside], drawn[-1 - outside])


def in_turn(rounds: int, *measures: Callable[[], T], warm_ups: int = 1) -> list[list[T]]:
    """Each of them once a round, every other round backwards.

    Args:
        warm_ups: Rounds before those that count.

    Returns:
        For each of them what it measured in the rounds that count.
    """
    found: list[list[T]] = [[] for _ in measures]
    for number in range(-warm_ups, rounds):
        pairs = list(zip(measures, found, strict=True))
        for measure, figures in pairs[:: -1 if number % 2 else 1]:
            figure = measure()
            if number >= 0:
                figures.append(figure)
    return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The least value that is not below so many percent of all."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def quantile(values: Sequence[float], part: float) -> float | None:
    """By linear interpolation between the sorted values; None without any."""
    if not values:
        return None
    ordered, place = sorted(values), part * (len(values) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Each of ours over its neighbour in time."""
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _rank(count: int) -> int:
    """The greatest r for which fewer than r of `count` values lie below their true median with a
    chance of at most `_OUTSIDE`: the interval goes from the r-th least to the r-th greatest."""
    chance, rank = 0.0, 0
    while rank < count:
        chance += math.comb(count, rank) / 2**count
        if chance > _OUTSIDE:
            break
        rank += 1
    return rank
