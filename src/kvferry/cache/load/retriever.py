"""Bringing a prefix together: what memory has, what others are bringing, what stores offer.

A round of `Retriever.gathering` looks into memory; waits for chunks that somebody else is storing
or loading already (so ten requests for one prefix load it once); asks the stores for what follows;
lets the cost model choose; and loads. Rounds end when everything is there, when nobody offers more,
or when waiting longer would cost more than computing.

Until when a request waits is said by its `WaitBudget`, for the whole of it.

`LossWarnings` tell people of a store that keeps losing against computing.

Threads: any, of each request one at a time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

from kvferry.base.errors import KVFerryError
from kvferry.cache.cost.load_or_compute import Account, Decision, Together, decide
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.asking import (
    AnswerLimit,
    Asking,
    FoundPrefix,
    Gathered,
    Loaded,
    OpenQuestions,
    Plan,
    Wanted,
)
from kvferry.cache.load.background_loads import LookupLoad, LookupLoads, Measuring, TakenLoad
from kvferry.cache.load.loader import SIDE_BY_SIDE, Load
from kvferry.cache.load.wait_budget import StoreTimes, WaitBudget
from kvferry.cache.load.window import PendingLoads
from kvferry.cache.memory import Memory, PagesGone
from kvferry.cache.results import Lookup
from kvferry.cache.steps import Steps
from kvferry.cache.store.store_tiers import MEMORY, StoreTier
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt
from kvferry.connectors.base import BufferLike

__all__ = ["Gathered", "LossWarnings", "Plan", "Retriever"]

_log = logging.getLogger("kvferry.cache")

# How many loads of a store are remembered, and how many of them have to be lost for a line.
_LOADS, _LOST_MIN = 20, 10
_TELL_EVERY_S = 600.0


class LossWarnings:
    """What became of the loads that a store could have served."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lost: dict[str, deque[str]] = {}
        self._tell_at: dict[str, float] = {}

    def load(self, tier: Tier, outcome: str, chunks: int, compute_s: float) -> None:
        """A load is over, or was left out.

        Args:
            tier: Of which store.
            outcome: "": it was worth it. "cut", "deadline": it was left. "slow": it was left out.
            chunks: How many it was to bring.
            compute_s: What computing the prompt from the first of them on takes.
        """
        now = time.monotonic()
        with self._lock:
            seen = self._lost.setdefault(tier.name, deque(maxlen=_LOADS))
            seen.append(outcome)
            lost = sum(map(bool, seen))
            if lost < _LOST_MIN or now < self._tell_at.get(tier.name, 0.0):
                return
            self._tell_at[tier.name] = now + _TELL_EVERY_S
            how = {word: seen.count(word) for word in ("slow", "cut", "deadline")}
        size_bytes = chunks * tier.chunk_bytes
        figures = tier.figures()
        _log.warning(
            "%s is slower than computing: of the last %d loads, %d were left out, %d were left "
            "because of the time they took and %d met their limit. The last one was of %.1f MB; "
            "the store takes %.0f ms to begin and gives %.1f MB/s, computing takes %.0f ms, so it "
            "pays from %.1f MB/s on",
            *(tier.name, len(seen), how["slow"], how["cut"], how["deadline"], size_bytes / 1e6),
            *(figures["fixed_s"] * 1e3, figures["bandwidth_bytes_s"] / 1e6, compute_s * 1e3),
            size_bytes / max(1e-6, compute_s - figures["fixed_s"]) / 1e6,
        )


# Each round either brings chunks or waits for somebody who does; more of them are not needed.
_ROUNDS_MAX = 8
# How long stores are asked where nobody knows how long computing takes.
_UNKNOWN_S = 3.0


class Retriever:
    """The machinery of `TieredCache.retrieve`, `lookup` and `prefetch`.

    Args:
        memory, stores: Where chunks may be, the stores in the order in which they are asked; more
            may come.
        prefill: How fast the engine computes; if it knows nothing, whatever is there is loaded.
        lookup_timeout_s: Says the limit for asking stores; None: as long as an answer can pay.
        copy_threads: Threads that copy from memory into buffers.
        background: Does steps, some time.
        named: Stores that are asked for this prompt alone.

    Attributes:
        account: What requests may lose.
        pending: Jobs that were cut and have not ended.
        loss_warnings: Tells people of stores that are slower than computing.
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
        self._memory = memory
        self._stores = stores
        self._named = named
        self._prefill = prefill
        self._lookup_timeout_s = lookup_timeout_s
        self.copy_threads = copy_threads
        self._background = background
        self.account, self._together = Account(), Together()
        self.loss_warnings = LossWarnings()
        self.pending = PendingLoads()
        self._measure = Measuring(memory, self.pending, background).measure
        self._questions = OpenQuestions(memory)
        self._lookup_loads = LookupLoads()

    # --- Retrieves ---

    def gathering(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Steps[Gathered]:
        """Bring as much of the prompt as pays into memory, or into the buffers."""
        self.pending.sweep()
        held, coming = self._memory.ready(prompt)
        gathered = Gathered(held, bytearray(prompt.chunks))
        with self._budget(prompt, held, deadline) as budget:
            joined = yield from self._join(prompt, held, budget, gathered)
            if joined is not None:
                held, coming = self._memory.ready(prompt)
            if joined is None or not joined.left:
                yield from self._rounds(prompt, held, coming, budget, gathered, into)
            # Who lost by waiting pays for it from the account of all.
            self._close_account(budget, prompt.position(self._memory.ready(prompt)[0]))
        return gathered

    def credit(self, prompt: Prompt, gathered: Gathered) -> None:
        """Chunks that are in memory because a lookup began to load them count as loaded."""
        taken = self._lookup_loads.take(prompt)
        if taken is not None:
            self._credit(prompt, gathered.memory_chunks, taken, gathered)

    def _join(
        self, prompt: Prompt, held: int, budget: WaitBudget, gathered: Gathered
    ) -> Steps[Loaded | None]:
        """Go on with what a lookup has begun to load; None: it began nothing of this."""
        taken = self._lookup_loads.take(prompt)
        if taken is None or taken.start > held:
            return None
        begun = taken.begun
        begun.place.leave()  # this request has its own now
        if not (yield from self._drive(begun)):
            gathered.waited = True
            # Who drives the load knows how long it pays.
            is_over = self._memory.await_change(lambda: begun.loaded is not None, budget.deadline)
            yield from is_over
        self._credit(prompt, held, taken, gathered)
        joined = begun.loaded or Loaded(held, "deadline")
        gathered.reason = joined.reason or gathered.reason
        return joined

    def _credit(self, prompt: Prompt, held: int, taken: TakenLoad, gathered: Gathered) -> None:
        loaded, start = taken.begun.loaded, taken.start
        if loaded is not None and start <= held and self._memory.ready(prompt)[0] > start:
            gathered.memory_chunks = held - min(held - start, sum(loaded.chunks.values()))
            gathered.plan = taken.begun.plan
            gathered.count(loaded)

    def _drive(self, begun: LookupLoad) -> Steps[bool]:
        """Bring a load to its end that a lookup began; False: somebody does already."""
        if not begun.claim():
            return False
        begun.loaded = yield from self._complete(begun.prompt, begun.load, begun.wanted)
        begun.place.leave()
        self._memory.announce()
        return True

    def _rounds(
        self,
        prompt: Prompt,
        held: int,
        coming: int,
        budget: WaitBudget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> Steps[None]:
        for _ in range(_ROUNDS_MAX):
            if held == prompt.chunks:
                gathered.reason = ""
                return
            if coming:
                gathered.waited = True
                until = budget.until(prompt.position(held))
                sweep = self.pending.sweep
                came = yield from self._memory.await_more(prompt, held, until, sweep)
                # Those that do not come after all, we can perhaps have ourselves.
                if not came and time.monotonic() >= until:
                    gathered.reason = "deadline" if until >= budget.deadline else "cut"
                    return
            elif held == gathered.ends or not (
                yield from self._round(prompt, held, budget, gathered, into)
            ):
                return
            held, coming = self._memory.ready(prompt)

    def _round(
        self,
        prompt: Prompt,
        held: int,
        budget: WaitBudget,
        gathered: Gathered,
        into: Sequence[BufferLike] | None,
    ) -> Steps[bool]:
        """Ask and load once; whether another round could bring more."""
        began, copy = time.monotonic(), self._copier(gathered, into)
        with self._questions.begin(prompt.digest(held)) as (question, is_ours):
            if not is_ours:
                gathered.waited = True
                until = budget.until(prompt.position(held))
                over = yield from self._questions.wait(question, until, budget.deadline)
                gathered.reason = question.missed or ("" if over else "deadline")
                return not gathered.reason
            with self._asking(prompt, budget) as asking:
                yield from asking.begin(held, reads=not gathered.plain)
                question.until = asking.until
                plan = yield from self._plan(prompt, held, budget, asking)
                gathered.lookup_s += time.monotonic() - began
                gathered.plan = gathered.plan or plan
                gathered.reason = plan.reason
                if not plan.wanted:
                    question.missed = plan.reason if plan.reason == "never_stored" else ""
                    return False
                load = Load(self._memory, prompt, budget, self.pending, copy)
                begun = load.begin(plan.wanted, asking.take(plan.wanted[0]))
        gathered.plain |= load.again
        if not begun and (load.reason != "pool_full" or into is None):
            gathered.reason = load.reason or gathered.reason
            return not load.reason  # others are loading all of it
        end = plan.wanted[0].start
        if begun:
            loaded = yield from self._complete(prompt, load, plan.wanted)
            gathered.count(loaded)
            if loaded.reason != "pool_full" or into is None:
                gathered.ends = plan.wanted[-1].end
                return not loaded.reason
            end = loaded.end
        assert into is not None
        rest = [
            Wanted(piece.tier, max(piece.start, end), piece.end)
            for piece in plan.wanted
            if piece.end > end
        ]
        yield from self._load_directly(prompt, rest, budget, gathered, into)
        return False

    def _complete(self, prompt: Prompt, load: Load, wanted: Sequence[Wanted]) -> Steps[Loaded]:
        """Bring a load to its end."""
        with ExitStack() as stack:
            for piece in wanted:
                stack.enter_context(piece.tier.loading(prompt, piece.start, piece.end))
            loaded = yield from load.finishing()
        outcome = loaded.reason if loaded.left else ""
        first = wanted[0]
        if outcome or not loaded.reason:
            self._warn(first.tier, outcome, prompt, first.start, wanted[-1].end, load.budget)
        if loaded.reason == "cut":
            for piece in wanted:
                self._measure(piece.tier, prompt, loaded.end)
        for piece in wanted:
            piece.tier.known.add(prompt, range(piece.start, min(piece.end, loaded.end)))
        return loaded

    def _load_directly(
        self,
        prompt: Prompt,
        wanted: Sequence[Wanted],
        budget: WaitBudget,
        gathered: Gathered,
        into: Sequence[BufferLike],
    ) -> Steps[None]:
        """Load into the caller's buffers what memory has no page for."""
        usable = []
        for piece in wanted:
            if not piece.tier.lets_go:
                break
            usable.append(piece)
        if usable:
            copy = self._copier(gathered, into)
            load = Load(self._memory, prompt, budget, self.pending, copy, direct=into)
            load.begin(usable)
            loaded = yield from self._complete(prompt, load, usable)
            gathered.count(loaded)
            if not loaded.reason:
                gathered.reason = gathered.plan.reason if gathered.plan else ""

    def _copier(
        self, gathered: Gathered, into: Sequence[BufferLike] | None
    ) -> Callable[[Sequence[int], Sequence[int]], None] | None:
        """Copies chunks that have arrived into the caller's buffers, if there are such."""
        if into is None:
            return None

        def copy(chunks: Sequence[int], handles: Sequence[int]) -> None:
            if handles:  # else they are there already
                buffers = [into[chunk] for chunk in chunks]
                try:
                    self._memory.copy_out(handles, buffers, self.copy_threads)
                except PagesGone:
                    return
            for chunk in chunks:
                gathered.copied[chunk] = 1

        return copy

    # --- Lookups ---

    def looking(
        self,
        prompt: Prompt,
        timeout_s: float | None,
        deadline: float,
        *,
        touch: bool,
        begin: bool = False,
    ) -> Steps[Lookup]:
        """What memory and stores have; see `TieredCache.looking`."""
        held, coming = self._memory.ready(prompt)
        size, goal, reason = prompt.chunk_size, held, ""
        found: list[Wanted] = []
        if held < prompt.chunks:
            with ExitStack() as stack:
                budget = stack.enter_context(self._budget(prompt, held, deadline))
                reads = False
                if begin and self._may_begin(prompt, held, coming):
                    question = stack.enter_context(self._questions.begin(prompt.digest(held)))
                    reads = question.is_ours  # others would read the same
                asking = self._asking(prompt, budget, timeout_s, touch=touch)
                stack.enter_context(asking)
                yield from asking.begin(held, reads=reads)
                plan = yield from self._plan(prompt, held, budget, asking)
                found, reason = plan.found.pieces, plan.reason
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

    def _may_begin(self, prompt: Prompt, held: int, coming: int) -> bool:
        """Whether a lookup may begin to load what is behind the chunks that are here."""
        has_room = self._lookup_loads.has_room(prompt.chunks - held, self._memory.pages)
        return has_room and not coming

    def _begin(self, prompt: Prompt, plan: Plan, budget: WaitBudget, asking: Asking) -> None:
        """Begin to load, for the retrieve that follows."""
        place = budget.place
        assert place is not None
        load = Load(self._memory, prompt, budget, self.pending)
        if not load.begin(plan.wanted, asking.take(plan.wanted[0])):
            return
        begun = LookupLoad(prompt, plan, load, place)
        place.kept = True
        self._lookup_loads.add(begun)
        with suppress(KVFerryError):  # the cache is being closed
            self._background(self._drive(begun))

    # --- What pays ---

    def _tiers(self, prompt: Prompt) -> list[Tier]:
        """The stores to ask for a prompt; the ones that the prompt names come last."""
        return [store.tier for store in (*self._stores, *self._named(prompt))]

    @contextmanager
    def _budget(self, prompt: Prompt, held: int, deadline: float) -> Iterator[WaitBudget]:
        """Until when a request waits that has so many chunks; what it is lent comes back."""
        prefill = self._prefill
        tokens, began = prompt.position(held), time.monotonic()
        queued_s = prefill.total_s(*prompt.queued) if prefill.known else 0.0
        if prompt.queued_at:
            queued_s = max(0.0, queued_s - (began - prompt.queued_at))
        compute_s = prefill.predict_s(prompt.tokens, tokens) if prefill.known else 0.0
        allowance = self.account.open(queued_s + compute_s)
        place = self._together.join(compute_s)
        try:
            yield WaitBudget(
                prompt.tokens,
                tokens,
                prefill,
                began,
                deadline,
                queued_s,
                allowance.loss_s,
                place,
            )
        finally:
            if not place.kept:
                place.leave()
            self.account.close(0.0, 0.0, allowance.lent_s)

    def _close_account(self, budget: WaitBudget, tokens: int) -> None:
        """A request is over, with so many tokens of its prefix."""
        if budget.prefill.known and budget.alone_s > budget.queued_s:
            loss_s = budget.loss_s(tokens, time.monotonic())
            self.account.close(budget.together_s, loss_s, 0.0)

    def _asking(
        self,
        prompt: Prompt,
        budget: WaitBudget,
        timeout_s: float | None = None,
        *,
        touch: bool = True,
    ) -> Asking:
        """Asks the stores, each for so long, or as long as an answer can pay."""

        def limit(tier: Tier, start: int) -> AnswerLimit:
            if timeout_s is not None:
                return AnswerLimit(budget.began + timeout_s)
            return self._answer_limit(tier, prompt, start, budget)

        def measure(tier: Tier, start: int) -> None:
            self._measure(tier, prompt, start)

        tiers, deadline = self._tiers(prompt), budget.deadline
        parts = (self._memory, self.pending, tiers, prompt)
        return Asking(*parts, limit, measure, deadline, touch=touch)

    def _answer_limit(
        self, tier: Tier, prompt: Prompt, start: int, budget: WaitBudget
    ) -> AnswerLimit:
        """How long to wait for what a store has behind `start`."""
        now, limit_s = time.monotonic(), self._lookup_timeout_s()
        if not self._prefill.known:
            return AnswerLimit(min(budget.deadline, now + (limit_s or _UNKNOWN_S)))
        count = prompt.chunks - start
        load_s, first_s = tier.predict_s(count), tier.predict_s(min(SIDE_BY_SIDE, count))
        question_s = tier.question_s() if tier.asked else 0.0
        if tier.sees or tier.pages_on_demand:  # the reads are the question
            load_s, first_s = load_s - question_s, first_s - question_s
        tokens, goal = prompt.position(start), prompt.position(prompt.chunks)
        times = StoreTimes(tier.wins, question_s, load_s, first_s)
        until = budget.answer_until(tokens, goal, times)
        if now + question_s < until:
            return AnswerLimit(until if limit_s is None else min(until, now + limit_s))
        if load_s >= budget.gain_s(tokens, goal, 0.0):
            self._warn(tier, "slow", prompt, start, prompt.chunks, budget)
        if load_s < budget.rest_s(tokens):  # what it has is worth knowing, for the next ones
            tier.ask(prompt, start)
        return AnswerLimit(budget.began, "not_worth_loading")

    def _plan(self, prompt: Prompt, held: int, budget: WaitBudget, asking: Asking) -> Steps[Plan]:
        """Choose of what the stores have behind the first `held` chunks."""
        found = yield from asking.found(held)
        pieces = found.pieces
        decision = self._decide(prompt, held, found, budget)
        goal = held  # the chunk where what was chosen ends
        if pieces and decision.reason != "memory_only":
            goal = pieces[-1 if decision.part is None else decision.part].end
        if pieces and goal == held:
            self._warn(pieces[0].tier, "slow", prompt, held, prompt.chunks, budget)
        if not pieces or goal == pieces[-1].end:
            return Plan(pieces, decision, found.reason, found)
        for piece in pieces:
            if piece.end > goal:
                self._measure(piece.tier, prompt, max(piece.start, goal))
        wanted = [
            Wanted(piece.tier, piece.start, min(piece.end, goal))
            for piece in pieces
            if piece.start < goal
        ]
        return Plan(wanted, decision, "not_worth_loading", found)

    def _decide(
        self, prompt: Prompt, held: int, found: FoundPrefix, budget: WaitBudget
    ) -> Decision:
        return decide(
            prompt.tokens,
            prompt.position(held),
            found.offers,
            self._prefill,
            queued_s=budget.queue_s,
            waited_s=time.monotonic() - budget.began,
        )

    def _warn(
        self, tier: Tier, outcome: str, prompt: Prompt, start: int, end: int, budget: WaitBudget
    ) -> None:
        """Note what became of a load of these chunks; see `LossWarnings`."""
        compute_s = budget.rest_s(prompt.position(start))
        self.loss_warnings.load(tier, outcome, end - start, compute_s)
