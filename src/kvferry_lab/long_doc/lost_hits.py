"""Where the hits of a run over documents were lost.

Of N rounds the first one cannot hit, so (N-1)/N of the tokens could. What is missing from that was
lost for one of three reasons:

- partial chunks: a cache keeps whole chunks, and one token at least is always computed;
- capacity: what no cache of that size could have kept, knowing the whole run before it begins;
- eviction order: the rest, which another policy could have kept, or which was not stored.

What could have been kept is found by letting go of the document that is asked for last, its end
first (Belady, for prefixes), after each request. It does not count what is on its way.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry_lab.long_doc.run import Record

__all__ = ["HitLoss", "best_hits", "hit_loss"]


@dataclass(frozen=True, kw_only=True)
class HitLoss:
    """Tokens of the prompts of a run, by what became of them.

    Attributes:
        asked: All of them.
        new: Those of documents that nobody had asked for, and that were not cached all the same.
        partial: Behind the last full chunk of the others.
        capacity: See the module; None: the capacity is not known, and `order` has both.
        order: See the module.
        hit: Those that were cached.
    """

    asked: int
    new: int
    partial: int
    capacity: int | None
    order: int
    hit: int

    @property
    def rate(self) -> float:
        """Hits of all tokens."""
        return self.hit / self.asked if self.asked else 0.0

    @property
    def possible(self) -> float:
        """What could be hit without limits, with chunks of one token."""
        return 1 - self.new / self.asked if self.asked else 0.0


def hit_loss(
    records: Sequence[Record], chunk_tokens: int, capacity_tokens: int | None
) -> HitLoss | None:
    """Of the requests in their order; None where the server does not say what it had cached."""
    fine = [r for r in records if r.successful and r.prompt_tokens is not None]
    if not fine or any(record.cached_tokens is None for record in fine):
        return None
    seen: set[int] = set()
    asked = new = partial = hit = again = usable = 0
    chunks = []
    for record in fine:
        tokens, cached = record.prompt_tokens or 0, record.cached_tokens or 0
        full = max(0, tokens - 1) // chunk_tokens
        asked, hit = asked + tokens, hit + cached
        if record.document in seen:
            most = max(full * chunk_tokens, cached)  # the server may have smaller chunks
            partial, usable, again = partial + tokens - most, usable + most, again + cached
        else:
            new += tokens - cached
        seen.add(record.document)
        chunks.append((record.document, full))
    kept, capacity = usable, None
    if capacity_tokens is not None:
        best = best_hits(chunks, capacity_tokens // chunk_tokens) * chunk_tokens
        kept = min(usable, max(best, again))
        capacity = usable - kept
    return HitLoss(
        asked=asked, new=new, partial=partial, capacity=capacity, order=kept - again, hit=hit
    )


def best_hits(asked: Sequence[tuple[int, int]], capacity: int) -> int:
    """The most chunks that a cache of `capacity` chunks can hit.

    Args:
        asked: Documents and how many chunks each has, in the order in which they are asked for.
        capacity: In chunks.
    """
    following = [math.inf] * len(asked)
    last: dict[int, int] = {}
    for at in reversed(range(len(asked))):
        following[at] = last.get(asked[at][0], math.inf)
        last[asked[at][0]] = at
    held: dict[int, int] = {}
    again: dict[int, float] = {}
    hits = 0
    for at, (document, size) in enumerate(asked):
        hits += min(held.get(document, 0), size)
        held[document], again[document] = size, following[at]
        over = sum(held.values()) - capacity
        for one in sorted(held, key=lambda one: again[one], reverse=True):
            cut = min(held[one], max(0, over))
            held[one], over = held[one] - cut, over - cut
    return hits
