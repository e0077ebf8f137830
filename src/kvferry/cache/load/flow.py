"""The speed of a running load, from the counters of the stores that its bytes come from.

A `Flow` says what has come and how fast. What follows from that for a request is the matter of
`kvferry.cache.load.wait_budget`.

Units: seconds, bytes. Moments: of ``time.monotonic``. Threads: one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import NamedTuple

from kvferry.cache.cost.load_or_compute import FirstByte
from kvferry.cache.store.tier import Tier

__all__ = ["Flow", "OthersBytes"]

# How long a flow must have been seen for its speed to say anything.
_MATURE_S = 0.05
# TCP begins slowly and doubles with each round trip. A flow that is this many times as fast as a
# span before is expected to grow on like that; above the second figure the difference is a lump
# (``test_a_flow_that_doubles_with_each_round_trip_is_not_judged_by_its_mean``).
_GROWTH_MIN, _GROWTH_MAX = 1.5, 4.0
# A flow that was seen for fewer round trips than two spans have is young.
_SPAN_ROUND_TRIPS = 2
# What comes besides values: answers to questions.
_NOISE_BYTES = 16 << 10


class OthersBytes(NamedTuple):
    """Bytes of other loads, which come before or beside the bytes of this load.

    Attributes:
        size_bytes: How many bytes other loads wait for. A counter does not say for which load bytes
            came, so this load counts as complete when the others are complete, too.
        until: Bytes that come before this moment belong to other loads, or to loads that were cut.
    """

    size_bytes: int = 0
    until: float = 0.0


NOBODYS = OthersBytes()


class _Look(NamedTuple):
    """What had come by a moment."""

    moment: float
    came_bytes: int


class _Growth(NamedTuple):
    """How many times as much came in the last span as in the one before."""

    factor: float
    span_s: float
    came_bytes: float  # in the last one


class Flow:
    """How fast bytes are coming in, from all stores of a load together.

    Args:
        sizes: How many bytes are wanted of each store.
        began: When the load began.
        start: What each store had sent by then, where that is not what it has sent by now.
        ahead_bytes: How many were asked for before the rest was.
        rest_at: When the rest can be here at the soonest: that nothing comes until then says
            nothing about the speed.
        others: Bytes of other loads.

    Attributes:
        began: When the load began.
    """

    def __init__(
        self,
        sizes: dict[Tier, int],
        began: float,
        start: dict[Tier, int] | None = None,
        ahead_bytes: int = 0,
        rest_at: float = 0.0,
        others: OthersBytes = NOBODYS,
    ) -> None:
        self.began = began
        self._others_bytes, self._others_until = others
        self._wanted_bytes = sum(sizes.values()) + self._others_bytes
        self._start = {**{tier: tier.received_bytes() for tier in sizes}, **(start or {})}
        self._ahead_bytes, self._rest_at = ahead_bytes, rest_at
        self._moved_at = began  # when more had come than by the look before
        self._nothing_at = began  # the last look by which nothing had come
        self._first_at = math.inf  # the first look by which something had
        self._flows_at = 0.0  # since when what comes says something about the speed
        self._seen: list[_Look] = []

    def received(self, tier: Tier) -> int:
        """How many bytes came from a store since the load began, whoever asked for them."""
        return tier.received_bytes() - self._start[tier]

    def look(self, now: float) -> None:
        """Note how much has come."""
        if now < self._others_until:
            came = min(sum(map(self.received, self._start)), self._others_bytes)
            self._start = {tier: tier.received_bytes() for tier in self._start}
            self._wanted_bytes -= came
            self._others_bytes -= came
        count = sum(self.received(tier) for tier in self._start)
        if count <= min(_NOISE_BYTES, self._wanted_bytes // 8):
            self._nothing_at = now
            return
        self._first_at = min(self._first_at, now)
        if not self._seen:
            if count <= self._ahead_bytes + _NOISE_BYTES and now < self._rest_at:
                return
            self._flows_at = now
        if not self._seen or count > self._seen[-1].came_bytes:
            self._moved_at = now
        self._seen.append(_Look(now, count))

    # --- What has come ---

    def first_byte(self) -> FirstByte:
        """When bytes began to come, counted from the beginning of the load."""
        return FirstByte(self._nothing_at - self.began, self._first_at - self.began)

    def share(self) -> float:
        """How much of what is wanted has come, as a part of 1."""
        return min(1.0, self._seen[-1].came_bytes / self._wanted_bytes) if self._seen else 0.0

    def seen_s(self) -> float:
        """For how long bytes were seen to come; they come in lumps, so a moment says little."""
        return self._seen[-1].moment - self._flows_at if self._seen else 0.0

    def idle_s(self) -> float:
        """For how long nothing more has come; infinite: nothing has yet."""
        return self._seen[-1].moment - self._moved_at if self._seen else math.inf

    @property
    def is_young(self) -> bool:
        """Whether it was seen for less than two spans of `_growth`."""
        return self.seen_s() < 2 * _SPAN_ROUND_TRIPS * self.first_byte().most_s

    # --- How fast ---

    def rate(self) -> float:
        """Bytes per second of late; of a flow that grows, in the span that comes next."""
        if len(self._seen) < 2:
            return 0.0
        growth = self._growth()
        if growth.factor >= _GROWTH_MIN:
            return growth.factor * growth.came_bytes / growth.span_s
        half, last = self._half(), self._seen[-1]
        return (last.came_bytes - half.came_bytes) / max(last.moment - half.moment, 1e-3)

    def remaining_s(self) -> float | None:
        """Seconds until the rest is here, at the speed of late; None: it is not known yet."""
        if len(self._seen) < 2:
            return None
        half, last = self._half(), self._seen[-1]
        if last.moment - half.moment < _MATURE_S:
            return None
        rest = max(0.0, self._wanted_bytes - last.came_bytes)
        factor, span_s, came = self._growth()
        if factor < _GROWTH_MIN:
            return rest * (last.moment - half.moment) / max(last.came_bytes - half.came_bytes, 1)
        # What comes in the next spans is a geometric series.
        return span_s * math.log1p(rest * (factor - 1) / (factor * came)) / math.log(factor)

    def _half(self) -> _Look:
        """Where the half of the looks begins that says how fast it is: connections run dry one by
        one."""
        now = self._seen[-1].moment
        moment = now - max(2 * _MATURE_S, (now - self._seen[0].moment) / 2)
        return self._seen[max(0, bisect_right(self._seen, (moment, math.inf)) - 1)]

    def _growth(self) -> _Growth:
        """Compares two spans, each of two round trips if it was seen for so long: lumps come with
        each of them."""
        now, count = self._seen[-1]
        round_trips_s = _SPAN_ROUND_TRIPS * self.first_byte().most_s
        span_s = min((now - self._seen[0].moment) / 2, max(_MATURE_S, round_trips_s))
        middle, start = self._by(now - span_s), self._by(now - 2 * span_s)
        came = max(count - middle, 1.0)
        return _Growth(min(came / max(middle - start, 1.0), _GROWTH_MAX), span_s, came)

    def _by(self, moment: float) -> float:
        """What had come by a moment."""
        index = bisect_right(self._seen, (moment, math.inf))
        if index in (0, len(self._seen)):
            return self._seen[index and -1].came_bytes
        (then, before), (later, count) = self._seen[index - 1 : index + 1]
        return before + (count - before) * (moment - then) / (later - then)
