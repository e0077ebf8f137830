"""Which prefixes were asked for most: their first chunks, counted in bounded memory.

A prefix that is counted seldom makes room for a new one and leaves its count to it, so a count may
be too high by `error`, and the most frequent prefixes are never lost.

Threads: any.

Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data
Streams" (Space-Saving), 2005.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass

__all__ = ["Prefix", "Prefixes"]


@dataclass
class Prefix:
    """A prefix by the hash of its first chunk.

    Attributes:
        root: That hash.
        lookups: How often it was asked for.
        error: By how much `lookups` may be too high.
        found_chunks: What instances held of it, of all look-ups together.
        longest: The hashes of the longest prefix that some instance held at the last look-up.
        first, last: When it was asked for first, since it is counted, and last, in seconds since
            1970.
    """

    root: bytes
    lookups: int = 0
    error: int = 0
    found_chunks: int = 0
    longest: bytes = b""
    first: float = 0.0
    last: float = 0.0


class Prefixes:
    """The most frequent prefixes.

    Args:
        kept: How many are counted.
    """

    def __init__(self, kept: int = 512) -> None:
        self._lock = threading.Lock()
        self._kept = kept
        self._counts: dict[bytes, Prefix] = {}

    def asked(self, root: bytes, held: bytes, chunks: int) -> None:
        """A look-up: the hashes that the best holder has, and how many these are."""
        with self._lock:
            prefix = self._counts.get(root)
            if prefix is None:
                prefix = Prefix(root)
                if len(self._counts) >= self._kept:
                    least = min(self._counts.values(), key=lambda one: one.lookups)
                    del self._counts[least.root]
                    prefix.lookups = prefix.error = least.lookups
                self._counts[root] = prefix
            prefix.last = time.time()
            prefix.first = prefix.first or prefix.last
            prefix.lookups += 1
            prefix.found_chunks += chunks
            prefix.longest = held

    def top(self, limit: int) -> list[Prefix]:
        """The most frequent prefixes, these first."""
        with self._lock:
            found = sorted(self._counts.values(), key=lambda one: -one.lookups)[:limit]
            return [Prefix(**vars(one)) for one in found]
