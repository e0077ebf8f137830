"""Tells people of a store that keeps losing against computing: a line now and then, with figures.

Threads: any.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque

from kvferry.cache.store.tier import Tier

__all__ = ["LossWarnings"]

_log = logging.getLogger("kvferry.cache")

# How many loads of a store are remembered, and how many of them have to be lost for a line.
_LOADS, _LOST_MIN = 20, 10
_TELL_EVERY_S = 600.0


class LossWarnings:
    """What became of the loads that a store could have served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: dict[str, deque[str]] = {}
        self._tell_at: dict[str, float] = {}

    def load(self, tier: Tier, outcome: str, chunks: int, compute_s: float) -> None:
        """A load is over, or was left out.

        Args:
            tier: Of which store.
            outcome: "": it was worth it. "cut", "deadline": it was left. "slow": it was left out.
            chunks: How many it was to bring.
            compute_s: What computing the prompt from the first of them on takes.
        """
        now = time.monotonic()
        with self._lock:
            seen = self._lost.setdefault(tier.name, deque(maxlen=_LOADS))
            seen.append(outcome)
            lost = sum(map(bool, seen))
            if lost < _LOST_MIN or now < self._tell_at.get(tier.name, 0.0):
                return
            self._tell_at[tier.name] = now + _TELL_EVERY_S
            how = {word: seen.count(word) for word in ("slow", "cut", "deadline")}
        size_bytes = chunks * tier.chunk_bytes
        figures = tier.figures()
        _log.warning(
            "%s is slower than computing: of the last %d loads, %d were left out, %d were left "
            "because of the time they took and %d met their limit. The last one was of %.1f MB; "
            "the store takes %.0f ms to begin and gives %.1f MB/s, computing takes %.0f ms, so it "
            "pays from %.1f MB/s on",
            *(tier.name, len(seen), how["slow"], how["cut"], how["deadline"], size_bytes / 1e6),
            *(figures["fixed_s"] * 1e3, figures["bandwidth_bytes_s"] / 1e6, compute_s * 1e3),
            size_bytes / max(1e-6, compute_s - figures["fixed_s"]) / 1e6,
        )
