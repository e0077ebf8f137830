"""How long a request may wait for its cache, and what waiting in vain has cost lately.

A request that waits and gets nothing is later than without a cache: that is its regret. One request
may pay for a question that is likely to be worth it; all of them together pay little. So there is
an `Account`: over any hundred requests in a row, regret stays below 7 % of what they would have
taken without a cache. Each may spend a share of its own, and what others before it have left over,
which is at most what two requests take.

`Odds` are how much of a prefix a store mostly has. With them, waiting for an answer pays while
``P * saving`` is above ``(1 - P) * wait``.

Requests that wait at the same time share the store, so each load takes longer; but where none of
them got its KV they would queue for the engine. `Together` knows how long that queue would be.

Units: seconds. Threads: any.
"""

from __future__ import annotations

import threading

__all__ = ["SHARE", "SURE", "Account", "Odds", "Place", "Together"]

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


class Together:
    """The requests of one engine that wait for their KV, by what computing each would take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all_s = 0.0

    def join(self, compute_s: float) -> Place:
        """One more waits."""
        with self._lock:
            self._all_s += compute_s
        return Place(self, compute_s)

    def leave(self, compute_s: float) -> None:
        """One does not any more."""
        with self._lock:
            self._all_s -= compute_s

    @property
    def all_s(self) -> float:
        """What all of them would take."""
        return self._all_s


class Place:
    """A request among those that wait.

    Attributes:
        kept: A load was begun for it, which goes on when the question is answered.
    """

    def __init__(self, together: Together, compute_s: float) -> None:
        self._together, self._compute_s = together, compute_s
        self._most_s = 0.0
        self._waits = True
        self.kept = False

    @property
    def ahead_s(self) -> float:
        """What would be computed before this one if no other got its KV: half of it, on average."""
        ahead_s = max(0.0, self._together.all_s - self._compute_s) / 2
        self._most_s = max(self._most_s, ahead_s)
        return ahead_s

    @property
    def most_s(self) -> float:
        """The most that it was while this one waited, as far as anybody looked."""
        return max(self._most_s, self.ahead_s)

    def leave(self) -> None:
        """It waits no more. Idempotent."""
        waits, self._waits = self._waits, False
        if waits:
            _ = self.ahead_s
            self._together.leave(self._compute_s)
