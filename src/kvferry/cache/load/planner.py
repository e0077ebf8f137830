"""What stores have of a prefix, and what of it to load: asked, and decided.

Threads: any.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from kvferry.cache.cost.load_or_compute import Budget, Decision, Offer, decide
from kvferry.cache.cost.patience import Account, Together
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.asking import Asking
from kvferry.cache.load.gathered import Plan
from kvferry.cache.load.load_parts import Wanted
from kvferry.cache.load.loss_warnings import LossWarnings
from kvferry.cache.load.measuring import Measuring
from kvferry.cache.load.pending import PendingLoads
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps
from kvferry.cache.store.prefix_answers import Probe
from kvferry.cache.store.store_tiers import StoreTier
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt

__all__ = ["Planner"]


class Planner(ABC):
    """The deciding half of a `Retriever`.

    Args:
        memory, stores: Where chunks may be, the stores in the order in which they are asked; more
            may come.
        prefill: How fast the engine computes; if it knows nothing, whatever is there is loaded.
        background: Does steps, some time.
        named: Stores that are asked for this prompt alone.
    """

    def __init__(
        self,
        memory: Memory,
        stores: Sequence[StoreTier],
        prefill: PrefillModel,
        background: Callable[[Steps[object]], object],
        named: Callable[[Prompt], Sequence[StoreTier]],
    ) -> None:
        self._memory = memory
        self._stores = stores
        self._named = named
        self._prefill = prefill
        self.account, self._together = Account(), Together()
        self.loss_warnings = LossWarnings()
        self.pending = PendingLoads(memory)
        self._measure = Measuring(memory, self.pending, background).measure

    def _tiers(self, prompt: Prompt) -> list[Tier]:
        """Who is asked for a prompt; those that it names come last."""
        return [store.tier for store in (*self._stores, *self._named(prompt))]

    @abstractmethod
    def _patience(
        self, tier: Tier, prompt: Prompt, start: int, budget: Budget
    ) -> tuple[float, str]:
        """Until when to wait for what a store has behind `start`, and why not at all."""

    @contextmanager
    def budget(self, prompt: Prompt, held: int, deadline: float) -> Iterator[Budget]:
        """What a request may wait that has so many chunks; what it is lent comes back."""
        prefill = self._prefill
        tokens, began = prompt.position(held), time.monotonic()
        queued_s = prefill.total_s(*prompt.queued) if prefill.known else 0.0
        if prompt.queued_at:
            queued_s = max(0.0, queued_s - (began - prompt.queued_at))
        compute_s = prefill.predict_s(prompt.tokens, tokens) if prefill.known else 0.0
        allowance_s, lent_s = self.account.open(queued_s + compute_s)
        place = self._together.join(compute_s)
        how = (began, deadline, queued_s, allowance_s, place)
        try:
            yield Budget(prompt.tokens, tokens, prefill, *how)
        finally:
            if not place.kept:
                place.leave()
            self.account.close(0.0, 0.0, lent_s)

    def _close_account(self, budget: Budget, tokens: int) -> None:
        if budget.prefill.known and budget.recompute_s > budget.queued_s:
            regret_s = budget.regret_s(tokens, time.monotonic())
            self.account.close(budget.together_s, regret_s, 0.0)

    def _asking(
        self,
        prompt: Prompt,
        budget: Budget,
        timeout_s: float | None = None,
        *,
        touch: bool = True,
    ) -> Asking:
        """Asks the stores, each for so long, or as long as an answer can pay."""

        def patience(tier: Tier, start: int) -> tuple[float, str]:
            if timeout_s is not None:
                return budget.began + timeout_s, ""
            until, declined = self._patience(tier, prompt, start, budget)
            if declined:
                self._measure(tier, prompt, start)
            return until, declined

        parts = (self._memory, self.pending, self._tiers(prompt))
        return Asking(*parts, prompt, patience, budget.deadline, touch=touch)

    def plan(self, prompt: Prompt, held: int, budget: Budget, asking: Asking) -> Steps[Plan]:
        """Choose of what the stores have behind the first `held` chunks."""
        wanted: list[Wanted] = []
        offers: list[Offer] = []
        start, reason, more = held, "never_stored", True
        while more and start < prompt.chunks:
            more = False  # a store that was asked may go on where another one ends
            for tier in list(asking.tiers):
                probe = yield from asking.about(tier, start)
                if not isinstance(probe, Probe):
                    reason = probe
                    continue
                if probe.end > start:
                    flows = asking.window is not None and asking.window.tier is tier
                    offers.append(self._offer(tier, prompt, start, probe.end, flows=flows))
                    wanted.append(Wanted(tier, start, probe.end))
                    start, more = probe.end, len(asking.tiers) > 1
                reason = probe.reason
                if reason == "deadline":
                    self._measure(tier, prompt, start)
                if start == prompt.chunks:
                    break
        decision, found = self._decide(prompt, held, offers, budget), wanted
        goal = self._goal(held, [piece.end for piece in wanted], decision)
        self._declined(prompt, held, offers, asking.tiers, goal, budget)
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
        return Plan(wanted, offers, decision, reason, found)

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
        how = {"queued_s": budget.queue_s, "waited_s": waited_s}
        return decide(prompt.tokens, prompt.position(held), offers, self._prefill, **how)

    def _declined(
        self,
        prompt: Prompt,
        held: int,
        offers: Sequence[Offer],
        tiers: Sequence[Tier],
        goal: int,
        budget: Budget,
    ) -> None:
        """Note that what a store has is left there, if it is."""
        if offers and goal == held:
            tier = next(tier for tier in tiers if tier.name == offers[0].store)
            self.loss_warnings.load(
                tier, "slow", prompt.chunks - held, budget, prompt.position(held)
            )

    @staticmethod
    def _goal(held: int, ends: Sequence[int], decision: Decision) -> int:
        """The chunk where what was chosen ends, of offers that end there."""
        if not ends or decision.reason == "memory_only":
            return held
        return ends[-1] if decision.part is None else ends[decision.part]
