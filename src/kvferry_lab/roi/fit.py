"""Coefficients from measured times, with the least relative error.

Units: seconds, tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvferry.base.errors import UsageError
from kvferry.cache.cost.prefill import PrefillModel
from kvferry_lab.roi.arithmetic import Prefill

__all__ = ["fit_line", "fit_prefill"]


def fit_prefill(rows: Sequence[tuple[int, float]], gpus: int = 1, source: str = "") -> Prefill:
    """``a + c n + d n^2`` by the fit that an engine learns with: no coefficient is negative.

    Args:
        rows: Tokens of a prompt, and the seconds that it took.

    Raises:
        UsageError: Nothing can be fitted: all prompts are of one length, or no time is positive.
    """
    if len({tokens for tokens, _ in rows}) < 2:
        raise UsageError("a fit needs prompts of two lengths at least, three for its curve")
    model = PrefillModel()
    for tokens, took_s in rows:
        model.observe(tokens, 0, took_s)
    a, c, d, _ = model.coefficients
    if c == d == 0:
        raise UsageError("longer prompts took no longer: nothing can be fitted")
    return Prefill(a_s=a, c_s_per_token=c, d_s_per_token2=d, gpus=gpus, source=source)


def fit_line(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """``f + k x``: minimises the sum of the squares of (predicted / seen - 1)."""
    weights = [1 / seen**2 for _, seen in rows]
    w = sum(weights)
    x = sum(weight * at for weight, (at, _) in zip(weights, rows, strict=True)) / w
    y = sum(weight * seen for weight, (_, seen) in zip(weights, rows, strict=True)) / w
    both = zip(weights, rows, strict=True)
    across = [(weight * (at - x), at - x, seen - y) for weight, (at, seen) in both]
    slope = sum(a * seen for a, _, seen in across) / sum(a * at for a, at, _ in across)
    return y - slope * x, slope
