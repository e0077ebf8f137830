"""How often a running load is looked at: seldom, where many wait at a time."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Any, cast

import pytest

from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.loader import Load, Part, RunningLoads
from kvferry.cache.load.wait_budget import NOTHING_KNOWN, Flow, RunningLoad, WaitBudget
from kvferry.cache.load.window import PendingLoads
from kvferry.cache.memory import Memory, Reserved
from kvferry.cache.steps import finish
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import read_prompt
from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Ticket
from support.engines import CHUNK, LAYOUT, MIB, memory_store, prompt


class Looks:
    """A ticket that is done after some looks; how long each of them would have waited."""

    prefix_len = 0

    def __init__(self) -> None:
        self.limits: list[float] = []

    def wait(self, timeout_s: float) -> BatchResult | None:
        self.limits.append(timeout_s)
        return BatchResult(b"\0", [1], 0.0, None) if len(self.limits) == 3 else None


KNOWN, UNKNOWN = PrefillModel(1e6, 1e6, 0.0, fixed=True), PrefillModel()


@pytest.mark.parametrize(
    ("prefill", "waiting", "look_s"),
    [
        *((KNOWN, *each) for each in ((1, 0.02), (4, 0.02), (8, 0.04), (1000, 0.05))),
        # Nothing is cut there: those who wait need no processor.
        *((UNKNOWN, *each) for each in ((1, 0.05), (4, 0.05), (8, 0.1), (1000, 0.5))),
    ],
)
def test_many_loads_are_looked_at_less_often(
    prefill: PrefillModel, waiting: int, look_s: float
) -> None:
    running = RunningLoads()
    memory = Memory.private(LAYOUT.chunk_bytes, MIB, "LRU", hugetlb=False, prefault=False)
    tokens = read_prompt(prompt(CHUNK), CHUNK, b"")
    now = time.monotonic()
    budget = WaitBudget(CHUNK, 0, prefill, now, now + 1e6)
    with memory_store("looks") as connector:
        tier = Tier("looks", connector, LAYOUT.chunk_bytes)
        load: Any = Load(memory, tokens, budget, PendingLoads(), running=running)
        looks = Looks()
        part = Part(tier, 1, Reserved(0, [0], [], 0), cast("Ticket", looks))
        load._run, load._start = RunningLoad(tier, Flow({}, now), NOTHING_KNOWN), 0
        load._parts.append(part)
        load._asked = 1
        with ExitStack() as others:
            for _ in range(waiting):
                others.enter_context(running.waiting(object()))
            assert finish(load._await(part)) is not None
    assert looks.limits == [pytest.approx(look_s)] * 3
