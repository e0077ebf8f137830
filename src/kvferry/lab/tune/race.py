"""A race: which of some points is best, when machines drift and every turn is noisy.

A *turn* measures one point once. Turns come in rounds: each point that is left has one, in a new
random order, with a turn of the reference point first, last and after at most every third: A B C D
A E F G A. A turn counts as its ratio to the mean of the two reference turns around it, so what else
the machine does hits both sides, and a slow drift cancels. After each stage the worse half, by
medians, is out (successive halving); those that are left get more rounds.

No clock and no server in here: both are given. A point that cannot be measured is out, and its
reason is kept; where the reference fails, or bytes are wrong, the race ends with the error.
Source: Karnin, Koren, Somekh, Almost Optimal Exploration in Multi-Armed Bandits, ICML 2013.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from kvferry.errors import DeadlineExceeded, ServerError, SystemResourceError, UnavailableError
from kvferry.lab.tune.points import AXES, Point, Sample

__all__ = ["Entry", "Race"]

_BETWEEN_REFERENCES = 3
# What a point must be better by, after so few turns, to win; later the margin of the race counts.
_MARGIN_AFTER = {0: float("inf"), 1: 0.25, 2: 0.10}
_TIE = 0.01
_FAILURES = (DeadlineExceeded, ServerError, SystemResourceError, UnavailableError)


@dataclass
class Entry:
    """A point of a race, and what was seen of it.

    Attributes:
        ratios: Its rate over that of the reference, one for each turn.
        error: Why it was taken out, where it could not be measured.
    """

    point: Point
    ratios: list[float] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    error: str | None = None

    @property
    def ratio(self) -> float:
        """The median ratio; 0 before the first turn."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    def wins(self, margin: float) -> bool:
        """Whether it is faster than the reference by this much, and not by one lucky turn."""
        if self.ratio < 1 + max(margin, _MARGIN_AFTER.get(len(self.ratios), 0)):
            return False
        return sum(ratio > 1 for ratio in self.ratios) * 3 >= len(self.ratios) * 2

    def equals(self, margin: float) -> bool:
        """Whether it is as fast as the reference, known to within this margin."""
        return self.ratio > 1 - margin / 4 and self.ratio - self._error() > 1 - margin

    def _error(self) -> float:
        """Standard error of the median, from the median deviation; it ignores a few outliers."""
        if len(self.ratios) < 5:
            return float("inf")
        deviation = statistics.median(abs(ratio - self.ratio) for ratio in self.ratios)
        return float(1.86 * deviation / len(self.ratios) ** 0.5)  # as of a normal distribution


class Race:
    """Several points against a reference.

    Args:
        turn: Measures a point once.
        score: The one number that a sample is worth, higher is better.
        clock: Seconds that do not go back.
    """

    def __init__(
        self,
        turn: Callable[[Point], Sample],
        score: Callable[[Sample], float],
        clock: Callable[[], float],
        reference: Point,
        points: Sequence[Point],
        rng: random.Random,
    ) -> None:
        self._turn, self._score, self._clock, self._rng = turn, score, clock, rng
        self.reference = Entry(reference)
        self.entries = [Entry(point) for point in dict.fromkeys(points) if point != reference]

    def halve(self, until_s: float, *, left: int = 1, rounds_max: int = 9) -> None:
        """Run stages until the clock says `until_s`, or `left` points have had `rounds_max` turns.

        The first round is always run to its end, so that every point has been seen.
        """
        racing = list(self.entries)
        rounds = 1 if len(racing) > 8 else 2
        while racing and self._clock() < until_s:
            first = len(racing) == len(self.entries) and not self.reference.samples
            self.round(racing, until_s=None if first else until_s)
            racing = self._in_order(racing)
            turns = min((len(entry.ratios) for entry in racing), default=0)
            if turns < rounds:
                continue
            if len(racing) > left:
                racing = racing[: max(left, (len(racing) + 1) // 2)]
                rounds += 1 if len(racing) > left else 2
            elif turns >= rounds_max:
                break

    def round(self, racing: Sequence[Entry], *, until_s: float | None = None) -> None:
        """One turn of each; with `until_s` the round ends where the clock has passed it."""
        order = self._rng.sample(racing, len(racing))
        before = self._refer()
        for start in range(0, len(order), _BETWEEN_REFERENCES):
            if until_s is not None and self._clock() >= until_s:
                return
            group = list(self._seen(order[start : start + _BETWEEN_REFERENCES]))
            after = self._refer()
            for entry, sample in group:
                entry.samples.append(sample)
                entry.ratios.append(self._score(sample) * 2 / (before + after))
            before = after

    def best(self, margin: float = 0.0) -> Entry | None:
        """The fastest that beats the reference by this margin; None: the reference stays.

        Only those with the most turns may win: what was taken out early had luck at most. Of those
        that are as good as each other, the one that changes least of the reference.
        """
        turns = max((len(entry.ratios) for entry in self.entries), default=0)
        last = [entry for entry in self.entries if len(entry.ratios) >= turns - 1]
        winners = [entry for entry in self._in_order(last) if entry.wins(margin)]
        equal = (entry for entry in winners if entry.ratio >= winners[0].ratio - _TIE)
        return min(equal, key=lambda entry: self._changes(entry.point), default=None)

    def _changes(self, point: Point) -> tuple[int, int]:
        changed = [
            axis for axis in AXES if getattr(point, axis) != getattr(self.reference.point, axis)
        ]
        return len(changed), point.connections

    def _in_order(self, entries: Sequence[Entry]) -> list[Entry]:
        sound = (entry for entry in entries if entry.error is None)
        return sorted(sound, key=lambda entry: entry.ratio, reverse=True)

    def _seen(self, entries: Sequence[Entry]) -> Iterator[tuple[Entry, Sample]]:
        for entry in entries:
            try:
                yield entry, self._turn(entry.point)
            except _FAILURES as error:
                entry.error = str(error)

    def _refer(self) -> float:
        sample = self._turn(self.reference.point)
        self.reference.samples.append(sample)
        return self._score(sample)
