"""The speed of a running load, from the counters of the stores that it comes from."""

from __future__ import annotations

import math
from bisect import bisect_right

from kvferry.cache.store.tier import Tier

__all__ = ["Flow"]

# How long a flow must have been seen to say anything.
_MATURE_S = 0.05
# TCP begins slowly and doubles with each round trip. A flow that is so many times as fast as before
# is expected to grow on like that; above the second figure it is a lump.
_GROWS, _GROWTH_MAX = 1.5, 4.0
# In how many round trips TCP begins; how many times too slow a flow that lags is; and before which
# part of the time in which it would pay nobody says so.
_BEGINS, _LAG, _LAG_SHARE = 4, 4, 0.1
# How long nothing may come of a flow, as a part of the time in which it would pay, and at least.
_PAUSE_SHARE, _PAUSE_S = 0.1, 0.25
# What comes besides values: answers to questions.
_NOISE_BYTES = 16 << 10


class Flow:
    """How fast bytes are coming in, from all stores of a load together.

    Args:
        sizes: What is wanted of each store.
        now: When that began.
        start: What had been received until then, where that is not now.
        ahead_bytes: How much of it was asked for before the rest was.
        rest_at: When the rest can be here at the soonest: that nothing comes in between says
            nothing about the speed.
        others: What others wait for, which comes first or beside it, so that nobody knows whose
            bytes came until that is here too; and what comes before a moment is theirs, or of those
            who have given up.
    """

    def __init__(
        self,
        sizes: dict[Tier, int],
        now: float,
        start: dict[Tier, int] | None = None,
        ahead_bytes: int = 0,
        rest_at: float = 0.0,
        others: tuple[int, float] = (0, 0.0),
    ) -> None:
        self._others_bytes, self._others_until = others
        self._wanted = sum(sizes.values()) + self._others_bytes
        self._start = {**{tier: tier.received_bytes() for tier in sizes}, **(start or {})}
        self._ahead_bytes, self._rest_at = ahead_bytes, rest_at
        self._began = self._dry = now
        self.lagged = False  # when that was asked last
        self._moved = now  # when more had come than before
        self._first = math.inf  # when bytes came, and when they began to say something
        self._flows = 0.0
        self._seen: list[tuple[float, int]] = []  # moments, and what had come by then

    def received(self, tier: Tier) -> int:
        """What came from a store since the load began, whoever asked for it."""
        return tier.received_bytes() - self._start[tier]

    def rate(self) -> float:
        """Bytes per second, of late; where it grows, those that come next."""
        if len(self._seen) < 2:
            return 0.0
        growth, span_s, came = self._growth()
        if growth >= _GROWS:
            return growth * came / span_s
        (then, before), (now, count) = self._of_late(), self._seen[-1]
        return (count - before) / max(now - then, 1e-3)

    def first_s(self) -> tuple[float, float]:
        """The least and the most that the first byte has taken, as far as anybody looked."""
        return self._dry - self._began, self._first - self._began

    def seen_s(self) -> float:
        """For how long it has been seen; bytes come in lumps, so a moment says little."""
        return self._seen[-1][0] - self._flows if self._seen else 0.0

    def moves(self, pays_s: float) -> bool:
        """Whether something has come of late, for whomever."""
        pause_s = max(_PAUSE_S, _PAUSE_SHARE * pays_s)
        return bool(self._seen) and self._seen[-1][0] - self._moved < pause_s

    @property
    def is_young(self) -> bool:
        """Whether it was seen for less than four round trips, two spans of `_growth`."""
        return self.seen_s() < 4 * self.first_s()[1]

    def share(self) -> float:
        """How much of what is wanted has come, as a part of 1."""
        return min(1.0, self._seen[-1][1] / self._wanted) if self._seen else 0.0

    def lags(self, now: float, pays_s: float, away_s: float) -> bool:
        """Whether less than a quarter has come of what should have, for all to come in `pays_s`.

        It is not known before a tenth of that; nor in the first round trips, in which TCP begins.
        """
        waited_s = now - self._began - _BEGINS * away_s
        self.lagged = waited_s > max(_LAG_SHARE * pays_s, _LAG * pays_s * self.share())
        return self.lagged

    def look(self, now: float) -> None:
        """Note how much has come."""
        if now < self._others_until:
            came = min(sum(map(self.received, self._start)), self._others_bytes)
            self._start = {tier: tier.received_bytes() for tier in self._start}
            self._wanted, self._others_bytes = self._wanted - came, self._others_bytes - came
        count = sum(self.received(tier) for tier in self._start)
        if count <= min(_NOISE_BYTES, self._wanted // 8):
            self._dry = now
            return
        self._first = min(self._first, now)
        if not self._seen:
            if count <= self._ahead_bytes + _NOISE_BYTES and now < self._rest_at:
                return
            self._flows = now
        if not self._seen or count > self._seen[-1][1]:
            self._moved = now
        self._seen.append((now, count))

    def remaining_s(self) -> float | None:
        """Seconds until the rest is here, at the present speed; None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        (then, before), (now, count) = self._of_late(), self._seen[-1]
        if now - then < _MATURE_S:
            return None
        rest = max(0.0, self._wanted - count)
        growth, span_s, came = self._growth()
        if growth < _GROWS:
            return rest * (now - then) / max(count - before, 1)
        # What comes in the next spans is a geometric series.
        return span_s * math.log1p(rest * (growth - 1) / (growth * came)) / math.log(growth)

    def _of_late(self) -> tuple[float, int]:
        """Where the half begins that says how fast it is: connections run dry one by one."""
        now = self._seen[-1][0]
        moment = now - max(2 * _MATURE_S, (now - self._seen[0][0]) / 2)
        return self._seen[max(0, bisect_right(self._seen, (moment, math.inf)) - 1)]

    def _growth(self) -> tuple[float, float, float]:
        """How many times as much came in a span as in the one before, its length, and that much.

        A span is two round trips, where it was seen for so long: lumps come with each.
        """
        now, count = self._seen[-1]
        span_s = min((now - self._seen[0][0]) / 2, max(_MATURE_S, 2 * self.first_s()[1]))
        middle, start = self._by(now - span_s), self._by(now - 2 * span_s)
        came = max(count - middle, 1.0)
        return min(came / max(middle - start, 1.0), _GROWTH_MAX), span_s, came

    def _by(self, moment: float) -> float:
        """What had come by then."""
        index = bisect_right(self._seen, (moment, math.inf))
        if index in (0, len(self._seen)):
            return self._seen[index and -1][1]
        (then, before), (later, count) = self._seen[index - 1 : index + 1]
        return before + (count - before) * (moment - then) / (later - then)
