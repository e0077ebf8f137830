"""Bringing a prefix together: what memory has, what others are bringing, what stores offer.

A round of `retrieve` looks into memory; waits for chunks that somebody else is storing or loading
already (so ten requests for one prefix load it once); asks the stores for what follows; lets the
cost model choose; and loads. Rounds end when everything is there, when nobody offers more, or when
waiting longer would cost more than computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from kvferry.connectors.base import BufferLike
from kvferry.engine.answers import Probe
from kvferry.engine.asking import Asking
from kvferry.engine.cost import Budget, Decision, Offer, decide
from kvferry.engine.flights import Flights
from kvferry.engine.gathered import Gathered, Plan
from kvferry.engine.leftovers import Leftovers
from kvferry.engine.loader import SIDE_BY_SIDE, Load
from kvferry.engine.losing import Losing
from kvferry.engine.measuring import Measuring
from kvferry.engine.memory import Memory, PagesGone
from kvferry.engine.parts import Loaded, Wanted
from kvferry.engine.patience import Account
from kvferry.engine.prefill import PrefillModel
from kvferry.engine.prompt import Prompt
from kvferry.engine.results import Lookup
from kvferry.engine.store_tiers import MEMORY, StoreTier
from kvferry.engine.tier import Tier

__all__ = ["Gathered", "Plan", "Retriever"]

# Each round either brings chunks or waits for somebody who does; more of them are not needed.
_ROUNDS_MAX = 8
# How long stores are asked where nobody knows how long computing takes.
_UNKNOWN_S = 3.0


class Retriever:
    """The machinery of `Engine.retrieve`, `lookup` and `prefetch`.

    Args:
        memory, stores: Where chunks may be, the stores in the order in which they are asked; more
            may come.
        prefill: How fast the engine computes; if it knows nothing, whatever is there is loaded.
        lookup_timeout_s: Says the limit for asking stores; None: as long as an answer can pay.
        copy_threads: Threads that copy from memory into buffers.
        background: Runs a function in a thread, some time.
    """

    def __init__(
        self,
        memory: Memory,
        stores: Sequence[StoreTier],
        prefill: PrefillModel,
        lookup_timeout_s: Callable[[], float | None],
        copy_threads: int,
        background: Callable[..., object],
    ) -> None:
        self._memory = memory
        self._stores = stores
        self._prefill = prefill
        self._lookup_timeout_s = lookup_timeout_s
        self.copy_threads = copy_threads
        self.account = Account()
        self.losing = Losing()
        self.leftovers = Leftovers(memory)
        self._flights = Flights(memory)
        self._measure = Measuring(memory, self.leftovers, background).measure

    @property
    def _tiers(self) -> list[Tier]:
        return [store.tier for store in self._stores]

    def gather(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Gathered:
        """Bring as much of the prompt as pays into memory, or into the buffers."""
        self.leftovers.sweep()
        held, coming = self._memory.ready(prompt)
        gathered = Gathered(held, bytearray(prompt.chunks))
        with self.budget(prompt, held, deadline) as budget:
            self._rounds(prompt, held, coming, budget, gathered, into)
            # Who lost by waiting pays for it from the account of all.
            self._settle(budget, prompt.position(self._memory.ready(prompt)[0]))
        return gathered

    @contextmanager
    def budget(self, prompt: Prompt, held: int, deadline: float) -> Iterator[Budget]:
        """What a request may wait that has so many chunks; what it is lent comes back."""
        prefill = self._prefill
        tokens, began = prompt.position(held), time.monotonic()
        queued_s = prefill.total_s(*prompt.queued) if prefill.known else 0.0
        if prompt.queued_at:
            queued_s = max(0.0, queued_s - (began - prompt.queued_at))
        base_s = queued_s + prefill.predict_s(prompt.tokens, tokens) if prefill.known else 0.0
        allowance_s, lent_s = self.account.open(base_s)
        try:
            yield Budget(prompt.tokens, tokens, prefill, began, deadline, queued_s, allowance_s)
        finally:
            self.account.settle(0.0, 0.0, lent_s)

    def _settle(self, budget: Budget, tokens: int) -> None:
        if budget.prefill.known and budget.recompute_s > budget.queued_s:
            regret_s = budget.regret_s(tokens, time.monotonic())
            self.account.settle(budget.recompute_s, regret_s, 0.0)

    def _rounds(
        self,
        prompt: Prompt,
        held: int,
        coming: int,
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> None:
        for _ in range(_ROUNDS_MAX):
            if held == prompt.chunks:
                gathered.reason = ""
                break
            if coming:
                gathered.waited = True
                limit = budget.until(prompt.position(held))
                came = self._memory.await_more(prompt, held, limit, self.leftovers.sweep)
                # Those that do not come after all, we can perhaps have ourselves.
                if not came and time.monotonic() >= limit:
                    gathered.reason = "deadline" if limit >= budget.deadline else "cut"
                    break
            elif held == gathered.ends or not self._round(prompt, held, budget, gathered, into):
                break
            held, coming = self._memory.ready(prompt)

    def look(
        self, prompt: Prompt, timeout_s: float | None, deadline: float, *, touch: bool
    ) -> Lookup:
        """What memory and stores have; see `Engine.look`."""
        held, coming = self._memory.ready(prompt)
        size, began = prompt.chunk_size, time.monotonic()
        tiers = {MEMORY: held * size, **{tier.name: 0 for tier in self._tiers}}
        start, offers, ends = held, list[Offer](), list[int]()
        with self.budget(prompt, held, deadline) as budget:
            for tier in self._tiers if start < prompt.chunks else ():
                if timeout_s is not None:
                    until, declined = began + timeout_s, ""
                else:
                    until, declined = self._patience(tier, prompt, start, budget)
                if declined:
                    self._measure(tier, prompt, start)
                    continue
                end = tier.probe(prompt, start, until, touch=touch).end
                if end > start:
                    tiers[tier.name] = (end - start) * size
                    offers.append(self._offer(tier, prompt, start, end))
                    ends.append(end)
                    start = end
                if start == prompt.chunks:
                    break
            goal = self._goal(held, ends, self._decide(prompt, held, offers, budget))
            if goal == held:  # else a retrieve follows, and its end counts
                self._settle(budget, prompt.position(held))
            self._declined(prompt, held, offers, goal, budget)
        return Lookup(
            tokens=start * size,
            tiers=tiers,
            arriving_tokens=coming * size,
            worth_tokens=goal * size,
        )

    def _asking(self, prompt: Prompt, budget: Budget) -> Asking:
        """Asks the stores for as long as an answer can pay."""

        def patience(tier: Tier, start: int) -> tuple[float, str]:
            until, declined = self._patience(tier, prompt, start, budget)
            if declined:
                self._measure(tier, prompt, start)
            return until, declined

        tiers = self._tiers
        return Asking(self._memory, self.leftovers, tiers, prompt, patience, budget.deadline)

    def plan(self, prompt: Prompt, held: int, budget: Budget, asking: Asking) -> Plan:
        """Choose of what the stores have behind the first `held` chunks."""
        wanted: list[Wanted] = []
        offers: list[Offer] = []
        start, reason, more = held, "never_stored", True
        while more and start < prompt.chunks:
            more = False  # a store that was asked may go on where another one ends
            for tier in list(asking.tiers):
                probe = asking.about(tier, start)
                if not isinstance(probe, Probe):
                    reason = probe
                    continue
                if probe.end > start:
                    flows = asking.window is not None and asking.window.tier is tier
                    offers.append(self._offer(tier, prompt, start, probe.end, flows=flows))
                    wanted.append(Wanted(tier, start, probe.end))
                    start, more = probe.end, len(self._tiers) > 1
                reason = probe.reason
                if reason == "deadline":
                    self._measure(tier, prompt, start)
                if start == prompt.chunks:
                    break
        decision = self._decide(prompt, held, offers, budget)
        goal = self._goal(held, [piece.end for piece in wanted], decision)
        self._declined(prompt, held, offers, goal, budget)
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

    # --- What pays ---

    def _patience(
        self, tier: Tier, prompt: Prompt, start: int, budget: Budget
    ) -> tuple[float, str]:
        """Until when to wait for what a store has behind `start`, and why not at all."""
        now, limit_s = time.monotonic(), self._lookup_timeout_s()
        if not self._prefill.known:
            return min(budget.deadline, now + (limit_s or _UNKNOWN_S)), ""
        count = prompt.chunks - start
        load_s, first_s = tier.predict_s(count), tier.predict_s(min(SIDE_BY_SIDE, count))
        question_s = tier.question_s() if tier.asked else 0.0
        if tier.sees or tier.lands:  # the reads are the question
            load_s, first_s = load_s - question_s, first_s - question_s
        tokens, goal = prompt.position(start), prompt.position(prompt.chunks)
        until = budget.question(tokens, goal, tier.wins, question_s, load_s, first_s)
        if now + question_s >= until:
            if load_s >= budget.gain_s(tokens, goal, 0.0):
                self.losing.load(tier, "slow", count, budget, tokens)
            if load_s < budget.rest_s(tokens):  # what it has is worth knowing, for the next ones
                tier.ask(prompt, start)
            return budget.began, "not_worth_loading"
        return until if limit_s is None else min(until, now + limit_s), ""

    def _offer(
        self, tier: Tier, prompt: Prompt, start: int, end: int, *, flows: bool = False
    ) -> Offer:
        load_s = tier.predict_s(end - start)
        if flows:  # its first bytes are here by now
            load_s = max(0.0, load_s - tier.question_s())
        return Offer(tier.name, prompt.position(start), prompt.position(end), load_s)

    def _decide(
        self, prompt: Prompt, held: int, offers: Sequence[Offer], budget: Budget
    ) -> Decision:
        waited_s = time.monotonic() - budget.began
        how = {"queued_s": budget.queued_s, "waited_s": waited_s}
        return decide(prompt.tokens, prompt.position(held), offers, self._prefill, **how)

    def _declined(
        self, prompt: Prompt, held: int, offers: Sequence[Offer], goal: int, budget: Budget
    ) -> None:
        """Note that what a store has is left there, if it is."""
        if offers and goal == held:
            tier = next(tier for tier in self._tiers if tier.name == offers[0].store)
            self.losing.load(tier, "slow", prompt.chunks - held, budget, prompt.position(held))

    @staticmethod
    def _goal(held: int, ends: Sequence[int], decision: Decision) -> int:
        """The chunk where what was chosen ends, of offers that end there."""
        if not ends or decision.reason == "memory_only":
            return held
        return ends[-1] if decision.part is None else ends[decision.part]

    def _round(
        self,
        prompt: Prompt,
        held: int,
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> bool:
        """Ask and load once; whether another round could bring more."""

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
        digest, began = prompt.digest(held), time.monotonic()
        with self._flights.begin(digest) as (flight, ours):
            if not ours:
                gathered.waited = True
                landed = self._flights.wait(flight, budget.until(prompt.position(held)))
                gathered.reason = flight.missed or ("" if landed else "deadline")
                return not gathered.reason
            with self._asking(prompt, budget) as asking:
                asking.begin(held, reads=not gathered.plain)
                plan = self.plan(prompt, held, budget, asking)
                gathered.lookup_s += time.monotonic() - began
                gathered.plan = gathered.plan or plan
                gathered.reason = plan.reason
                if not plan.wanted:
                    flight.missed = plan.reason if plan.reason == "never_stored" else ""
                    return False
                load = Load(self._memory, prompt, budget, self.leftovers, arrived)
                window = asking.take(plan.wanted[0].tier, plan.wanted[0].start)
                begun = load.begin(plan.wanted, window)
        gathered.plain |= load.again
        if not begun:
            if load.reason == "pool_full" and into is not None:
                return self._direct(prompt, plan.wanted, budget, gathered, into, copy)
            gathered.reason = load.reason or gathered.reason
            return not load.reason  # others are loading all of it
        loaded = self._finish(prompt, load, plan.wanted, budget, gathered)
        if loaded.reason == "pool_full" and into is not None:
            rest = [
                Wanted(piece.tier, max(piece.start, loaded.end), piece.end)
                for piece in plan.wanted
                if piece.end > loaded.end
            ]
            return self._direct(prompt, rest, budget, gathered, into, copy)
        gathered.plain |= loaded.again
        gathered.ends = plan.wanted[-1].end
        return not loaded.reason

    def _finish(
        self,
        prompt: Prompt,
        load: Load,
        wanted: Sequence[Wanted],
        budget: Budget,
        gathered: Gathered,
    ) -> Loaded:
        with ExitStack() as stack:
            for piece in wanted:
                stack.enter_context(piece.tier.loading(prompt, piece.start, piece.end))
            loaded = load.finish()
        outcome = loaded.reason if loaded.reason in ("cut", "deadline") else ""
        first = wanted[0]
        count, tokens = wanted[-1].end - first.start, prompt.position(first.start)
        if outcome or not loaded.reason:
            self.losing.load(first.tier, outcome, count, budget, tokens)
        if loaded.reason == "cut":
            for piece in wanted:
                self._measure(piece.tier, prompt, loaded.end)
        gathered.load_s += loaded.took_s
        gathered.loads.append(loaded)
        gathered.reason = loaded.reason or gathered.reason
        for piece in wanted:
            piece.tier.known.add(prompt, range(piece.start, min(piece.end, loaded.end)))
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
            loaded = self._finish(prompt, load, usable, budget, gathered)
            if not loaded.reason:
                gathered.reason = gathered.plan.reason if gathered.plan else ""
        return False
