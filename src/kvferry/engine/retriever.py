"""Bringing a prefix together: what memory has, what others are bringing, what stores offer.

A round of `retrieve` looks into memory; waits for chunks that somebody else is storing or loading
already (so ten requests for one prefix load it once); asks the stores for what follows; lets the
cost model choose; and loads. Rounds end when everything is there, when nobody offers more, or when
waiting longer would cost more than computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from kvferry.connectors.base import BufferLike
from kvferry.engine.cost import Budget, Decision, Offer, PrefillModel, decide
from kvferry.engine.leftovers import Leftovers
from kvferry.engine.loader import Load, Loaded, Wanted
from kvferry.engine.memory import Memory, PagesGone
from kvferry.engine.prompt import Prompt
from kvferry.engine.tier import Tier

__all__ = ["Gathered", "Plan", "Retriever"]

# Each round either brings chunks or waits for somebody who does; more of them are not needed.
_ROUNDS_MAX = 8
# What a measurement in the background loads, and how long it may take.
_MEASURE_BYTES = 8 << 20
_MEASURE_S = 5.0


@dataclass
class Plan:
    """What stores offer behind a prefix that is there, and what of it to load.

    Attributes:
        wanted: What to load, in order.
        offers: What there would be.
        decision: The choice, with its numbers.
        reason: Why it is not the whole prompt.
    """

    wanted: list[Wanted]
    offers: list[Offer]
    decision: Decision
    reason: str


@dataclass
class Gathered:
    """What a retrieve did; see `kvferry.engine.results.Retrieved`.

    Attributes:
        memory_chunks: Leading chunks that were in memory when it began.
        waited: Whether it waited for somebody else's chunks.
        chunks: How many chunks each tier gave.
        copied: A flag for each chunk: it lies in the caller's buffer.
        loads: What came of each load.
    """

    memory_chunks: int
    copied: bytearray
    waited: bool = False
    chunks: dict[str, int] = field(default_factory=dict)
    plan: Plan | None = None
    reason: str = ""
    lookup_s: float = 0.0
    load_s: float = 0.0
    loads: list[Loaded] = field(default_factory=list)


class Retriever:
    """The machinery of `Engine.retrieve`, `lookup` and `prefetch`.

    Args:
        memory, tiers: Where chunks may be, the stores in the order in which they are asked.
        prefill: How fast the engine computes; if it knows nothing, whatever is there is loaded.
        lookup_timeout_s: Limit for asking stores.
        copy_threads: Threads that copy from memory into buffers.
        background: Runs a function in a thread, some time.
    """

    def __init__(
        self,
        memory: Memory,
        tiers: Sequence[Tier],
        prefill: PrefillModel,
        lookup_timeout_s: float,
        copy_threads: int,
        background: Callable[..., object],
    ) -> None:
        self._memory = memory
        self._tiers = tiers
        self._prefill = prefill
        self._lookup_timeout_s = lookup_timeout_s
        self.copy_threads = copy_threads
        self._background = background
        self.leftovers = Leftovers(memory)

    def gather(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Gathered:
        """Bring as much of the prompt as pays into memory, or into the buffers."""
        began = time.monotonic()
        self.leftovers.sweep()
        held, coming = self._memory.ready(prompt)
        gathered = Gathered(held, bytearray(prompt.chunks))
        budget = Budget(prompt.tokens, held * prompt.chunk_size, self._prefill, began, deadline)
        for _ in range(_ROUNDS_MAX):
            if held == prompt.chunks:
                gathered.reason = ""
                break
            if coming:
                gathered.waited = True
                limit = budget.until(held * prompt.chunk_size)
                came = self._memory.await_more(prompt, held, limit, self.leftovers.sweep)
                # Those that do not come after all, we can perhaps have ourselves.
                if not came and time.monotonic() >= limit:
                    gathered.reason = "deadline" if limit >= deadline else "cut"
                    break
            elif not self._round(prompt, held, budget, gathered, into):
                break
            held, coming = self._memory.ready(prompt)
        return gathered

    def plan(self, prompt: Prompt, held: int, budget: Budget) -> Plan:
        """Ask the stores for what follows the first `held` chunks, and choose."""
        size = prompt.chunk_size
        limit = time.monotonic() + self._lookup_timeout_s
        wanted: list[Wanted] = []
        offers: list[Offer] = []
        start, reason, more = held, "never_stored", True
        while more and start < prompt.chunks:
            more = False  # a store that was asked may go on where another one ends
            for tier in self._tiers:
                waited_s = time.monotonic() - budget.began
                expected_s = waited_s + 2 * tier.question_s()
                until = budget.until(start * size)
                if tier.measured:
                    end_s = expected_s + tier.predict_s(prompt.chunks - start)
                    until = budget.until(start * size, expected_s, end_s)
                if budget.began + expected_s > until:  # an answer, and the first bytes
                    reason = "not_worth_loading"
                    self._measure(tier, prompt, start)
                    continue
                until = min(limit, until)
                probe = tier.probe(prompt, start, until)
                if probe.end > start:
                    load_s = tier.predict_s(probe.end - start)
                    offers.append(Offer(tier.name, start * size, probe.end * size, load_s))
                    wanted.append(Wanted(tier, start, probe.end))
                    start, more = probe.end, len(self._tiers) > 1
                reason = probe.reason
                if reason == "deadline":
                    self._measure(tier, prompt, start)
                if start == prompt.chunks:
                    break
        decision = decide(prompt.tokens, held * size, offers, self._prefill)
        goal = decision.tokens // size
        if goal < start:
            reason = "not_worth_loading"
            for piece in wanted:
                if piece.end > goal:
                    self._measure(piece.tier, prompt, max(piece.start, goal))
            wanted = [
                Wanted(piece.tier, piece.start, min(piece.end, goal))
                for piece in wanted
                if piece.start < goal
            ]
        return Plan(wanted, offers, decision, reason)

    def _round(
        self,
        prompt: Prompt,
        held: int,
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> bool:
        """Ask and load once; whether another round could bring more."""
        began = time.monotonic()
        plan = self.plan(prompt, held, budget)
        gathered.lookup_s += time.monotonic() - began
        gathered.plan = gathered.plan or plan
        gathered.reason = plan.reason
        if not plan.wanted:
            return False

        def copy(chunks: Sequence[int], handles: Sequence[int]) -> None:
            assert into is not None
            if handles:  # else they are there already
                buffers = [into[chunk] for chunk in chunks]
                try:
                    self._memory.copy_out(handles, buffers, self.copy_threads)
                except PagesGone:
                    return
            for chunk in chunks:
                gathered.copied[chunk] = 1

        arrived = copy if into is not None else None
        load = Load(self._memory, prompt, budget, self.leftovers, arrived)
        if not load.begin(plan.wanted):
            if load.reason == "pool_full" and into is not None:
                return self._direct(prompt, plan.wanted, budget, gathered, into, copy)
            gathered.reason = load.reason or gathered.reason
            return not load.reason  # others are loading all of it
        loaded = self._finish(prompt, load, plan.wanted, gathered)
        if loaded.reason == "pool_full" and into is not None:
            rest = [
                Wanted(piece.tier, max(piece.start, loaded.end), piece.end)
                for piece in plan.wanted
                if piece.end > loaded.end
            ]
            return self._direct(prompt, rest, budget, gathered, into, copy)
        return not loaded.reason

    def _finish(
        self, prompt: Prompt, load: Load, wanted: Sequence[Wanted], gathered: Gathered
    ) -> Loaded:
        with ExitStack() as stack:
            for piece in wanted:
                stack.enter_context(piece.tier.loading(prompt, piece.start, piece.end))
            loaded = load.finish()
        if loaded.reason == "cut":
            for piece in wanted:
                self._measure(piece.tier, prompt, loaded.end)
        gathered.load_s += loaded.took_s
        gathered.loads.append(loaded)
        gathered.reason = loaded.reason or gathered.reason
        for tier, chunks in loaded.chunks.items():
            gathered.chunks[tier] = gathered.chunks.get(tier, 0) + chunks
        return loaded

    def _direct(
        self,
        prompt: Prompt,
        wanted: Sequence[Wanted],
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike],
        arrived: Callable[[Sequence[int], Sequence[int]], None],
    ) -> bool:
        """Load into the caller's buffers what memory has no page for."""
        usable = []
        for piece in wanted:
            if not piece.tier.lets_go:
                break
            usable.append(piece)
        if usable:
            load = Load(self._memory, prompt, budget, self.leftovers, arrived, direct=into)
            load.begin(usable)
            loaded = self._finish(prompt, load, usable, gathered)
            if not loaded.reason:
                gathered.reason = gathered.plan.reason if gathered.plan else ""
        return False

    def _measure(self, tier: Tier, prompt: Prompt, start: int) -> None:
        """Have a little loaded in the background: a store that is not used teaches nothing."""
        if tier.to_be_measured():
            self._background(self._load_a_little, tier, prompt, start)

    def _load_a_little(self, tier: Tier, prompt: Prompt, start: int) -> None:
        now = time.monotonic()
        patient = Budget(prompt.tokens, 0, PrefillModel(), now, now + _MEASURE_S)
        end = min(
            tier.probe(prompt, start, patient.deadline, touch=False).end,
            start + max(1, _MEASURE_BYTES // tier.chunk_bytes),
        )
        if end > start:
            load = Load(self._memory, prompt, patient, self.leftovers)
            load.begin([Wanted(tier, start, end)])
            load.finish()
