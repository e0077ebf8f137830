"""What became of what was stored: which store has acknowledged it, and why others have not.

Chunks are in memory when `store` returns, and on their way to the stores. A receipt is open until
each of them has acknowledged or refused what it was offered; then it is told, once. One that is
open for long is told before that as well, by whoever stores or retrieves next.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Receipt", "Receipts"]

# What waits for longer is told as such.
_WAITS_S = 2.0
_OPEN_MAX = 1000  # of those that may be told before their end


@dataclass(eq=False)
class Receipt:
    """Of one `store`; numbers are chunks.

    Attributes:
        given_tokens: What the caller gave, with those behind the last full chunk.
        here: What of it came into memory, and stays there.
        brought: What of it came into memory, perhaps to leave it for the stores.
        chunk_tokens: Tokens of a chunk.
        reason: Why not all of it came in.
        stored: What each store has acknowledged.
        waiting: What each store has still to get.
        refused: What each store did not take, and why.
        took_s: From the beginning of the call.
    """

    given_tokens: int
    here: int
    brought: int
    chunk_tokens: int
    reason: str
    began: float
    stored: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    took_s: float = 0.0
    told: bool = False  # while it was open

    @property
    def kept(self) -> int:
        """What is somewhere for certain."""
        return max(self.here, max(self.stored.values(), default=0))


class Receipts:
    """Those of one cache.

    Args:
        tell: Called with a receipt that is closed, or has been open for long.
    """

    def __init__(self, tell: Callable[[Receipt], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._open: deque[Receipt] = deque(maxlen=_OPEN_MAX)

    def open(self, receipt: Receipt, stores: list[str]) -> None:
        """These stores are about to be offered what was brought; none: it is told at once."""
        receipt.took_s = time.monotonic() - receipt.began
        receipt.waiting = dict.fromkeys(stores, receipt.brought)
        if not receipt.waiting:
            self._tell(receipt)
            return
        with self._lock:
            self._open.append(receipt)

    def settle(self, receipt: Receipt, store: str, count: int, why: str) -> None:
        """A store has acknowledged so many, and `why` not more."""
        with self._lock:
            rest = receipt.waiting.pop(store, 0) - count
            if count:
                receipt.stored[store] = count
            if rest > 0:
                receipt.refused[store] = (rest, why)
            receipt.took_s = time.monotonic() - receipt.began
            if receipt.waiting:
                return
            if receipt in self._open:
                self._open.remove(receipt)
        self._tell(receipt)

    def sweep(self) -> None:
        """Tell of those that have been open for long."""
        if not self._open:
            return
        before = time.monotonic() - _WAITS_S
        with self._lock:
            late = [each for each in self._open if each.began < before and not each.told]
            for each in late:
                each.told = True
        for each in late:
            self._tell(each)
