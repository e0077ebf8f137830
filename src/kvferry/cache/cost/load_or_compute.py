"""What a load will take, what computing will take, and which of them is worth doing.

Loading ``b`` bytes from a store takes ``f + (q + b) / B``: a fixed part (round trips, scheduling),
and its bandwidth, which it shares with the ``q`` bytes that others are loading already. Computing
``n`` tokens behind ``m`` that are cached takes ``a + c * n + d * ((m + n)**2 - m**2)`` (a prefill
is linear in its matrix products and quadratic in its attention).

Time to first token after loading the first ``p`` tokens is the sum of both. As a function of ``p``
within one store it is concave: the load is linear, and what is saved grows with ``p``. So its
minimum lies at an end: load nothing from a store, or all that it has of the prefix. `decide`
compares just those.

All of it is learnt online, from the loads and steps that happen. A store that was found too slow
to be used would never be measured again; so its estimate recovers with time, and it gets another
try, whose cost `Budget` bounds: what requests may lose by waiting is a small part of what computing
everything takes them (`kvferry.cache.cost.patience`).

Units: seconds, bytes, tokens. Threads: each object is guarded by its owner.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvferry.cache.cost.patience import SHARE, Place
from kvferry.cache.cost.prefill import PrefillModel

__all__ = ["Budget", "Decision", "LoadModel", "Offer", "decide"]

# Of a sample of ordinary size. The larger the sample, the more it counts.
_WEIGHT = 0.3
# Below it a load says more about the fixed part than about the bandwidth.
_SMALL_BYTES = 256 << 10
# What is not known yet is taken to be good: a first load is bounded by its budget anyway.
_FIXED_S = 0.5e-3
_BANDWIDTH_BYTES_S = 4e9
# A store that is not used doubles its estimated bandwidth, and halves its fixed part, in this time.
_RECOVERY_S = 30.0
# How much more than expected a store may take.
_PATIENCE = 1.25
# An answer that takes so many times what it mostly does, and longer than this share of the time of
# computing, is not waited for any more; the first one of all, longer than that share.
_LATE, _LATE_SHARE, _NEW_SHARE = 4.0, 0.1, 0.25
# A first byte is waited for as long as this share of the time of computing, where the account of
# all requests has that much: a store may have moved away.
_FIRST_SHARE = 0.5
# A load that is expected to take a larger share of the time of computing gets no such time: how
# long it takes is not known well enough.
_WORTH = 0.95
# What will be done in this share of the time of computing, by what flows, is worth going on with...
_IN_SIGHT = 0.8
# ... as long as leaving it then would cost no more than this share.
_SIGHT_SHARE = 0.15


class LoadModel:
    """How long a store takes, from what it took."""

    def __init__(
        self, fixed_s: float = _FIXED_S, bandwidth_bytes_s: float = _BANDWIDTH_BYTES_S
    ) -> None:
        self._prior = (fixed_s, bandwidth_bytes_s)
        self._fixed_s = fixed_s
        self._bandwidth = bandwidth_bytes_s
        self._measured_at: float | None = None
        self._loaded_at: float | None = None  # questions say nothing about the bandwidth
        self._cut = False  # the last load
        self.samples = 0

    def fixed_s(self, now: float) -> float:
        """The part of a load that does not depend on its size."""
        recovery = self._recovery(self._measured_at, now)
        return max(self._fixed_s / recovery, min(self._prior[0], self._fixed_s))

    def bandwidth_bytes_s(self, now: float) -> float:
        """Bytes per second once it flows."""
        recovered = self._bandwidth * self._recovery(self._loaded_at, now)
        return min(recovered, max(self._prior[1], self._bandwidth))

    @property
    def seen_bytes_s(self) -> float:
        """Bytes per second of the loads that were; 0: there was none."""
        return 0.0 if self._loaded_at is None else self._bandwidth

    def predict_s(self, size_bytes: int, now: float, queued_bytes: int = 0) -> float:
        """Seconds to load `size_bytes`, behind what others are loading."""
        return self.fixed_s(now) + (queued_bytes + size_bytes) / self.bandwidth_bytes_s(now)

    def observe(
        self,
        size_bytes: int,
        took_s: float,
        now: float,
        first_s: tuple[float, float] = (0.0, math.inf),
        *,
        whole: bool = True,
    ) -> None:
        """A load, or a part of one that was cut (not `whole`), brought `size_bytes` in `took_s`.

        With 0 bytes it was a question, whose time is the fixed part. `first_s` is the least and the
        most that the first byte has taken.
        """
        took_s = max(took_s, 1e-6)
        fixed, bandwidth = self.fixed_s(now), self.bandwidth_bytes_s(now)
        fixed = max(first_s[0], min(fixed, first_s[1]))
        first = self._measured_at is None
        self._measured_at = now
        self.samples += 1
        if first_s[1] == math.inf and first_s[0]:  # nothing has come at all
            self._fixed_s = max(fixed, took_s)
            return
        if size_bytes < _SMALL_BYTES:
            sample = max(took_s - size_bytes / bandwidth, 1e-6)
            self._fixed_s = sample if first else fixed + _WEIGHT * (sample - fixed)
            return
        fixed = max(first_s[0], min(fixed, 0.9 * took_s))  # it may have become less
        flowing = took_s - fixed
        # A load that was mostly waiting says little about the bandwidth.
        share = min(1.0, 2 * flowing / took_s)
        sized = min(0.8, _WEIGHT * (1 + size_bytes / (64 << 20)))
        if self._cut and whole:  # the beginning of a load is its slowest part
            sized = 0.8
        self._cut = not whole
        weight = share * (1.0 if self._loaded_at is None else sized)
        # Times add up, so it is the time per byte that is averaged.
        per_byte = (1 - weight) / bandwidth + weight * flowing / size_bytes
        self._bandwidth, self._fixed_s, self._loaded_at = 1 / per_byte, fixed, now

    @staticmethod
    def _recovery(since: float | None, now: float) -> float:
        if since is None:
            return 1.0
        idle_s: float = min(max(0.0, now - since), 60 * _RECOVERY_S)
        return float(2.0 ** max(0.0, idle_s / _RECOVERY_S - 1))


@dataclass(frozen=True)
class Offer:
    """A store holds the tokens from `start_token`, where the offer before it ends."""

    store: str
    start_token: int
    end_token: int
    load_s: float  # predicted


@dataclass(frozen=True)
class Decision:
    """How much of a prefix to load, with the numbers behind it.

    Attributes:
        tokens: Tokens to take from the cache, those that are in memory already included.
        load_s: Predicted time of the loads.
        prefill_s: Predicted time of computing what is behind `tokens`; None: nothing is known of
            the engine's speed, and everything that is there is loaded.
        recompute_s: Predicted time without any load.
        reason: "all", "part", "memory_only" or "unknown_prefill".
        part: With "part", the offer that is the last one taken.
    """

    tokens: int
    load_s: float
    prefill_s: float | None
    recompute_s: float | None
    reason: str
    part: int | None = None

    @property
    def ttft_s(self) -> float | None:
        """Predicted time to first token."""
        return None if self.prefill_s is None else self.load_s + self.prefill_s


def decide(
    total_tokens: int,
    memory_tokens: int,
    offers: Sequence[Offer],
    prefill: PrefillModel,
    *,
    queued_s: float = 0.0,
    waited_s: float = 0.0,
) -> Decision:
    """Choose how many tokens of a prompt to take from the cache.

    Args:
        total_tokens: Tokens of the prompt.
        memory_tokens: Tokens of its prefix that are in memory, which cost nothing.
        offers: What stores hold behind that, each beginning where the one before it ends.
        prefill: The engine's speed.
        queued_s: What it computes before this prompt: a load that takes no longer costs nothing.
        waited_s: What of that has passed.
    """
    end = offers[-1].end_token if offers else memory_tokens
    load_s = sum(offer.load_s for offer in offers)
    if not prefill.known:
        return Decision(end, load_s, None, None, "unknown_prefill")
    recompute_s = prefill.predict_s(total_tokens, memory_tokens)
    best = Decision(memory_tokens, 0.0, recompute_s, recompute_s, "memory_only")
    best_s = recompute_s
    free_s, spent_s = max(0.0, queued_s - waited_s), 0.0
    for index, offer in enumerate(offers):
        spent_s += offer.load_s
        rest_s = prefill.predict_s(total_tokens, offer.end_token)
        ends_s = max(0.0, spent_s - free_s) + rest_s
        if ends_s < best_s:
            part = None if index == len(offers) - 1 else index
            reason = "all" if part is None else "part"
            best = Decision(offer.end_token, spent_s, rest_s, recompute_s, reason, part)
            best_s = ends_s
    return best


@dataclass(frozen=True)
class Budget:
    """Until when a request may wait for its cache, given what it has of it.

    A request that has waited ``t`` and holds ``k`` tokens is done at ``t`` + the time of computing
    the rest. The budget holds that to the time of computing all that was not in memory, behind what
    is queued ahead of it, plus a small regret: so a load that stalls at once is left early, and one
    that stalls late has paid for its wait already.

    A store far away cannot answer within that. If it was measured, it is given what it mostly takes
    and a quarter more, as far as the account of all requests allows that.

    Many that wait at the same time share their store, and the first of them would seem to be later
    than computing it alone. But whoever leaves has the engine compute what others wait for too. So
    while bytes flow, a load is compared with what computing takes in the middle of all of them.

    Attributes:
        allowance_s: What this request may lose, by the account; None: its own share.
        place: Among those that wait with it; None: it is alone.
    """

    total_tokens: int
    memory_tokens: int
    prefill: PrefillModel
    began: float
    deadline: float  # the caller's, absolute
    queued_s: float = 0.0
    allowance_s: float | None = None
    place: Place | None = None

    @property
    def recompute_s(self) -> float:
        """When the request would be done without a load, counted from its beginning."""
        return self.queued_s + self.rest_s(self.memory_tokens)

    @property
    def queue_s(self) -> float:
        """What is computed before this request where nobody who waits with it has a load."""
        return self.queued_s if self.place is None else max(self.queued_s, self.place.most_s)

    @property
    def together_s(self) -> float:
        """When it would be done where nobody who waits with it has a load."""
        return self.queue_s + self.rest_s(self.memory_tokens)

    def until(
        self, tokens: int, expected_s: float = 0.0, end_s: float = 0.0, *, flows: bool = True
    ) -> float:
        """The moment at which a request that holds `tokens` of its prefix must stop waiting.

        `expected_s` and `end_s` are when, counted from the beginning of the request, something
        should come, and when everything should be there, by what was measured of the store; 0: it
        was not. Until bytes have come for a moment (`flows`), nobody knows how fast they do.
        """
        if not self.prefill.known:
            return self.deadline
        allowed_s = self._allowed_s(tokens, SHARE if flows else _FIRST_SHARE)
        patient_s = expected_s * _PATIENCE
        is_worth_it = end_s <= _WORTH * self.together_s
        if patient_s <= self.queued_s + self._most_s and is_worth_it:
            allowed_s = max(allowed_s, patient_s)
        return min(self.deadline, self.began + allowed_s)

    def comes(self, expected_s: float, loaded_s: float, now: float) -> bool:
        """Whether to wait beyond `until` because a load goes as it was expected to.

        TCP begins slowly, and catches up: what was measured had to do so too.

        Args:
            expected_s: When everything should be there, counted from the beginning of the request.
            loaded_s: When it would be, by what flows.
        """
        patient_s = _PATIENCE * expected_s
        if loaded_s > patient_s or expected_s > _WORTH * self.together_s:
            return False
        allowed_s = min(patient_s, self.queued_s + self._most_s)
        return now < min(self.deadline, self.began + allowed_s)

    def in_sight(self, tokens: int, end_s: float, now: float) -> bool:
        """Whether to wait beyond `until` because the end is near.

        Args:
            tokens: Of the prefix, as many as have come, pieces of chunks included: they come side
                by side, and most of them would be whole in a moment.
            end_s: When the request would be done with all of them, counted from its beginning.
        """
        allowed_s = self._allowed_s(tokens, _SIGHT_SHARE)
        is_near = end_s < _IN_SIGHT * self.recompute_s
        return is_near and now < min(self.deadline, self.began + allowed_s)

    def in_sight_of_all(self, held: int, tokens: int, end_s: float, now: float) -> bool:
        """The same for all that wait together, of whom this one may be the first.

        Args:
            held: Of the prefix, as many as would stay if it was left now.
            tokens: As for `in_sight`.
            end_s: When all would be done with their loads, counted from its beginning.
        """
        if self.place is None:
            return False
        all_s, left_s = self.together_s, end_s - (now - self.began)
        if end_s >= _IN_SIGHT * all_s or left_s > self.rest_s(held) + self.place.ahead_s:
            return False
        allowed_s = self._allowed_s(tokens, _SIGHT_SHARE) + all_s - self.recompute_s
        return now < min(self.deadline, self.began + allowed_s)

    def question(
        self, tokens: int, goal: int, wins: float, question_s: float, load_s: float, first_s: float
    ) -> float:
        """The moment until which to wait for a store to say what it has behind `tokens`.

        It is `began` where that cannot pay, and where what it mostly takes until the first bytes
        are here is more than this request may lose.

        Args:
            tokens: Of the prefix, as many as are there.
            goal: As many as would be if the store had everything.
            wins: See `kvferry.cache.cost.patience.Odds`.
            question_s: How long it mostly takes to say so; 0: nobody knows.
            load_s, first_s: What loading all of it, and one chunk, is expected to take.
        """
        all_s = self.together_s
        saving_s = self.gain_s(tokens, goal, max(0.0, question_s + load_s - self.queue_s))
        most_s = min(wins * saving_s, self._most_s)
        if question_s + load_s + self.rest_s(goal) < _IN_SIGHT * all_s:
            first_s = min(first_s, question_s)  # bytes that flow are enough: see `in_sight`
        if saving_s <= 0 or (
            question_s and (question_s + first_s) * _PATIENCE > self.queued_s + most_s
        ):
            return self.began
        # One that takes many times as long will hardly answer at all.
        usual_s = max(_LATE * question_s, (_LATE_SHARE if question_s else _NEW_SHARE) * all_s)
        most_s = min(most_s, usual_s)
        return min(self.deadline, self.began + self.queued_s + most_s)

    @property
    def _most_s(self) -> float:
        """What this request may lose; of what is computed before it too, as that becomes known."""
        alone_s = self.recompute_s
        own_s = SHARE * alone_s if self.allowance_s is None else self.allowance_s
        return own_s + SHARE * (self.together_s - alone_s)

    def _allowed_s(self, tokens: int, share: float) -> float:
        """How long it may wait that holds `tokens`, losing such a share of computing at most."""
        all_s = self.recompute_s
        return all_s + min(share * all_s, self._most_s) - self.rest_s(tokens)

    def rest_s(self, tokens: int) -> float:
        """Time of computing what is behind `tokens`."""
        return self.prefill.predict_s(self.total_tokens, tokens)

    def gain_s(self, tokens: int, goal: int, remaining_s: float) -> float:
        """What waiting for `goal` tokens, still `remaining_s`, saves against stopping now."""
        if not self.prefill.known:
            return float("inf")
        return self.rest_s(tokens) - self.rest_s(goal) - remaining_s

    def regret_s(self, tokens: int, now: float) -> float:
        """How much later than without a cache a request is that has waited until now."""
        return max(0.0, now - self.began + self.rest_s(tokens) - self.together_s)
