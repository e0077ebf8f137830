"""Loads that nobody waits for: a store that is not used teaches nothing about its speed.

Threads: any; the loads are done where `background` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.cache.cost.load_or_compute import Budget
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.load_parts import Wanted
from kvferry.cache.load.loader import Load
from kvferry.cache.load.pending import PendingLoads
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt

__all__ = ["Measuring"]

# What a measurement loads, in how many loads, and how long it may take.
_BYTES = 32 << 20
_LOADS_MAX = 4
_LIMIT_S = 5.0


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
        """Have a little loaded in the background, if that is due."""
        if tier.to_be_measured():
            self._background(self._load_a_little(tier, prompt, start))

    def _load_a_little(self, tier: Tier, prompt: Prompt, start: int) -> Steps[None]:
        """Load some of a prompt into memory, and again, for nobody, what is short.

        TCP begins slowly on each connection, and some remember how fast they were: the first loads
        say little of those that follow. Prompts of 8 MB at 50 ms took 0.5 s and then 0.1 s.
        """
        now = time.monotonic()
        patient = Budget(prompt.tokens, 0, PrefillModel(), now, now + _LIMIT_S)
        asked = yield from tier.send(prompt, start, patient.deadline, touch=False)
        there = (yield from tier.answer(asked)).end
        end = min(there, start + max(1, _BYTES // tier.chunk_bytes))
        if end <= start:
            return
        size_bytes, direct = (end - start) * tier.chunk_bytes, None
        for _ in range(min(_LOADS_MAX, max(1, _BYTES // size_bytes))):
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
