"""What waiting for the cache may cost requests, and how likely it is to bring something.

A request that waits and gets nothing is later than without a cache: that is its loss. One request
may pay for a question that is likely to be worth it; all of them together pay little. So there is
an `Account`: over any hundred requests in a row, losses stay below 7 % of what the requests would
have taken without a cache (``test_misses_cost_little_all_in_all``). Each may lose a share of its
own, and what others before it have left over, which is at most what two requests take.

`Odds` are how much of a prefix a store mostly has. With them, waiting for an answer pays while
P times what it saves is above (1 - P) times the wait.

Requests that wait at the same time share the store, so each load takes longer; but where none of
them got its KV they would queue for the engine. `Together` knows how long that queue would be.

Who uses all of this for one request is `kvferry.cache.load.wait_budget`.

Units: seconds. Threads: any.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

__all__ = ["OWN_LOSS_SHARE", "WINS_MAX", "Account", "Allowance", "Odds", "Place", "Together"]

# How much a request may lose by its own right, as a share of its time without a cache.
OWN_LOSS_SHARE = 0.05
# How much others may leave over, in requests of mean length; with the share above, 7 of a hundred.
_SAVED_REQUESTS_MAX = 2.0
# How much is left over before the first request, in requests of its length.
_ADVANCE_REQUESTS = 1.0
# The weight of a request in the mean length of requests.
_MEAN_WEIGHT = 0.05
# How many seconds may be waited for each that is saved, at most: nothing is surer.
WINS_MAX = 49.0
# How quickly a store's answers are forgotten: with each one, this share.
_FADING = 0.02


class Allowance(NamedTuple):
    """What a request may lose.

    Attributes:
        loss_s: All in all.
        lent_s: Of what others left over: nobody else's until `Account.close` is told of it.
    """

    loss_s: float
    lent_s: float


class Account:
    """What requests may still lose by waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._saved_s = 0.0
        self._lent_s = 0.0

    def open(self, base_s: float) -> Allowance:
        """What a request may lose that would take `base_s` without a cache."""
        with self._lock:
            if not self._mean_s:
                self._mean_s, self._saved_s = base_s, _ADVANCE_REQUESTS * base_s
            lent_s = min(base_s, max(0.0, self._saved_s - self._lent_s))
            self._lent_s += lent_s
            loss_s = OWN_LOSS_SHARE * base_s + lent_s + min(0.0, self._saved_s)
            return Allowance(max(0.0, loss_s), lent_s)

    def close(self, base_s: float, loss_s: float, lent_s: float) -> None:
        """A request is over and has lost `loss_s`, or (0, 0) there was none; what it was lent
        comes back."""
        with self._lock:
            self._lent_s = max(0.0, self._lent_s - lent_s)
            if base_s <= 0 and loss_s <= 0:
                return
            self._mean_s += _MEAN_WEIGHT * (base_s - self._mean_s)
            saved_s = self._saved_s + OWN_LOSS_SHARE * base_s - max(0.0, loss_s)
            self._saved_s = min(saved_s, _SAVED_REQUESTS_MAX * self._mean_s)


class Odds:
    """How likely a store has what it is asked for."""

    def __init__(self) -> None:
        self._has, self._asked = 1.0, 2.0  # nothing is known: one of two

    def answered(self, share: float) -> None:
        """The store had this share of what it was asked for."""
        keep = 1 - _FADING
        self._has, self._asked = keep * self._has + share, keep * self._asked + 1

    @property
    def wins(self) -> float:
        """P / (1 - P): how many seconds may be waited for each that an answer can save."""
        has, lacks = self._has, self._asked - self._has
        return min(WINS_MAX, max(1 / WINS_MAX, has / max(lacks, 1e-9)))


class Together:
    """The requests of one engine that wait for their KV, by what computing each would take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all_s = 0.0

    def join(self, compute_s: float) -> Place:
        """One more request waits."""
        with self._lock:
            self._all_s += compute_s
        return Place(self, compute_s)

    def leave(self, compute_s: float) -> None:
        """One of them does not wait any more."""
        with self._lock:
            self._all_s -= compute_s

    @property
    def all_s(self) -> float:
        """What computing all of them would take."""
        return self._all_s


class Place:
    """A request among those that wait.

    Attributes:
        kept: A lookup has begun a load for it: the place is left when that load is over, or when
            somebody has come for it, and not when the lookup is answered.
    """

    def __init__(self, together: Together, compute_s: float) -> None:
        self._together, self._compute_s = together, compute_s
        self._most_s = 0.0
        self._waits = True
        self.kept = False

    @property
    def ahead_s(self) -> float:
        """What would be computed before this request if no other got its KV: half of the others, on
        average."""
        ahead_s = max(0.0, self._together.all_s - self._compute_s) / 2
        self._most_s = max(self._most_s, ahead_s)
        return ahead_s

    @property
    def most_s(self) -> float:
        """The most that `ahead_s` was while this request waited, as far as anybody looked."""
        return max(self._most_s, self.ahead_s)

    def leave(self) -> None:
        """The request waits no more. Idempotent."""
        waits, self._waits = self._waits, False
        if waits:
            _ = self.ahead_s  # for `most_s`, which is asked for behind this
            self._together.leave(self._compute_s)
