"""What a load consists of: pieces that stores are to give, in parts of consecutive chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvferry.cache.load.window import Window
from kvferry.cache.memory import Reserved
from kvferry.cache.store.tier import Tier
from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Ticket

__all__ = ["Loaded", "Part", "Wanted", "cut_up"]

# A load has so many parts: enough that a cut wastes little, few enough to cost nothing.
_PARTS = 16
_PART_BYTES_MIN = 4 << 20


@dataclass(frozen=True)
class Wanted:
    """Chunks `start` to `end` (not included) are to come from a tier."""

    tier: Tier
    start: int
    end: int


@dataclass
class Loaded:
    """What became of a load.

    Attributes:
        end: The index behind the last chunk of the prefix that is in memory now.
        reason: Why it is not all: "", "pool_full", "cut", "deadline", or a store's reason.
        chunks: How many chunks each tier gave.
        took_s: How long it took.
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
        """Whether it was left because waiting for it did not pay, or its time was up."""
        return self.reason in ("cut", "deadline")


@dataclass
class Part:
    """Chunks that one job brings.

    Attributes:
        end: Behind the last chunk of the prefix that is there when this part is.
        reserved: Their pages; id 0: they go into buffers of the caller, or in a window.
        ticket: Of the job; None: it was not asked for yet.
        window: Where they were asked for before anybody knew that they are there.
        items: Which reads of the window bring them.
    """

    tier: Tier
    end: int
    reserved: Reserved
    ticket: Ticket | None = None
    window: Window | None = None
    items: Sequence[int] = ()

    @property
    def size_bytes(self) -> int:
        """Of its chunks."""
        return len(self.reserved.chunks) * self.tier.chunk_bytes

    def reached(self, arrived: int) -> int:
        """The index of the first chunk that is not there, with that many of the part's arrived."""
        chunks = self.reserved.chunks
        return chunks[arrived] if arrived < len(chunks) else self.end

    @property
    def arrived(self) -> int:
        """How many leading chunks of the part are there by now."""
        assert self.ticket is not None
        count = self.ticket.prefix_len
        return count if self.window is None else sum(1 for item in self.items if item < count)

    def own(self, result: BatchResult) -> BatchResult:
        """What the result says of the chunks of the part."""
        if self.window is None:
            return result
        statuses = bytes(result.statuses[item] for item in self.items)
        sizes = [result.sizes[item] for item in self.items]
        return BatchResult(statuses, sizes, result.elapsed_s, result.error, result.kind)


def cut_up(wanted: Sequence[Wanted], total: int) -> Iterator[tuple[Tier, int, int]]:
    """The parts of a load of so many chunks."""
    for piece in wanted:
        step = max(-(-total // _PARTS), _PART_BYTES_MIN // piece.tier.chunk_bytes, 1)
        for start in range(piece.start, piece.end, step):
            yield piece.tier, start, min(start + step, piece.end)
