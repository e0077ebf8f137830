"""Loads that nobody waits for yet: what a lookup has begun, and what measures a store.

An engine asks how much there is, makes room, and loads: two calls, and two round trips, if the
second one were the first to read. So the lookup sends reads with its question, and goes on with
the load in the background (`LookupLoads`). The retrieve that follows finds it in memory, waits for
it, or goes on with it itself where no thread was free; and what came counts as loaded by whoever
asked for it.

An engine may look all prompts up that wait, and load few of them soon. What was begun and not come
for takes half of the memory at most, so that it does not evict itself.

A store that is not used teaches nothing about its speed: now and then a little is loaded from it
(`Measuring`).

Threads: any; loads are done where `background` has them.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from kvferry.cache.cost.load_or_compute import Place
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.asking import Loaded, Plan, Wanted
from kvferry.cache.load.loader import Load
from kvferry.cache.load.wait_budget import WaitBudget
from kvferry.cache.load.window import PendingLoads
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt

__all__ = ["LookupLoad", "LookupLoads", "Measuring", "TakenLoad"]

# For how long somebody may still come for a load. Then its chunks are like all others in memory.
_REMEMBERED_S = 10.0
# The share of the memory's pages for chunks that nobody has come for.
_MEMORY_SHARE_MAX = 0.5
# What a measurement loads, in how many loads, and how long it may take.
_MEASURE_BYTES = 32 << 20
_MEASURE_LOADS_MAX = 4
_MEASURE_S_MAX = 5.0


class LookupLoad:
    """A load that a lookup has begun.

    Attributes:
        prompt: Of which prompt.
        plan: What was planned.
        load: The load.
        place: Of the request that began it, until somebody comes for the load, or it is over.
        loaded: What became of the load; None: it is not over.
        began: When it was begun.
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
        """How many chunks it loads."""
        return self.wanted[-1].end - self.wanted[0].start

    def claim(self) -> bool:
        """Whether the caller is the one who brings it to its end."""
        with self._lock:
            claimed, self._claimed = self._claimed, True
            return not claimed


class TakenLoad(NamedTuple):
    """A load that was begun, and at which chunk of the prompt at hand it begins."""

    begun: LookupLoad
    start: int


class LookupLoads:
    """The loads that were begun and that nobody has come for, by the hash of their first chunk."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[bytes, LookupLoad] = OrderedDict()

    def add(self, begun: LookupLoad) -> None:
        """Somebody will come for this one."""
        with self._lock:
            self._open[begun.prompt.digest(begun.wanted[0].start)] = begun

    def has_room(self, chunks: int, pages: int) -> bool:
        """Whether so many more chunks may be begun, in a memory of so many pages."""
        with self._lock:
            if not self._open:
                return True  # one of any length
            now = time.monotonic()
            for digest, begun in list(self._open.items()):
                if now - begun.began > _REMEMBERED_S:
                    del self._open[digest]
            taken = sum(begun.chunks for begun in self._open.values())
            return taken + chunks <= _MEMORY_SHARE_MAX * pages

    def take(self, prompt: Prompt) -> TakenLoad | None:
        """A load that was begun for a part of this prompt."""
        with self._lock:
            if not self._open:
                return None
            for chunk in range(prompt.chunks):
                begun = self._open.pop(prompt.digest(chunk), None)
                if begun is not None:
                    return TakenLoad(begun, chunk)
        return None


class Measuring:
    """Measures stores now and then.

    Args:
        memory, pending: Of the cache.
        background: Does steps, some time.
    """

    def __init__(
        self,
        memory: Memory,
        pending: PendingLoads,
        background: Callable[[Steps[object]], object],
    ) -> None:
        self._memory = memory
        self._pending = pending
        self._background = background

    def measure(self, tier: Tier, prompt: Prompt, start: int) -> None:
        """Have a little of a prompt loaded in the background, if that is due."""
        if tier.to_be_measured():
            self._background(self._load_a_little(tier, prompt, start))

    def _load_a_little(self, tier: Tier, prompt: Prompt, start: int) -> Steps[None]:
        """Load some of a prompt into memory; what is short is loaded again, for nobody.

        TCP begins slowly on each connection, and some connections remember how fast they were: the
        first loads say little of later ones. Prompts of 8 MB at 50 ms took 0.5 s and then 0.1 s.
        """
        now = time.monotonic()
        patient = WaitBudget(prompt.tokens, 0, PrefillModel(), now, now + _MEASURE_S_MAX)
        asked = yield from tier.send(prompt, start, patient.deadline, touch=False)
        there = (yield from tier.answer(asked)).end
        end = min(there, start + max(1, _MEASURE_BYTES // tier.chunk_bytes))
        if end <= start:
            return
        size_bytes, direct = (end - start) * tier.chunk_bytes, None
        for _ in range(min(_MEASURE_LOADS_MAX, max(1, _MEASURE_BYTES // size_bytes))):
            load = Load(self._memory, prompt, patient, self._pending, direct=direct)
            load.begin([Wanted(tier, start, end)])
            with tier.loading(prompt, start, end):
                loaded = yield from load.finishing()
            if loaded.reason or not tier.lets_go:
                return
            if time.monotonic() + loaded.took_s > patient.deadline:
                return
            if direct is None:
                direct = [bytearray(tier.chunk_bytes if at >= start else 0) for at in range(end)]
