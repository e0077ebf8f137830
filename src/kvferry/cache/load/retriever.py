"""Bringing a prefix together: what memory has, what others are bringing, what stores offer.

A round of `retrieve` looks into memory; waits for chunks that somebody else is storing or loading
already (so ten requests for one prefix load it once); asks the stores for what follows; lets the
cost model choose; and loads. Rounds end when everything is there, when nobody offers more, or when
waiting longer would cost more than computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress

from kvferry.base.errors import KVFerryError
from kvferry.cache.cost.load_or_compute import Budget
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.asking import Asking
from kvferry.cache.load.flights import Flights
from kvferry.cache.load.gathered import Gathered, Plan
from kvferry.cache.load.load_parts import Loaded, Wanted
from kvferry.cache.load.loader import SIDE_BY_SIDE, Load
from kvferry.cache.load.lookup_loads import LookupLoad, LookupLoads, TakenLoad
from kvferry.cache.load.planner import Planner
from kvferry.cache.memory import Memory, PagesGone
from kvferry.cache.results import Lookup
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store.store_tiers import MEMORY, StoreTier
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.connectors.base import BufferLike

__all__ = ["Gathered", "Plan", "Retriever"]

# Each round either brings chunks or waits for somebody who does; more of them are not needed.
_ROUNDS_MAX = 8
# How long stores are asked where nobody knows how long computing takes.
_UNKNOWN_S = 3.0


class Retriever(Planner):
    """The machinery of `TieredCache.retrieve`, `lookup` and `prefetch`.

    Args:
        memory, stores: Where chunks may be, the stores in the order in which they are asked; more
            may come.
        prefill: How fast the engine computes; if it knows nothing, whatever is there is loaded.
        lookup_timeout_s: Says the limit for asking stores; None: as long as an answer can pay.
        copy_threads: Threads that copy from memory into buffers.
        background: Does steps, some time.
        named: Stores that are asked for this prompt alone.
    """

    def __init__(
        self,
        memory: Memory,
        stores: Sequence[StoreTier],
        prefill: PrefillModel,
        lookup_timeout_s: Callable[[], float | None],
        copy_threads: int,
        background: Callable[[Steps[object]], object],
        named: Callable[[Prompt], Sequence[StoreTier]] = lambda _: (),
    ) -> None:
        super().__init__(memory, stores, prefill, background, named)
        self._lookup_timeout_s = lookup_timeout_s
        self.copy_threads = copy_threads
        self._flights = Flights(memory)
        self._lookup_loads = LookupLoads()
        self._background = background

    def gathering(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Steps[Gathered]:
        """Bring as much of the prompt as pays into memory, or into the buffers."""
        self.pending.sweep()
        held, coming = self._memory.ready(prompt)
        gathered = Gathered(held, bytearray(prompt.chunks))
        with self.budget(prompt, held, deadline) as budget:
            joined = yield from self._join(prompt, held, budget, gathered)
            if joined is not None:
                held, coming = self._memory.ready(prompt)
            if joined is None or not joined.left:
                yield from self._rounds(prompt, held, coming, budget, gathered, into)
            # Who lost by waiting pays for it from the account of all.
            self._close_account(budget, prompt.position(self._memory.ready(prompt)[0]))
        return gathered

    def _join(
        self, prompt: Prompt, held: int, budget: Budget, gathered: Gathered
    ) -> Steps[Loaded | None]:
        """Go on with what a lookup has begun to load; None: it began nothing of this."""
        taken = self._lookup_loads.take(prompt)
        if taken is None or taken.start > held:
            return None
        begun = taken.begun
        begun.place.leave()  # this request has its own now
        if not (yield from self._drive(begun)):
            gathered.waited = True
            # Who drives it knows how long it pays.
            over = self._memory.await_change(lambda: begun.loaded is not None, budget.deadline)
            yield from over
        self._credit(prompt, held, taken, gathered)
        joined = begun.loaded or Loaded(held, "deadline")
        gathered.reason = joined.reason or gathered.reason
        return joined

    def credit(self, prompt: Prompt, gathered: Gathered) -> None:
        """Chunks that are in memory because a lookup began to load them count as loaded."""
        taken = self._lookup_loads.take(prompt)
        if taken is not None:
            self._credit(prompt, gathered.memory_chunks, taken, gathered)

    def _credit(self, prompt: Prompt, held: int, taken: TakenLoad, gathered: Gathered) -> None:
        loaded, start = taken.begun.loaded, taken.start
        if loaded is not None and start <= held and self._memory.ready(prompt)[0] > start:
            gathered.memory_chunks = held - min(held - start, sum(loaded.chunks.values()))
            gathered.plan = taken.begun.plan
            gathered.count(loaded)

    def _drive(self, begun: LookupLoad) -> Steps[bool]:
        """Bring a load to its end that was begun; False: somebody does already."""
        if not begun.claim():
            return False
        load, wanted = begun.load, begun.wanted
        begun.loaded = yield from self._complete(begun.prompt, load, wanted, load.budget)
        begun.place.leave()
        self._memory.announce()
        return True

    def _rounds(
        self,
        prompt: Prompt,
        held: int,
        coming: int,
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> Steps[None]:
        for _ in range(_ROUNDS_MAX):
            if held == prompt.chunks:
                gathered.reason = ""
                break
            if coming:
                gathered.waited = True
                limit = budget.until(prompt.position(held))
                sweep = self.pending.sweep
                came = yield from self._memory.await_more(prompt, held, limit, sweep)
                # Those that do not come after all, we can perhaps have ourselves.
                if not came and time.monotonic() >= limit:
                    gathered.reason = "deadline" if limit >= budget.deadline else "cut"
                    break
            else:
                more = held != gathered.ends
                more = more and (yield from self._round(prompt, held, budget, gathered, into))
                if not more:
                    break
            held, coming = self._memory.ready(prompt)

    def look(
        self, prompt: Prompt, timeout_s: float | None, deadline: float, *, touch: bool
    ) -> Lookup:
        """`looking`, waiting on the spot."""
        return finish(self.looking(prompt, timeout_s, deadline, touch=touch))

    def looking(
        self,
        prompt: Prompt,
        timeout_s: float | None,
        deadline: float,
        *,
        touch: bool,
        begin: bool = False,
    ) -> Steps[Lookup]:
        """What memory and stores have; see `TieredCache.look`."""
        held, coming = self._memory.ready(prompt)
        size, found, goal, reason = prompt.chunk_size, list[Wanted](), held, ""
        if held < prompt.chunks:
            with ExitStack() as stack:
                budget = stack.enter_context(self.budget(prompt, held, deadline))
                room = begin and self._lookup_loads.room(prompt.chunks - held, self._memory.pages)
                reads = room and not coming
                if reads:  # others would read the same
                    reads = stack.enter_context(self._flights.begin(prompt.digest(held)))[1]
                asking = self._asking(prompt, budget, timeout_s, touch=touch)
                stack.enter_context(asking)
                yield from asking.begin(held, reads=reads)
                plan = yield from self.plan(prompt, held, budget, asking)
                found, reason = plan.found, plan.reason
                if plan.wanted:
                    goal = plan.wanted[-1].end
                else:  # else a retrieve follows, and its end counts
                    self._close_account(budget, prompt.position(held))
                if reads and plan.wanted:
                    self._begin(prompt, plan, budget, asking)
        tiers = {MEMORY: held * size, **{tier.name: 0 for tier in self._tiers(prompt)}}
        for piece in found:
            tiers[piece.tier.name] += (piece.end - piece.start) * size
        return Lookup(
            tokens=(found[-1].end if found else held) * size,
            tiers=tiers,
            arriving_tokens=coming * size,
            worth_tokens=goal * size,
            reason=reason if goal < prompt.chunks else "",
        )

    def _begin(self, prompt: Prompt, plan: Plan, budget: Budget, asking: Asking) -> None:
        """Begin to load, for the retrieve that follows."""
        place = budget.place
        assert place is not None
        load = Load(self._memory, prompt, budget, self.pending)
        first = plan.wanted[0]
        if not load.begin(plan.wanted, asking.take(first.tier, first.start)):
            return
        begun = LookupLoad(prompt, plan, load, place)
        place.kept = True
        self._lookup_loads.add(begun)
        with suppress(KVFerryError):  # it is being closed
            self._background(self._drive(begun))

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
        if tier.sees or tier.pages_on_demand:  # the reads are the question
            load_s, first_s = load_s - question_s, first_s - question_s
        tokens, goal = prompt.position(start), prompt.position(prompt.chunks)
        until = budget.question(tokens, goal, tier.wins, question_s, load_s, first_s)
        if now + question_s >= until:
            if load_s >= budget.gain_s(tokens, goal, 0.0):
                self.loss_warnings.load(tier, "slow", count, budget, tokens)
            if load_s < budget.rest_s(tokens):  # what it has is worth knowing, for the next ones
                tier.ask(prompt, start)
            return budget.began, "not_worth_loading"
        return until if limit_s is None else min(until, now + limit_s), ""

    def _round(
        self,
        prompt: Prompt,
        held: int,
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> Steps[bool]:
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
                until = budget.until(prompt.position(held))
                over = yield from self._flights.wait(flight, until, budget.deadline)
                gathered.reason = flight.missed or ("" if over else "deadline")
                return not gathered.reason
            with self._asking(prompt, budget) as asking:
                yield from asking.begin(held, reads=not gathered.plain)
                flight.until = asking.until
                plan = yield from self.plan(prompt, held, budget, asking)
                gathered.lookup_s += time.monotonic() - began
                gathered.plan = gathered.plan or plan
                gathered.reason = plan.reason
                if not plan.wanted:
                    flight.missed = plan.reason if plan.reason == "never_stored" else ""
                    return False
                load = Load(self._memory, prompt, budget, self.pending, arrived)
                window = asking.take(plan.wanted[0].tier, plan.wanted[0].start)
                begun = load.begin(plan.wanted, window)
        gathered.plain |= load.again
        if not begun:
            if load.reason == "pool_full" and into is not None:
                wanted = plan.wanted
                return (yield from self._direct(prompt, wanted, budget, gathered, into, copy))
            gathered.reason = load.reason or gathered.reason
            return not load.reason  # others are loading all of it
        loaded = yield from self._finish(prompt, load, plan.wanted, budget, gathered)
        if loaded.reason == "pool_full" and into is not None:
            rest = [
                Wanted(piece.tier, max(piece.start, loaded.end), piece.end)
                for piece in plan.wanted
                if piece.end > loaded.end
            ]
            return (yield from self._direct(prompt, rest, budget, gathered, into, copy))
        gathered.ends = plan.wanted[-1].end
        return not loaded.reason

    def _finish(
        self,
        prompt: Prompt,
        load: Load,
        wanted: Sequence[Wanted],
        budget: Budget,
        gathered: Gathered,
    ) -> Steps[Loaded]:
        loaded = yield from self._complete(prompt, load, wanted, budget)
        gathered.count(loaded)
        return loaded

    def _complete(
        self, prompt: Prompt, load: Load, wanted: Sequence[Wanted], budget: Budget
    ) -> Steps[Loaded]:
        """Bring a load to its end."""
        with ExitStack() as stack:
            for piece in wanted:
                stack.enter_context(piece.tier.loading(prompt, piece.start, piece.end))
            loaded = yield from load.finishing()
        outcome = loaded.reason if loaded.left else ""
        first = wanted[0]
        count, tokens = wanted[-1].end - first.start, prompt.position(first.start)
        if outcome or not loaded.reason:
            self.loss_warnings.load(first.tier, outcome, count, budget, tokens)
        if loaded.reason == "cut":
            for piece in wanted:
                self._measure(piece.tier, prompt, loaded.end)
        for piece in wanted:
            piece.tier.known.add(prompt, range(piece.start, min(piece.end, loaded.end)))
        return loaded

    def _direct(
        self,
        prompt: Prompt,
        wanted: Sequence[Wanted],
        budget: Budget,
        gathered: Gathered,
        into: Sequence[BufferLike],
        arrived: Callable[[Sequence[int], Sequence[int]], None],
    ) -> Steps[bool]:
        """Load into the caller's buffers what memory has no page for."""
        usable = []
        for piece in wanted:
            if not piece.tier.lets_go:
                break
            usable.append(piece)
        if usable:
            load = Load(self._memory, prompt, budget, self.pending, arrived, direct=into)
            load.begin(usable)
            loaded = yield from self._finish(prompt, load, usable, budget, gathered)
            if not loaded.reason:
                gathered.reason = gathered.plan.reason if gathered.plan else ""
        return False
