"""What a store turned out to hold, by what it refused for want of room.

A disk, a server or a node of a cluster may be full far below the limit of the settings: others fill
it, a quota ends, its own limit is lower. A refusal says so, and what the store holds at that moment
is what it can hold. The measurement is believed for some seconds, and while new refusals say the
same, for longer and longer, up to a minute. Then more is tried: so room that comes back is found,
and a store that stays full refuses one batch a minute.

What may be evicted for a refusal is bounded, because room that is made may go to others: one byte
for each byte that was written since, and beyond that a part of what the cache has in the store.
Above the bound one batch a minute is tried.

Threads: none; the owner locks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvferry.connectors.base import NodeUsage

__all__ = ["MeasuredLimit"]

_BELIEVED_S, _BELIEVED_S_MAX = 5.0, 60.0  # a measurement at first, and one that was confirmed
_SAME_SHARE = 0.1  # a measurement that differs by less confirms the one before
_NEWS_SHARE = 0.25  # a measurement that differs by more is told anew
_VAIN_EVICTIONS_MAX = 2.0  # whole evictions that may bring no room


@dataclass
class _Limit:
    """Of one part of a store: what it holds at most, and how much of that is not ours."""

    held_bytes: int
    foreign_bytes: int
    believed_s: float
    until: float


class MeasuredLimit:
    """See the module.

    Args:
        watermark, ratio: As of `Capacity`; here of what is ours.
        clock: As ``time.monotonic``.
    """

    def __init__(
        self, watermark: float, ratio: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._watermark = watermark
        self._ratio = ratio
        self._clock = clock
        self._limits: dict[str, _Limit] = {}
        self._held_bytes: int | None = None
        self._told_bytes = 0
        self._allowed_bytes = self._allowed_max = 0.0
        self._try_at = 0.0

    @property
    def held_bytes(self) -> int | None:
        """What the store holds at most, as far as refusals have said; None: they have not."""
        return self._held_bytes

    @property
    def believed(self) -> bool:
        """Whether it limits what is written now."""
        now = self._clock()
        return any(now < limit.until for limit in self._limits.values())

    def refused(
        self, parts: Sequence[NodeUsage], before: Sequence[NodeUsage], own_bytes: int
    ) -> bool:
        """A store that is below its limit took no more; whether to tell somebody.

        Args:
            parts: What it holds now.
            before: What it held before the batch that it refused.
            own_bytes: How much of it can be evicted.
        """
        now, former = self._clock(), {part.name: part.used_bytes for part in before}
        grant = _VAIN_EVICTIONS_MAX * self._ratio * own_bytes
        self._allowed_bytes += max(0.0, grant - self._allowed_max)
        self._allowed_max = max(self._allowed_max, grant)
        rooms = [part.room_bytes for part in parts if part.room_bytes is not None]
        for part in parts:
            if part.room_bytes is not None and part.room_bytes > min(rooms):
                continue  # another one is full
            over = max(0, -(part.room_bytes or 0))
            # Others may have made room meanwhile.
            held = max(part.used_bytes, former.get(part.name, 0)) - over
            known = self._limits.get(part.name)
            same = (
                known is not None and abs(held - known.held_bytes) <= _SAME_SHARE * known.held_bytes
            )
            believed_s = _BELIEVED_S
            if known is not None and same:
                believed_s = min(_BELIEVED_S_MAX, 2 * known.believed_s)
            foreign = max(0, held - own_bytes // len(parts))
            self._limits[part.name] = _Limit(held, foreign, believed_s, now + believed_s)
            self._allowed_bytes += over * len(parts)
        held_bytes = sum(
            self._limits[part.name].held_bytes if part.name in self._limits else part.used_bytes
            for part in parts
        )
        self._held_bytes = held_bytes
        news = abs(held_bytes - self._told_bytes) > _NEWS_SHARE * self._told_bytes
        if news:
            self._told_bytes = held_bytes
        return news

    def seen(self, parts: Sequence[NodeUsage]) -> bool:
        """This is what it holds now; whether that shows that it takes more than was measured."""
        for part in parts:
            limit = self._limits.get(part.name)
            if limit is None:
                continue
            might = part.used_bytes + (part.room_bytes or 0)
            if might > (1 + _SAME_SHARE) * limit.held_bytes + (1 << 20 if part.room_bytes else 0):
                del self._limits[part.name]
        if self._limits or self._held_bytes is None:
            return False
        self._held_bytes, self._told_bytes = None, 0
        return True

    def excess(self, parts: Sequence[NodeUsage], size_bytes: int, *, goal: bool = False) -> int:
        """How many bytes too many the store would hold with so many more.

        Args:
            parts: What it holds now.
            size_bytes: What is to be written.
            goal: Behind an eviction, which goes further than it must.
        """
        now, most = self._clock(), 0.0
        for part in parts:
            limit = self._limits.get(part.name)
            if limit is None or now >= limit.until:
                continue
            needed = part.used_bytes + size_bytes / len(parts)
            end = limit.foreign_bytes + self._watermark * (limit.held_bytes - limit.foreign_bytes)
            if goal:
                ours = max(0.0, needed - limit.foreign_bytes)
                end = min(end, limit.foreign_bytes + (1 - self._ratio) * ours)
            most = max(most, needed - end)
        return int(most * len(parts))

    def fits(self, parts: Sequence[NodeUsage], size_bytes: int) -> bool:
        """Whether so many bytes more can be taken, by what is believed."""
        now = self._clock()
        limits = [(part, self._limits.get(part.name)) for part in parts]
        return all(
            limit is None
            or now >= limit.until
            or part.used_bytes + size_bytes / len(parts) <= limit.held_bytes
            for part, limit in limits
        )

    def allowed(self, size_bytes: int) -> int:
        """How many bytes may be evicted now, of which `size_bytes` are wanted at once."""
        if self._allowed_bytes >= size_bytes:
            return int(self._allowed_bytes)
        now = self._clock()
        if now < self._try_at:
            return 0
        self._try_at = now + _BELIEVED_S_MAX
        return size_bytes

    def evicted(self, size_bytes: int) -> None:
        """So much went."""
        self._allowed_bytes = max(0.0, self._allowed_bytes - size_bytes)

    def wrote(self, size_bytes: int) -> None:
        """So much was taken."""
        self._allowed_bytes = min(self._allowed_max, self._allowed_bytes + size_bytes)
