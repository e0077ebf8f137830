"""Loads that nobody waits for: a store that is not used teaches nothing about its speed.

Threads: any; the loads are done where `background` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from kvferry.cache.cost import Budget
from kvferry.cache.loader import Load
from kvferry.cache.memory import Memory
from kvferry.cache.parts import Wanted
from kvferry.cache.pending import PendingLoads
from kvferry.cache.prefill import PrefillModel
from kvferry.cache.prompt import Prompt
from kvferry.cache.steps import Steps
from kvferry.cache.tier import Tier

__all__ = ["Measuring"]

# What a measurement loads, and how long it may take: where TCP begins slowly, little says little.
_BYTES = 32 << 20
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
        now = time.monotonic()
        patient = Budget(prompt.tokens, 0, PrefillModel(), now, now + _LIMIT_S)
        asked = yield from tier.send(prompt, start, patient.deadline, touch=False)
        there = (yield from tier.answer(asked)).end
        end = min(there, start + max(1, _BYTES // tier.chunk_bytes))
        if end > start:
            load = Load(self._memory, prompt, patient, self._pending)
            load.begin([Wanted(tier, start, end)])
            yield from load.finishing()
