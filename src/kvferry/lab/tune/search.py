"""The search for the best point of a grid within a time budget, and the sweep of the whole grid.

`Search.quick` goes from coarse to fine. Each step is a race against the best point so far, which
changes only when another one wins clearly: so ties keep the defaults, and a window that adapts.

1. connections x chunks, the two axes that matter most; where time is short, one after the other;
2. workers, then windows, which depend on them;
3. the neighbours of the best point along every axis, until none wins twice in a row;
4. each axis put back to where it was at the start, where that costs nothing.

`Search.sweep` gives every point of the grid the same number of turns, then races the best of them.
`Search.duel` holds two points against each other, alternately; its ratio is what may be quoted.

Time is spent in shares, so that a slow server gets fewer turns and not a longer run; only a turn
that has begun ends late. No clock and no server in here; tests give simulated ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from kvferry.lab.tune.points import AXES, Grid, Point, Sample
from kvferry.lab.tune.race import Entry, Race

__all__ = ["Search"]

_MARGIN = 0.015  # what another point must be better by
_MARGIN_EQUAL = 0.02  # what a default may cost, at worst
_DUEL_ROUNDS_MIN, _DUEL_ROUNDS_MAX = 5, 15
_SHARE_PLANE = 0.40  # of the time that is left
_SHARE_LINE = 0.30
_SHARE_FINE = 0.80
_SHARE_PLAIN = 0.10  # of all of the time
_FINE_STEPS_LOST = 2  # one after the other: a race may miss a point once
_SWEEP_ROUNDS = 3
_FINALISTS = 12


class Search:
    """One search; `turn`, `score` and `clock` as in `Race`.

    Attributes:
        turns: How many measurements there were.
        failed: Points that could not be measured, and why.
    """

    def __init__(
        self,
        grid: Grid,
        turn: Callable[[Point], Sample],
        score: Callable[[Sample], float],
        clock: Callable[[], float],
        *,
        seed: int = 0,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._grid, self._score, self._clock, self._say = grid, score, clock, say
        self._measure = turn
        self._rng = random.Random(seed)
        self.turns = 0
        self.failed: dict[Point, str] = {}

    def quick(self, start: Point, budget_s: float) -> Point:
        """The best point that can be found in this time, from `start`."""
        end = self._clock() + budget_s
        best = self._grid.at(start)
        self._turn(best)  # connects, and is slow
        began = self._clock()
        self._turn(best)
        turn_s = self._clock() - began
        plane = self._grid.plane(best, "connections", "chunk_bytes")
        # Three rounds of the half, and the references between them.
        if 3 * len(plane) * turn_s <= _SHARE_PLANE * budget_s:
            best = self._step("connections and chunks", best, plane, end, _SHARE_PLANE)
        else:
            for axis in ("chunk_bytes", "connections"):
                best = self._step(axis, best, self._grid.plane(best, axis), end, _SHARE_LINE)
        for axis in ("workers", "window_bytes"):
            best = self._step(axis, best, self._grid.plane(best, axis), end, _SHARE_LINE)
        unchanged = 0
        fine_end = end - _SHARE_PLAIN * budget_s
        while unchanged < _FINE_STEPS_LOST and self._clock() < fine_end:
            before = best
            points = self._grid.neighbours(best)
            best = self._step("neighbours", best, points, fine_end, _SHARE_FINE)
            unchanged = unchanged + 1 if best == before else 0
        return self._plain(best, self._grid.at(start), end)

    def sweep(self, reference: Point) -> Point:
        """The best point of the whole grid, whatever time that takes."""
        race = self._race(self._grid.at(reference), self._grid.points())
        for number in range(_SWEEP_ROUNDS):
            self._say(f"sweep, round {number + 1} of {_SWEEP_ROUNDS}: {len(race.entries)} points")
            race.round([entry for entry in race.entries if entry.error is None])
        self._note(race)
        finalists = sorted(race.entries, key=lambda entry: entry.ratio, reverse=True)[:_FINALISTS]
        self._say(f"sweep: the best {len(finalists)} once more")
        final = self._race(race.reference.point, [entry.point for entry in finalists])
        final.halve(float("inf"))
        best = final.best()
        return final.reference.point if best is None else best.point

    def duel(self, one: Point, other: Point, budget_s: float) -> tuple[Entry, Entry]:
        """Both points in turn; the ratios of the first are over the second."""
        end = self._clock() + budget_s
        race, entry = self._race(other, []), Entry(one)
        while len(entry.ratios) < _DUEL_ROUNDS_MAX and entry.error is None:
            if self._clock() >= end and len(entry.ratios) >= _DUEL_ROUNDS_MIN:
                break
            race.round([entry])
        return entry, race.reference

    def _step(
        self, name: str, best: Point, points: Sequence[Point], end: float, share: float
    ) -> Point:
        """One race for a share of the time that is left; the best point after it."""
        now = self._clock()
        race = self._race(best, [point for point in points if point not in self.failed])
        if now >= end or not race.entries:
            return best
        self._say(f"{name}: {len(race.entries)} points against {best}")
        race.halve(now + share * (end - now))
        self._note(race)
        found = race.best(_MARGIN)
        return best if found is None else found.point

    def _plain(self, best: Point, start: Point, end: float) -> Point:
        """The point with the axes of `start` wherever that is as fast."""
        while self._clock() < end:
            points = [replace(best, **{axis: getattr(start, axis)}) for axis in AXES]
            points = [point for point in map(self._grid.at, points) if point != best]
            race = self._race(best, [point for point in points if point not in self.failed])
            if not race.entries:
                break
            self._say(f"back to the defaults: {len(race.entries)} points against {best}")
            race.halve(end, left=len(race.entries), rounds_max=_DUEL_ROUNDS_MAX)
            self._note(race)
            equal = [entry for entry in race.entries if entry.equals(_MARGIN_EQUAL)]
            if not equal:
                break
            best = max(equal, key=lambda entry: entry.ratio).point
        return best

    def _race(self, reference: Point, points: Sequence[Point]) -> Race:
        return Race(self._turn, self._score, self._clock, reference, points, self._rng)

    def _turn(self, point: Point) -> Sample:
        self.turns += 1
        return self._measure(point)

    def _note(self, race: Race) -> None:
        self.failed.update(
            (entry.point, entry.error) for entry in race.entries if entry.error is not None
        )
