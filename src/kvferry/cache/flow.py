"""The speed of a running load, from the counters of the stores that it comes from."""

from __future__ import annotations

import math
from collections import deque

from kvferry.cache.tier import Tier

__all__ = ["Flow"]

# How long a flow must have been seen to say anything.
_MATURE_S = 0.05
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
        """Bytes per second, of late."""
        if len(self._seen) < 2:
            return 0.0
        (then, before), (now, count) = self._seen[0], self._seen[-1]
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
        window_s = max(2 * _MATURE_S, (now - self._seen[0][0]) / 2)
        while len(self._seen) > 2 and now - self._seen[1][0] >= window_s:
            self._seen.popleft()

    def remaining_s(self) -> float | None:
        """Seconds until the rest is here, at the present speed; None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        (then, before), (now, count) = self._seen[0], self._seen[-1]
        if now - then < _MATURE_S:
            return None
        rate = max(count - before, 1) / (now - then)
        return max(0.0, self._wanted - count) / rate
