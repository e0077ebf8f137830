"""Steps of an engine as numbers, and the fit of least squares over what they took.

A step is ``(1, new tokens, pairs, decodes)``, and how long it took; see
`kvferry.cache.cost.prefill`.

Threads: none of this is shared.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["SIZE", "UNITS", "SeenStep", "StepSums", "own_shape", "possible", "true_steps"]

# Of a sample at the next one of its size, and at one that read a prompt of another size.
_FADING, _SLOW_FADING = 0.97, 0.98
SIZE = 4
# What the sums count in, so that their numbers are of one order.
UNITS = (1.0, 1e3, 1e6, 1.0)
# Few terms before many, and the linear one first: what one sample cannot tell apart is linear.
_SHAPES = ((1,), (2,), (0,), (0, 1), (1, 2), (0, 2), (0, 1, 2))
# No step of an engine is shorter or longer, and none has as many tokens or pairs.
_STEP_S = (1e-6, 1e5)
_MANY = 1e15
# A fit is good that is nowhere off by so much. What by a fit takes three times as long is false.
_GOOD, _FALSE = 0.5, 1 / 3


class SeenStep(NamedTuple):
    """What a step was, and what it was expected to take."""

    x: Sequence[float]
    took_s: float
    expected_s: float


class StepSums:
    """Of x x', x t and t t over samples, older ones fading."""

    __slots__ = ("tt", "xt", "xx")

    def __init__(self) -> None:
        self.xx = [[0.0] * SIZE for _ in range(SIZE)]
        self.xt = [0.0] * SIZE
        self.tt = 0.0

    def add(self, step: Sequence[float], took_s: float) -> None:
        x = [value / unit for value, unit in zip(step, UNITS, strict=True)]
        weight = 1 / took_s**2  # what matters is the relative error
        for i in range(SIZE):
            row, xi = self.xx[i], weight * x[i]
            for j in range(SIZE):
                row[j] = row[j] * _FADING + xi * x[j]
            self.xt[i] = self.xt[i] * _FADING + xi * took_s
        self.tt = self.tt * _FADING + 1.0

    def fade(self) -> None:
        for row in self.xx:
            row[:] = [value * _SLOW_FADING for value in row]
        self.xt = [value * _SLOW_FADING for value in self.xt]
        self.tt *= _SLOW_FADING

    def join(self, other: StepSums) -> None:
        for i, j in itertools.product(range(SIZE), repeat=2):
            self.xx[i][j] += other.xx[i][j]
        for i in range(SIZE):
            self.xt[i] += other.xt[i]
        self.tt += other.tt


def possible(new_tokens: float, pairs: float, decodes: float, took_s: float) -> bool:
    """Whether a step can have been like that: nothing is infinite, less than nothing, or none."""
    counts = (new_tokens, pairs, decodes)
    whole = all(0 <= count < _MANY for count in counts) and new_tokens + decodes > 0
    return whole and _STEP_S[0] <= took_s <= _STEP_S[1]


def own_shape(sums: StepSums) -> list[float]:
    """The non-negative coefficients with the least error: the best of all subsets."""
    decodes = (3,) if sums.xx[3][3] > 0 else ()
    best, best_error = [0.0] * SIZE, math.inf
    for shape, more in itertools.product(_SHAPES, ((), decodes) if decodes else ((),)):
        chosen = (*shape, *more)
        solved = _solve(
            [[sums.xx[i][j] for j in chosen] for i in chosen], [sums.xt[i] for i in chosen]
        )
        if solved is None or min(solved) < 0:
            continue
        error = sums.tt - sum(sums.xt[i] * v for i, v in zip(chosen, solved, strict=True))
        if error < best_error - 1e-9 * sums.tt:
            best, best_error = [0.0] * SIZE, error
            for i, value in zip(chosen, solved, strict=True):
                best[i] = value
    return best


def true_steps(
    seen: Sequence[Sequence[SeenStep]], doubted: int | None = None
) -> list[list[SeenStep]]:
    """Those that were not measured too short: by the fit of all, or by that of the slower half,
    whichever is nearer to most of them.

    Args:
        seen: Steps without a prompt, and with one: what one kind takes the other kind says, too.
        doubted: Of which of them the slower half is believed where it is undecided.
    """
    slower = [
        sorted(steps, key=lambda one: one.took_s / max(1.0, one.x[1]))[len(steps) // 2 :]
        for steps in seen
    ]
    best, least = [list(steps) for steps in seen], math.inf
    for some in (seen, slower):
        sums = StepSums()
        for one in itertools.chain(*some):
            sums.add(one.x, one.took_s)
        fit = [value / unit for value, unit in zip(own_shape(sums), UNITS, strict=True)]
        said = [[sum(k * v for k, v in zip(fit, one.x, strict=True)) for one in of] for of in seen]
        pairs = [list(zip(*each, strict=True)) for each in zip(seen, said, strict=True)]
        errors = [abs(s - one.took_s) / max(s, one.took_s) for of in pairs for one, s in of]
        if max(errors, default=0.0) < _GOOD:
            return [list(steps) for steps in seen]
        error = sum(errors) - (_GOOD if doubted is not None and some is slower else 0.0)
        if error < least:
            least = error
            best = [[one for one, s in of if one.took_s > _FALSE * s] for of in pairs]
    return [
        few if 2 * len(few) > len(of) - (kind == doubted) else list(of)
        for kind, (few, of) in enumerate(zip(best, seen, strict=True))
    ]


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a small symmetric system by elimination; None when it is nearly singular."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        pivot = rows[i][i]
        if pivot <= 1e-9 * matrix[i][i] or pivot <= 0:
            return None
        for k in range(i + 1, size):
            factor = rows[k][i] / pivot
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solved = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - known) / rows[i][i]
    return solved
