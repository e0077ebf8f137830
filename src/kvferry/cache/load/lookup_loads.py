"""Loads that a lookup has begun, for the retrieve that follows: who asks first loads at once.

An engine asks how much there is, makes room, and loads: two calls, and two round trips, if the
second one were the first to read. So the lookup sends the reads with its question, and what it has
begun goes on here. The retrieve finds it in memory, waits for it, or goes on with it itself where
no thread was free; and what came counts as loaded by whoever asked for it.

An engine may ask for all prompts that wait, and load few of them soon. What was begun and not come
for takes half of the memory at most, so that it does not evict itself.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from typing import NamedTuple

from kvferry.cache.cost.patience import Place
from kvferry.cache.load.gathered import Plan
from kvferry.cache.load.load_parts import Loaded, Wanted
from kvferry.cache.load.loader import Load
from kvferry.chunks.prompt import Prompt

__all__ = ["LookupLoad", "LookupLoads", "TakenLoad"]

# For how long somebody may still come for a load. Then its chunks are like all others in memory.
_REMEMBERED_S = 10.0
# The share of the memory's pages that those may take that nobody has come for.
_SHARE = 0.5


class LookupLoad:
    """A load that was begun.

    Attributes:
        prompt: Of which prompt.
        plan: What was planned.
        load: The load.
        place: Of the request that began it, until somebody comes for it, or it is over.
        loaded: What became of it; None: it is not over.
        began: When.
    """

    def __init__(self, prompt: Prompt, plan: Plan, load: Load, place: Place) -> None:
        self.prompt, self.plan, self.load, self.place = prompt, plan, load, place
        self.loaded: Loaded | None = None
        self.began = time.monotonic()
        self._lock = threading.Lock()
        self._claimed = False

    @property
    def wanted(self) -> list[Wanted]:
        """What it loads."""
        return self.plan.wanted

    @property
    def chunks(self) -> int:
        """How many chunks that are."""
        return self.wanted[-1].end - self.wanted[0].start

    def claim(self) -> bool:
        """Whether the caller is the one who brings it to its end."""
        with self._lock:
            claimed, self._claimed = self._claimed, True
            return not claimed


class TakenLoad(NamedTuple):
    """A load that was begun, and at which chunk of the prompt at hand."""

    begun: LookupLoad
    start: int


class LookupLoads:
    """The loads that were begun and that nobody has come for, by the hash of their first chunk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, LookupLoad] = OrderedDict()

    def add(self, begun: LookupLoad) -> None:
        """Somebody will come for it."""
        with self._lock:
            self._open[begun.prompt.digest(begun.wanted[0].start)] = begun

    def room(self, chunks: int, pages: int) -> bool:
        """Whether so many more chunks may be begun, in a memory of so many pages."""
        with self._lock:
            if not self._open:
                return True  # one of any length
            now = time.monotonic()
            for digest, begun in list(self._open.items()):
                if now - begun.began > _REMEMBERED_S:
                    del self._open[digest]
            taken = sum(begun.chunks for begun in self._open.values())
            return taken + chunks <= _SHARE * pages

    def take(self, prompt: Prompt) -> TakenLoad | None:
        """One that was begun for a part of this prompt."""
        with self._lock:
            if not self._open:
                return None
            for chunk in range(prompt.chunks):
                begun = self._open.pop(prompt.digest(chunk), None)
                if begun is not None:
                    return TakenLoad(begun, chunk)
        return None
