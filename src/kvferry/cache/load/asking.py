"""The questions of one request: all stores are asked at the same moment, one of them for bytes too.

What the first store lacks another one may have, which would be a second wait if that one were asked
only then. The likeliest store is sent reads of the first chunks along with the question (`window`).

Threads: one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Self

from kvferry.cache.load.pending import PendingLoads
from kvferry.cache.load.window import Window, open_window
from kvferry.cache.memory import Memory
from kvferry.cache.steps import Steps
from kvferry.cache.store.prefix_answers import Asked, Probe
from kvferry.cache.store.tier import Tier
from kvferry.chunks.prompt import Prompt

__all__ = ["Asking"]

# A store is as good as one that is likelier by no more than this factor and comes behind it.
_LIKELY = 0.5


class Asking:
    """Asks the stores about a prompt, for as long as `with` lasts.

    Args:
        memory, pending: Of the cache.
        tiers: The stores, in their order.
        prompt: Which.
        patience: Until when to wait for what a store has behind a chunk, and why not at all.
        deadline: Of the request.
        touch: What is there counts as used.

    Attributes:
        window: What was asked for before anybody knows that it is there.
    """

    def __init__(
        self,
        memory: Memory,
        pending: PendingLoads,
        tiers: Iterable[Tier],
        prompt: Prompt,
        patience: Callable[[Tier, int], tuple[float, str]],
        deadline: float,
        *,
        touch: bool = True,
    ) -> None:
        self._memory = memory
        self._pending = pending
        self.tiers = list(tiers)
        self._prompt = prompt
        self._patience = patience
        self._deadline = deadline
        self._touch = touch
        self._asked: dict[Tier, Asked] = {}
        self._declined: dict[Tier, tuple[int, str]] = {}
        self.window: Window | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        window, self.window = self.window, None
        if window is not None:
            window.drop(self._pending)
        for tier, asked in self._asked.items():
            tier.leave(asked)

    @property
    def until(self) -> float:
        """Until when the last of the answers is waited for."""
        return max((asked.until for asked in self._asked.values()), default=0.0)

    def begin(self, start: int, *, reads: bool) -> Steps[None]:
        """Ask all of them about the chunks from `start` on; `reads`: one of them for bytes too."""
        for tier in self.tiers:
            yield from self._send(tier, start)
            asked = self._asked.get(tier)
            if asked is not None and asked.probe is not None and self._ends(asked.probe):
                return  # nobody else need be asked
        waiting = [tier for tier in self.tiers if self._waits(tier)]
        if not reads or not waiting:
            return
        likely = self._likeliest(waiting)
        if likely is None:
            return
        self.window = open_window(self._memory, likely, self._prompt, start, self._deadline)
        if self.window is not None:  # what comes from it comes first
            self.tiers.remove(likely)
            self.tiers.insert(0, likely)

    def about(self, tier: Tier, start: int) -> Steps[Probe | str]:
        """What a store has from `start` on; or why it is not asked."""
        declined = self._declined.get(tier)
        asked = self._asked.get(tier)
        probe = None
        if asked is not None:
            yield from tier.answer(asked)
            probe = asked.behind(start)
        elif declined is not None and declined[0] == start:
            return declined[1]
        if probe is None:
            yield from self._send(tier, start)
            asked = self._asked.get(tier)
            if asked is None:
                return self._declined[tier][1]
            probe = yield from tier.answer(asked)
        return probe

    def take(self, tier: Tier, start: int) -> Window | None:
        """The reads that are on their way, for who loads these chunks from that store."""
        window = self.window
        if window is None or window.tier is not tier or window.start != start:
            return None
        self.window = None
        return window

    def _send(self, tier: Tier, start: int) -> Steps[None]:
        self._asked.pop(tier, None)
        tier.look(self._prompt, start)
        until, declined = self._patience(tier, start)
        if declined:
            self._declined[tier] = (start, declined)
            return
        several = len(self.tiers) > 1
        sending = tier.send(self._prompt, start, until, touch=self._touch, whole=several)
        self._asked[tier] = yield from sending

    def _likeliest(self, tiers: Sequence[Tier]) -> Tier | None:
        """The store to be sent reads; None: what is close by has it, and needs none."""
        most = max((tier.odds for tier in tiers if tier.pages_on_demand), default=0.0)
        for tier in tiers:
            if tier.pages_on_demand and tier.odds >= _LIKELY * most:
                return tier
            if not tier.pages_on_demand and tier.odds > _LIKELY:
                return None
        return None

    def _waits(self, tier: Tier) -> bool:
        asked = self._asked.get(tier)
        return asked is not None and asked.ticket is not None and not asked.sure

    def _ends(self, probe: Probe) -> bool:
        return probe.end == self._prompt.chunks
