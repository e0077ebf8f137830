"""What a retrieve plans to load, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvferry.cache.cost.load_or_compute import Decision, Offer
from kvferry.cache.store.tier import Tier

__all__ = ["FoundPrefix", "Gathered", "Loaded", "Plan", "Wanted"]


@dataclass(frozen=True)
class Wanted:
    """Chunks `start` to `end` (not included) are to come from a tier."""

    tier: Tier
    start: int
    end: int


@dataclass
class FoundPrefix:
    """What stores have behind a prefix that is in memory.

    Attributes:
        pieces: Which chunks, and where; each begins where the one before it ends.
        offers: The same in tokens, with the time that loading them would take.
        reason: Why they are not the rest of the prompt.
    """

    pieces: list[Wanted]
    offers: list[Offer]
    reason: str


@dataclass
class Plan:
    """What of that to load.

    Attributes:
        wanted: What to load, in order.
        decision: The choice, with its numbers.
        reason: Why it is not the rest of the prompt.
        found: What there would be.
    """

    wanted: list[Wanted]
    decision: Decision
    reason: str
    found: FoundPrefix

    @property
    def offers(self) -> list[Offer]:
        """What there would be, with the time that it would take."""
        return self.found.offers


@dataclass
class Loaded:
    """What became of a load.

    Attributes:
        end: The index behind the last chunk of the prefix that is in memory now.
        reason: Why it is not all: "", "pool_full", "cut", "deadline", or a store's reason.
        chunks: How many chunks each tier gave.
        took_s: How long the load took.
        again: It ends where a read and the question that left with it say different things: what
            follows is to be asked for anew, the question first.
    """

    end: int
    reason: str = ""
    chunks: dict[str, int] = field(default_factory=dict)
    took_s: float = 0.0
    again: bool = False

    @property
    def left(self) -> bool:
        """Whether waiting for it did not pay, or its time was up."""
        return self.reason in ("cut", "deadline")


@dataclass
class Gathered:
    """What a retrieve did; see `kvferry.cache.results.Retrieved`.

    Attributes:
        memory_chunks: Leading chunks that were in memory when it began.
        copied: A flag for each chunk: it lies in the caller's buffer.
        waited: Whether it waited for somebody else's chunks.
        chunks: How many chunks each tier gave.
        plan: Of its first load.
        reason: Why it is not the whole prompt.
        lookup_s, load_s: Time for asking the stores, and for loading.
        loads: What became of each load.
        ends: Where what stores have ends, as they said when they were asked; -1: nobody was.
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
        """A load is over."""
        self.load_s += loaded.took_s
        self.loads.append(loaded)
        self.reason = loaded.reason or self.reason
        self.plain |= loaded.again
        for tier, chunks in loaded.chunks.items():
            self.chunks[tier] = self.chunks.get(tier, 0) + chunks
