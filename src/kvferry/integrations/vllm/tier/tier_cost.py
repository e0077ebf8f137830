"""What waiting and computing cost a tier: how long its store is waited for, what is worth loading.

The same rules as in a cache of ours (`kvferry.cache.load.wait_budget`), by what is known in
vLLM's scheduler: how many tokens a chunk has, what computing them may take, and how the store has
done so far (`Patience`). What computing takes is learnt between the ends of two steps
(`TierSteps`).

Threads: the scheduler's.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from kvferry.cache.cost.load_or_compute import UNSEEN, Account, FirstByte, LoadModel, Odds
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.wait_budget import StoreTimes, WaitBudget

__all__ = ["Patience", "TierSteps"]

# Where nobody knows what waiting can save.
_LOOKUP_S = 0.04
_STALL_S = 0.5
# Loads may get nothing for so many times what a chunk mostly takes, and for that share of the time
# of computing what is being loaded; for a larger one at first: the store may have moved away.
_STALLED, _STALLED_SHARE, _FIRST_SHARE = 4.0, 0.25, 0.5
_FOREVER_S = 600.0


@dataclass
class Patience:
    """How long waiting pays, and which loads do.

    Without tokens and prefill, or with limits of the user, the limits are fixed.

    Attributes:
        chunk_tokens, chunk_bytes: Of a chunk; 0 tokens: not known.
        prefill: What computing takes.
        lookup_s, stall_s: Limits of the user; None: what pays.
    """

    chunk_tokens: int = 0
    chunk_bytes: int = 0
    prefill: PrefillModel = field(default_factory=PrefillModel)
    lookup_s: float | None = None
    stall_s: float | None = None
    _load: LoadModel = field(default_factory=LoadModel)
    _odds: Odds = field(default_factory=Odds)
    _account: Account = field(default_factory=Account)
    _answers: int = 0

    @property
    def seen_bytes_s(self) -> float:
        """What loads brought; 0: there was none."""
        return self._load.seen_bytes_s

    @property
    def _knows(self) -> bool:
        return self.chunk_tokens > 0 and self.prefill.known

    def question_s(self, chunks: int, now: float) -> float:
        """How long to wait for an answer about so many chunks; 0: not at all."""
        if self.lookup_s is not None:
            return self.lookup_s
        if not self._knows:
            return _LOOKUP_S
        tokens = chunks * self.chunk_tokens
        allowance_s, lent_s = self._account.open(self.prefill.predict_s(tokens))
        self._account.close(0.0, 0.0, lent_s)
        budget = WaitBudget(tokens, 0, self.prefill, now, now + _FOREVER_S, 0.0, allowance_s)
        asked_s = self._load.fixed_s(now) if self._answers else 0.0
        load_s = self._load.predict_s(chunks * self.chunk_bytes, now)
        first_s = self._load.predict_s(self.chunk_bytes, now)
        times = StoreTimes(self._odds.wins, asked_s, load_s, first_s)
        until = budget.answer_until(0, tokens, times)
        return until - now if until - now > asked_s else 0.0

    def answered(self, chunks: int, found: int, took_s: float, now: float) -> bool:
        """The store has said how many of the chunks it has; whether to load them.

        It took no time where nobody was asked.
        """
        self._odds.answered(found / chunks if chunks else 0.0)
        if took_s:
            self._answers += 1
            self._load.observe(0, took_s, now)
        if not self._knows or self.lookup_s is not None:
            return True
        compute_s = self.prefill.predict_s(chunks * self.chunk_tokens)
        if not found:
            self._account.close(compute_s, took_s, 0.0)
            return False
        saving_s = compute_s - self.prefill.predict_s(
            chunks * self.chunk_tokens, found * self.chunk_tokens
        )
        pays = self._load.predict_s(found * self.chunk_bytes, now) < saving_s
        self._account.close(compute_s, 0.0 if pays else took_s, 0.0)
        return pays

    def unanswered(self, chunks: int, waited_s: float) -> None:
        """Nobody waits for this answer any more."""
        if self._knows:
            self._account.close(self.prefill.predict_s(chunks * self.chunk_tokens), waited_s, 0.0)

    def loaded(
        self,
        size_bytes: int,
        took_s: float,
        now: float,
        first_byte: FirstByte = UNSEEN,
    ) -> None:
        """A load has come to its end; `first_byte`: when a first value came."""
        self._load.observe(size_bytes, took_s, now, first_byte)

    def nothing_came(self, waited_s: float, now: float) -> None:
        """A load was given up before anything of it came."""
        self._load.observe(0, waited_s, now, FirstByte(waited_s, math.inf))

    def stalled_s(self, chunks: int, now: float, *, begun: bool = True) -> float:
        """How long loads of so many chunks may get nothing, all of them together."""
        if self.stall_s is not None:
            return self.stall_s
        if not self._knows:
            return _STALL_S
        compute_s = self.prefill.predict_s(chunks * self.chunk_tokens)
        usual_s = self._load.predict_s(self.chunk_bytes, now)
        share = _STALLED_SHARE if begun else _FIRST_SHARE
        return max(_STALLED * usual_s, share * compute_s, _LOOKUP_S)


@dataclass(slots=True)
class _First:
    """The first step of a request."""

    request: str
    decodes: int
    took_s: float = 0.0  # until the next step was planned; 0: it was not yet
    is_measured: bool = False
    tokens: int = 0  # that were computed in it; 0: not known yet


class TierSteps:
    """Learns what computing takes, of a tier that is not told what a step computes.

        steps.ended(now, new)           the step that was planned begins to run; `new`: its requests
        steps.stored(request, 0, 512)   tokens of a prompt that were computed some steps ago
        steps.finished(request)

    The first chunks of a request that are offered to the tier are those of its first step, so a
    step that began one request, alone, is measured when these come. vLLM may plan a step before the
    one before it has ended: the longer of two intervals is that of the prompt, since the other one
    made a token more. Where that cannot be told, nothing is learnt.

    Args:
        prefill: What learns.
    """

    def __init__(self, prefill: PrefillModel) -> None:
        self._prefill = prefill
        self._at = 0.0
        self._active: set[str] = set()
        self._first: _First | None = None

    def ended(self, now: float, new: Collection[str]) -> None:
        """A step was planned, with these requests for the first time."""
        first, gone_s = self._first, now - self._at
        self._at = now
        self._active.update(new)
        if new:
            self._first = None  # of two that may overlap, neither is measured
            if len(new) == 1 and (first is None or first.is_measured):
                self._first = _First(next(iter(new)), len(self._active) - 1)
        elif first is not None and not first.is_measured:
            if not first.took_s:
                first.took_s = gone_s
                first.is_measured = first.request not in self._active
            elif first.request in self._active:
                first.took_s, first.is_measured = max(first.took_s, gone_s), True
            else:
                self._first = None

    def stored(self, request: str, start: int, end: int) -> None:
        """Tokens from `start` to `end` of a prompt were computed in one step."""
        first = self._first
        if first is None:
            return
        if first.request != request or not first.is_measured:
            self._first = None
        elif first.tokens:  # the prompt took another step
            self._prefill.step_tokens = max(self._prefill.step_tokens, first.tokens)
            self._first = None
        else:
            first.tokens = end - start
            pairs = end * end - start * start
            self._prefill.observe_step(first.tokens, pairs, first.decodes, first.took_s)

    def finished(self, request: str) -> None:
        """A request is over."""
        self._active.discard(request)
