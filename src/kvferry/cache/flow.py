"""The speed of a running load, from the counters of the stores that it comes from."""

from __future__ import annotations

import math
from collections import deque

from kvferry.cache.tier import Tier

__all__ = ["Flow"]

# How long a flow must have been seen to say anything.
_MATURE_S = 0.05
# A flow that is so many times as fast as a moment before is TCP that has just begun: it doubles
# with each round trip. More than the second figure is a lump.
_GROWTH_MIN, _GROWTH_MAX = 2.0, 4.0
# TCP sends what it may in lumps, one in a round trip, and so long the first byte took. So many are
# looked at: two, and the two before them.
_ROUNDS_SEEN = 4
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
    """

    def __init__(
        self,
        sizes: dict[Tier, int],
        now: float,
        start: dict[Tier, int] | None = None,
        ahead_bytes: int = 0,
        rest_at: float = 0.0,
    ) -> None:
        self._wanted = sum(sizes.values())
        self._start = {**{tier: tier.received_bytes() for tier in sizes}, **(start or {})}
        self._ahead_bytes, self._rest_at = ahead_bytes, rest_at
        self._began = self._dry = now
        self._first = math.inf  # when bytes came, and when they began to say something
        self._flows = 0.0
        self._seen: deque[tuple[float, int]] = deque()  # moments, and what had come by then

    def received(self, tier: Tier) -> int:
        """What came from a store since the load began, whoever asked for it."""
        return tier.received_bytes() - self._start[tier]

    def rate(self) -> float:
        """Bytes per second, of late; now, where it grows."""
        if len(self._seen) < 2:
            return 0.0
        (then, before), (now, count) = self._seen[0], self._seen[-1]
        growth, span_s = self._growth()
        if growth > 1.0:
            return growth * (count - self._by(now - span_s)) / span_s
        return (count - before) / max(now - then, 1e-3)

    def first_s(self) -> tuple[float, float]:
        """The least and the most that the first byte has taken, as far as anybody looked."""
        return self._dry - self._began, self._first - self._began

    def seen_s(self) -> float:
        """For how long it has been seen; bytes come in lumps, so a moment says little."""
        return self._seen[-1][0] - self._flows if self._seen else 0.0

    def share(self) -> float:
        """How much of what is wanted has come, as a part of 1."""
        return min(1.0, self._seen[-1][1] / self._wanted) if self._seen else 0.0

    def look(self, now: float) -> None:
        """Note how much has come."""
        count = sum(self.received(tier) for tier in self._start)
        if count <= min(_NOISE_BYTES, self._wanted // 8):
            self._dry = now
            return
        self._first = min(self._first, now)
        if not self._seen:
            if count <= self._ahead_bytes + _NOISE_BYTES and now < self._rest_at:
                return
            self._flows = now
        self._seen.append((now, count))
        # The older half of the flow says little about the rest: connections run dry one by one.
        window_s = max(
            2 * _MATURE_S, (now - self._seen[0][0]) / 2, _ROUNDS_SEEN * self.first_s()[1]
        )
        while len(self._seen) > 2 and now - self._seen[1][0] >= window_s:
            self._seen.popleft()

    def remaining_s(self) -> float | None:
        """Seconds until the rest is here, at the present speed; None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        (then, before), (now, count) = self._seen[0], self._seen[-1]
        if now - then < _MATURE_S:
            return None
        rest = max(0.0, self._wanted - count)
        growth, span_s = self._growth()
        if growth == 1.0:
            return rest * (now - then) / max(count - before, 1)
        # It goes on growing like that: what comes is a geometric series.
        times = math.log(growth) / span_s
        return math.log1p(rest * times / self.rate()) / times

    def _growth(self) -> tuple[float, float]:
        """How many times as fast it is as a few round trips before, and how long those are."""
        now, count = self._seen[-1]
        # It comes in lumps, one in a round trip, and so long the first byte took. What came in two
        # of those does not depend on where in between we are.
        span_s = max(2 * self.first_s()[1], _MATURE_S / 2)
        if self.seen_s() < span_s:
            return 1.0, 0.0
        middle, start = self._by(now - span_s), self._by(now - 2 * span_s)
        growth = min((count - middle) / max(middle - start, 1), _GROWTH_MAX)
        return (growth, span_s) if growth >= _GROWTH_MIN else (1.0, 0.0)

    def _by(self, moment: float) -> int:
        """What had come by then."""
        return next((count for at, count in reversed(self._seen) if at <= moment), 0)
