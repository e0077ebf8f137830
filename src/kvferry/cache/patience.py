"""How long a request may wait for its cache, and what waiting in vain has cost lately.

A request that waits and gets nothing is later than without a cache: that is its regret. One request
may pay for a question that is likely to be worth it; all of them together pay little. So there is
an `Account`: over any hundred requests in a row, regret stays below 7 % of what they would have
taken without a cache. Each may spend a share of its own, and what others before it have left over,
which is at most what two requests take.

`Odds` are how much of a prefix a store mostly has. With them, waiting for an answer pays while
``P * saving`` is above ``(1 - P) * wait``.

Units: seconds. Threads: any.
"""

from __future__ import annotations

import threading

__all__ = ["SHARE", "SURE", "Account", "Odds"]

# How much later than without a cache a request may be by its own right because the cache came to
# nothing, as a part of the time without one.
SHARE = 0.05
# What may be left over by others, in requests of mean length; with SHARE, 7 of a hundred.
_SAVED_MAX = 2.0
# What there is before the first request, in requests of its length.
_ADVANCE = 1.0
# How quickly the mean length follows.
_MEAN_WEIGHT = 0.05
# What waiting may cost for each second that it saves where nothing is surer.
SURE = 49.0
# How quickly a store's answers are forgotten: with each one, this share.
_FADING = 0.02


class Account:
    """What requests may still lose by waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._saved_s = 0.0
        self._lent_s = 0.0

    def open(self, base_s: float) -> tuple[float, float]:
        """What a request may lose that would take `base_s` without a cache, and what of it is lent.

        What is lent is nobody else's until `close` is told of it.
        """
        with self._lock:
            if not self._mean_s:
                self._mean_s, self._saved_s = base_s, _ADVANCE * base_s
            lent_s = min(base_s, max(0.0, self._saved_s - self._lent_s))
            self._lent_s += lent_s
            return max(0.0, SHARE * base_s + lent_s + min(0.0, self._saved_s)), lent_s

    def close(self, base_s: float, regret_s: float, lent_s: float) -> None:
        """A request is over; with 0, 0 it was none, and gives back what was lent."""
        with self._lock:
            self._lent_s = max(0.0, self._lent_s - lent_s)
            if base_s <= 0 and regret_s <= 0:
                return
            self._mean_s += _MEAN_WEIGHT * (base_s - self._mean_s)
            saved_s = self._saved_s + SHARE * base_s - max(0.0, regret_s)
            self._saved_s = min(saved_s, _SAVED_MAX * self._mean_s)


class Odds:
    """How likely a store has what it is asked for."""

    def __init__(self) -> None:
        self._has, self._asked = 1.0, 2.0  # nothing is known: one of two

    def answered(self, share: float) -> None:
        """It had this share of what it was asked for."""
        keep = 1 - _FADING
        self._has, self._asked = keep * self._has + share, keep * self._asked + 1

    @property
    def wins(self) -> float:
        """P / (1 - P): how many seconds may be waited for each that an answer can save."""
        has, lacks = self._has, self._asked - self._has
        return min(SURE, max(1 / SURE, has / max(lacks, 1e-9)))
