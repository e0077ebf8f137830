"""Loads that nobody waits for: a store that is not used teaches nothing about its speed.

Threads: any; the loads are done where `background` has it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from kvferry.cache.cost import Budget
from kvferry.cache.loader import Load
from kvferry.cache.memory import Memory
from kvferry.cache.parts import Wanted
from kvferry.cache.pending import PendingLoads
from kvferry.cache.prefill import PrefillModel
from kvferry.cache.prompt import Prompt
from kvferry.cache.steps import Steps, Wait
from kvferry.cache.tier import Tier
from kvferry.errors import KVFerryError

__all__ = ["Measuring"]

# What a measurement loads at least and at most, and in between as much as flows in some time. It is
# read once before that: TCP begins slowly where nothing was loaded of late.
_BYTES, _BYTES_MAX, _FLOW_S = 4 << 20, 16 << 20, 0.5
_LIMIT_S = 5.0
# Nothing of that is cut, so it counts for more than what went before.
_TRUST = 0.8


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
        size_bytes = int(min(max(_BYTES, tier.bandwidth_bytes_s * _FLOW_S), _BYTES_MAX))
        end = min(there, start + max(1, size_bytes // tier.chunk_bytes))
        if end > start and (yield from self._warm_up(tier, prompt.keys(start, end))):
            load = Load(self._memory, prompt, patient, self._pending, trust=_TRUST)
            load.begin([Wanted(tier, start, end)])
            yield from load.finishing()

    def _warm_up(self, tier: Tier, names: list[str]) -> Steps[bool]:
        """Have TCP leave its slow start, with values that go nowhere; False: they did not come."""
        buffers = [bytearray(tier.chunk_bytes) for _ in names]
        with suppress(KVFerryError):  # it has too much to do, or was closed
            ticket = tier.connector.submit_get(names, buffers, prefix=True, timeout_s=_LIMIT_S)
            if (yield Wait(ticket, _LIMIT_S)) is not None:
                return True
            ticket.cancel()
            self._pending.add(ticket, lambda _: None)
        return False
