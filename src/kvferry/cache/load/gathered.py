"""What a retrieve plans, and what it did."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvferry.cache.cost.load_or_compute import Decision, Offer
from kvferry.cache.load.load_parts import Loaded, Wanted

__all__ = ["Gathered", "Plan"]


@dataclass
class Plan:
    """What stores offer behind a prefix that is there, and what of it to load.

    Attributes:
        wanted: What to load, in order.
        offers: What there would be.
        decision: The choice, with its numbers.
        reason: Why it is not the whole prompt.
        found: What there is, in order.
    """

    wanted: list[Wanted]
    offers: list[Offer]
    decision: Decision
    reason: str
    found: list[Wanted]


@dataclass
class Gathered:
    """What a retrieve did; see `kvferry.cache.results.Retrieved`.

    Attributes:
        memory_chunks: Leading chunks that were in memory when it began.
        waited: Whether it waited for somebody else's chunks.
        chunks: How many chunks each tier gave.
        copied: A flag for each chunk: it lies in the caller's buffer.
        loads: What came of each load.
        ends: Where what stores have ends, as they said when they were asked.
        plain: Nothing is read any more before a store has said that it is there.
    """

    memory_chunks: int
    copied: bytearray
    waited: bool = False
    chunks: dict[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    reason: str = ""
    lookup_s: float = 0.0
    load_s: float = 0.0
    loads: list[Loaded] = field(default_factory=list)
    ends: int = -1
    plain: bool = False

    def count(self, loaded: Loaded) -> None:
        """What came of a load."""
        self.load_s += loaded.took_s
        self.loads.append(loaded)
        self.reason = loaded.reason or self.reason
        self.plain |= loaded.again
        for tier, chunks in loaded.chunks.items():
            self.chunks[tier] = self.chunks.get(tier, 0) + chunks
