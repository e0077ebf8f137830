"""Sweeps: which point of a grid is best, when machines drift and every turn is noisy.

A *turn* measures one point once. `Sweep.compare` gives each of some points a turn, in random order,
and then the best few of them some more. Every three turns stand between two turns of a reference
point: A B C D A E F G A. A turn counts as its ratio to the mean of the two, so what else the
machine does hits both sides, and a slow drift cancels; of a point the median ratio counts.

`Sweep.search` sweeps over two axes at a time with the best point so far as the reference, which
changes only where another one is clearly better: so ties keep the defaults. It passes over all
pairs of axes that depend on each other until a pass changes nothing. At the end each axis is put
back to where it was at the start, where that costs nothing. `Sweep.full` sweeps over the whole
grid; `Sweep.against` holds two points against each other, and its ratio is what may be quoted.

A slow server gets fewer turns and not a longer run; only a turn that has begun ends late. No clock
and no server in here: both are given. A point that cannot be measured is left out, and its reason
is kept; where the reference fails, or bytes are wrong, the sweep ends with the error.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from kvferry.base.errors import DeadlineExceeded, ServerError, SystemResourceError, UnavailableError
from kvferry_lab.tune.points import AXES, Grid, TunePoint, TuneSample

__all__ = ["Compared", "Sweep"]

_PLANES = (
    ("connections", "chunk_bytes"),  # what matters most
    ("connections", "workers"),
)
_SHARE_SWEEPS = 0.85  # of the time; then settings are put back
_BEST = 6  # points that get more than one turn
_ROUNDS = 9
_ROUNDS_AGAINST_LEAST, _ROUNDS_AGAINST = 5, 15
_MARGIN = 0.04  # what another point must be better by
_TIE = 0.01
_MARGIN_EQUAL = 0.01  # what a setting of the start may cost
_MARGIN_FEW = 0.25  # where time was too short for so many turns:
_TURNS_FEW = 5
_BETWEEN_REFERENCES = 3
_FAILURES = (DeadlineExceeded, ServerError, SystemResourceError, UnavailableError)


@dataclass
class Compared:
    """A point, and what was seen of it.

    Attributes:
        ratios: Its rate over that of the reference, one for each turn.
    """

    point: TunePoint
    ratios: list[float] = field(default_factory=list)
    samples: list[TuneSample] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The median ratio; 0 before the first turn."""
        return statistics.median(self.ratios) if self.ratios else 0.0

    @property
    def is_better(self) -> bool:
        """Whether it is faster than the reference, and not by one lucky turn."""
        margin = _MARGIN if len(self.ratios) >= _TURNS_FEW else _MARGIN_FEW
        return self.ratio >= 1 + margin

    @property
    def is_equal(self) -> bool:
        """Whether it costs nothing, as far as one can see."""
        return len(self.ratios) >= _TURNS_FEW and self.ratio >= 1 - _MARGIN_EQUAL


class Sweep:
    """The sweeps of one run.

    Args:
        turn: Measures a point once.
        score: The one number that a sample is worth, higher is better.
        clock: Seconds that do not go back.

    Attributes:
        turns: How many measurements there were.
        failed: Points that could not be measured, and why.
    """

    def __init__(
        self,
        grid: Grid,
        turn: Callable[[TunePoint], TuneSample],
        score: Callable[[TuneSample], float],
        clock: Callable[[], float],
        *,
        seed: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._grid, self._measure, self._score = grid, turn, score
        self._clock, self._say = clock, say
        self._rng = random.Random(seed)
        self.turns = 0
        self.failed: dict[TunePoint, str] = {}

    def search(self, start: TunePoint, budget_s: float) -> TunePoint:
        """The best point that can be found in this time, from `start`."""
        began = self._clock()
        end = began + _SHARE_SWEEPS * budget_s
        share_s = (end - began) / len(_PLANES)
        best = start = self._grid.at(start)
        self._turn(best)  # connects, and is slow
        while self._clock() < end:
            before = best
            for axes in _PLANES:
                points = self._grid.plane(best, *axes)
                self._say(f"{' and '.join(axes)}: {len(points)} points against {best}")
                until = min(end, self._clock() + share_s)
                best = _best(self.compare(best, points, until), best, start)
            if best == before:
                break
        return self._put_back(best, start, began + budget_s)

    def _put_back(self, best: TunePoint, start: TunePoint, end: float) -> TunePoint:
        """The point with each setting of `start` that costs nothing."""
        for axis in AXES:
            point = self._grid.at(replace(best, **{axis: getattr(start, axis)}))
            self._say(f"{axis} as until now: {point} against {best}")
            if any(one.is_equal for one in self.compare(best, [point], end)):
                best = point
        return best

    def full(self, reference: TunePoint) -> TunePoint:
        """The best point of the whole grid, whatever time that takes."""
        points = self._grid.points()
        self._say(f"full sweep: {len(points)} points")
        reference = self._grid.at(reference)
        return _best(self.compare(reference, points, float("inf")), reference, reference)

    def against(
        self, one: TunePoint, other: TunePoint, budget_s: float
    ) -> tuple[Compared, Compared]:
        """Both points in turn; the ratios of the first are over the second."""
        end = self._clock() + budget_s
        ours, theirs = Compared(one), Compared(other)
        for number in range(_ROUNDS_AGAINST):
            if one in self.failed or (number >= _ROUNDS_AGAINST_LEAST and self._clock() >= end):
                break
            self._round(theirs, [ours], float("inf"))
        return ours, theirs

    def compare(
        self, reference: TunePoint, points: Sequence[TunePoint], until: float
    ) -> list[Compared]:
        """Measure points against a reference, until the clock says `until` or the rounds are run.

        What is returned are the points that were measured to the end: one lucky turn is no reason
        to choose a point.
        """
        theirs = Compared(reference)
        compared = [Compared(point) for point in points if point != reference]
        for number in range(_ROUNDS):
            compared = [one for one in compared if one.point not in self.failed]
            if number == 1:
                compared = sorted(compared, key=lambda one: one.ratio, reverse=True)[:_BEST]
            if not compared or self._clock() >= until:
                break
            self._round(theirs, compared, until)
        return [one for one in compared if one.point not in self.failed]

    def _round(self, reference: Compared, compared: Sequence[Compared], until: float) -> None:
        order = self._rng.sample(compared, len(compared))
        before = self._refer(reference)
        for first in range(0, len(order), _BETWEEN_REFERENCES):
            if self._clock() >= until:
                return
            group = order[first : first + _BETWEEN_REFERENCES]
            samples = [self._try(one.point) for one in group]
            after = self._refer(reference)
            for one, sample in zip(group, samples, strict=True):
                if sample is not None:
                    one.samples.append(sample)
                    one.ratios.append(self._score(sample) * 2 / (before + after))
            before = after

    def _refer(self, reference: Compared) -> float:
        sample = self._turn(reference.point)
        reference.samples.append(sample)
        return self._score(sample)

    def _try(self, point: TunePoint) -> TuneSample | None:
        try:
            return self._turn(point)
        except _FAILURES as error:
            self.failed[point] = str(error)
            return None

    def _turn(self, point: TunePoint) -> TuneSample:
        self.turns += 1
        return self._measure(point)


def _best(compared: Sequence[Compared], reference: TunePoint, start: TunePoint) -> TunePoint:
    """The fastest; of those that are as good as each other, the one nearest to `start`."""
    better = [one for one in compared if one.is_better]
    if not better:
        return reference
    fastest = max(one.ratio for one in better)
    equal = [one.point for one in better if one.ratio >= fastest - _TIE]

    def changes(point: TunePoint) -> tuple[int, int]:
        changed = [axis for axis in AXES if getattr(point, axis) != getattr(start, axis)]
        return len(changed), point.connections

    return min(equal, key=changes)
