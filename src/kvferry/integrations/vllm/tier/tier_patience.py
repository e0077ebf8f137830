"""How long a tier waits for its store, and what of it is worth loading.

The same rules as in an engine of ours (`kvferry.cache.load.wait_budget`), by what is known
here: how many tokens a chunk has, what computing them may take, and how the store has done so far.
Without the first two, or with limits of the user, the limits are fixed.

Threads: one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kvferry.cache.cost.load_or_compute import UNSEEN, FirstByte, LoadModel
from kvferry.cache.cost.patience import Account, Odds
from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.wait_budget import StoreTimes, WaitBudget

__all__ = ["Patience"]

# Where nobody knows what waiting can save.
_LOOKUP_S = 0.04
_STALL_S = 0.5
# Loads may get nothing for so many times what a chunk mostly takes, and for that share of the time
# of computing what is being loaded; for a larger one at first: the store may have moved away.
_STALLED, _STALLED_SHARE, _FIRST_SHARE = 4.0, 0.25, 0.5
_FOREVER_S = 600.0


@dataclass
class Patience:
    """See the module.

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
