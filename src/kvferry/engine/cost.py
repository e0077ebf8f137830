"""What a load will take, what computing will take, and which of them is worth doing.

Loading ``b`` bytes from a store takes ``f + (q + b) / B``: a fixed part (round trips, scheduling),
and its bandwidth, which it shares with the ``q`` bytes that others are loading already. Computing
``n`` tokens behind ``m`` that are cached takes ``a + c * n + d * ((m + n)**2 - m**2)`` (a prefill
is linear in its matrix products and quadratic in its attention).

Time to first token after loading the first ``p`` tokens is the sum of both. As a function of ``p``
within one store it is concave: the load is linear, and what is saved grows with ``p``. So its
minimum lies at an end: load nothing from a store, or all that it has of the prefix. `decide`
compares just those.

All of it is learnt online, from the loads and prefills that happen. A store that was found too slow
to be used would never be measured again; so its estimate recovers with time, and it gets another
try, whose cost `Budget` bounds: a request never waits for its cache longer than a small part of
what computing everything would take.

Units: seconds, bytes, tokens. Threads: each object is guarded by its owner.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["IN_SIGHT", "Budget", "Decision", "LoadModel", "Offer", "PrefillModel", "decide"]

# Of a sample of ordinary size. The larger the sample, the more it counts.
_WEIGHT = 0.3
# Below it a load says more about the fixed part than about the bandwidth.
_SMALL_BYTES = 256 << 10
# What is not known yet is taken to be good: a first load is bounded by its budget anyway.
_FIXED_S = 0.5e-3
_BANDWIDTH_BYTES_S = 4e9
# A store that is not used doubles its estimated bandwidth, and halves its fixed part, in this time.
_RECOVERY_S = 30.0
# How much of the time of computing everything a load may cost when it comes to nothing...
_REGRET = 0.07
# ... and where a store is expected to need more than that: how much more than expected it may
# take, and the most that this may be of the time of computing.
_PATIENCE = 1.25
_TRUST = 0.15
# What will be done in this share of the time of computing is surely worth it.
IN_SIGHT = 0.6


class LoadModel:
    """How long a store takes, from what it took."""

    def __init__(
        self, fixed_s: float = _FIXED_S, bandwidth_bytes_s: float = _BANDWIDTH_BYTES_S
    ) -> None:
        self._prior = (fixed_s, bandwidth_bytes_s)
        self._fixed_s = fixed_s
        self._bandwidth = bandwidth_bytes_s
        self._measured_at: float | None = None
        self.samples = 0

    def fixed_s(self, now: float) -> float:
        """The part of a load that does not depend on its size."""
        return max(self._fixed_s / self._recovery(now), min(self._prior[0], self._fixed_s))

    def bandwidth_bytes_s(self, now: float) -> float:
        """Bytes per second once it flows."""
        recovered = self._bandwidth * self._recovery(now)
        return min(recovered, max(self._prior[1], self._bandwidth))

    def predict_s(self, size_bytes: int, now: float, queued_bytes: int = 0) -> float:
        """Seconds to load `size_bytes`, behind what others are loading."""
        return self.fixed_s(now) + (queued_bytes + size_bytes) / self.bandwidth_bytes_s(now)

    def observe(self, size_bytes: int, took_s: float, now: float) -> None:
        """A load, or a part of one that was cut, brought `size_bytes` in `took_s`.

        With 0 bytes it was a question, whose time is the fixed part.
        """
        took_s = max(took_s, 1e-6)
        fixed, bandwidth = self.fixed_s(now), self.bandwidth_bytes_s(now)
        first = self._measured_at is None
        self._measured_at = now
        self.samples += 1
        if size_bytes < _SMALL_BYTES:
            sample = max(took_s - size_bytes / bandwidth, 1e-6)
            self._fixed_s = sample if first else fixed + _WEIGHT * (sample - fixed)
            self._bandwidth = bandwidth
            return
        fixed = min(fixed, 0.9 * took_s)  # it may have become less
        flowing = took_s - fixed
        # A load that was mostly waiting says little about the bandwidth.
        share = min(1.0, 2 * flowing / took_s)
        weight = 1.0 if first else share * min(0.8, _WEIGHT * (1 + size_bytes / (64 << 20)))
        # Times add up, so it is the time per byte that is averaged.
        per_byte = (1 - weight) / bandwidth + weight * flowing / size_bytes
        self._bandwidth, self._fixed_s = 1 / per_byte, fixed

    def _recovery(self, now: float) -> float:
        if self._measured_at is None:
            return 1.0
        idle_s: float = min(max(0.0, now - self._measured_at), 60 * _RECOVERY_S)
        return float(2.0 ** max(0.0, idle_s / _RECOVERY_S - 1))


@dataclass
class PrefillModel:
    """How long the engine computes: ``a + c * n + d * ((m + n)**2 - m**2)`` seconds.

    Without coefficients it learns them; `known` tells whether it has any. With coefficients of the
    user it keeps them.
    """

    a_s: float = 0.0
    c_s_per_token: float = 0.0
    d_s_per_token2: float = 0.0
    fixed: bool = False
    samples: int = 0
    # Sums over the samples, older ones fading: of x x' and x t, with x = (1, n, pairs).
    _xx: list[list[float]] = field(default_factory=lambda: [[0.0] * 3 for _ in range(3)])
    _xt: list[float] = field(default_factory=lambda: [0.0] * 3)
    _tt: float = 0.0

    _FADING = 0.97

    @property
    def known(self) -> bool:
        """Whether predictions mean anything yet."""
        return self.fixed or self.samples > 0

    def predict_s(self, tokens: int, cached: int = 0) -> float:
        """Seconds to compute the tokens behind `cached` of all `tokens`."""
        new = tokens - cached
        if new <= 0:
            return 0.0
        pairs = tokens * tokens - cached * cached
        return self.a_s + self.c_s_per_token * new + self.d_s_per_token2 * pairs

    def observe(self, tokens: int, cached: int, took_s: float) -> None:
        """The engine computed ``tokens - cached`` tokens behind `cached` in `took_s`."""
        new = tokens - cached
        if self.fixed or new <= 0 or not took_s > 0:
            return
        if self.samples >= 8:  # one stall must not bend the curve
            expected = self.predict_s(tokens, cached)
            took_s = min(max(took_s, expected / 4), expected * 4)
        self.samples += 1
        x = (1.0, new / 1e3, (tokens * tokens - cached * cached) / 1e6)
        weight = 1 / took_s**2  # what matters is the relative error
        for i, j in itertools.product(range(3), repeat=2):
            self._xx[i][j] = self._xx[i][j] * self._FADING + weight * x[i] * x[j]
        for i in range(3):
            self._xt[i] = self._xt[i] * self._FADING + weight * x[i] * took_s
        self._tt = self._tt * self._FADING + 1.0
        a, c, d = self._fit()
        self.a_s, self.c_s_per_token, self.d_s_per_token2 = a, c / 1e3, d / 1e6

    def _fit(self) -> tuple[float, float, float]:
        """The non-negative coefficients with the least error: the best of all subsets."""
        best, best_error = (0.0, 0.0, 0.0), float("inf")
        # Few before many, and the linear term first: what one sample cannot tell apart is linear.
        for chosen in ((1,), (2,), (0,), (0, 1), (1, 2), (0, 2), (0, 1, 2)):
            solved = _solve(
                [[self._xx[i][j] for j in chosen] for i in chosen], [self._xt[i] for i in chosen]
            )
            if solved is None or min(solved) < 0:
                continue
            error = self._tt - sum(self._xt[i] * v for i, v in zip(chosen, solved, strict=True))
            if error < best_error - 1e-9 * self._tt:
                values = dict(zip(chosen, solved, strict=True))
                best = (values.get(0, 0.0), values.get(1, 0.0), values.get(2, 0.0))
                best_error = error
        return best


def _solve(matrix: list[list[float]], right: list[float]) -> list[float] | None:
    """Solve a small symmetric system by elimination; None when it is nearly singular."""
    size = len(right)
    rows = [[*matrix[i], right[i]] for i in range(size)]
    for i in range(size):
        pivot = rows[i][i]
        if pivot <= 1e-9 * matrix[i][i] or pivot <= 0:
            return None
        for k in range(i + 1, size):
            factor = rows[k][i] / pivot
            for j in range(i, size + 1):
                rows[k][j] -= factor * rows[i][j]
    solved = [0.0] * size
    for i in reversed(range(size)):
        known = sum(rows[i][j] * solved[j] for j in range(i + 1, size))
        solved[i] = (rows[i][size] - known) / rows[i][i]
    return solved


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
    """

    tokens: int
    load_s: float
    prefill_s: float | None
    recompute_s: float | None
    reason: str

    @property
    def ttft_s(self) -> float | None:
        """Predicted time to first token."""
        return None if self.prefill_s is None else self.load_s + self.prefill_s


def decide(
    total_tokens: int, memory_tokens: int, offers: Sequence[Offer], prefill: PrefillModel
) -> Decision:
    """Choose how many tokens of a prompt to take from the cache.

    Args:
        total_tokens: Tokens of the prompt.
        memory_tokens: Tokens of its prefix that are in memory, which cost nothing.
        offers: What stores hold behind that, each beginning where the one before it ends.
        prefill: The engine's speed.
    """
    end = offers[-1].end_token if offers else memory_tokens
    load_s = sum(offer.load_s for offer in offers)
    if not prefill.known:
        return Decision(end, load_s, None, None, "unknown_prefill")
    recompute_s = prefill.predict_s(total_tokens, memory_tokens)
    best = Decision(memory_tokens, 0.0, recompute_s, recompute_s, "memory_only")
    spent_s = 0.0
    for offer in offers:
        spent_s += offer.load_s
        rest_s = prefill.predict_s(total_tokens, offer.end_token)
        if best.ttft_s is None or spent_s + rest_s < best.ttft_s:
            reason = "all" if offer.end_token == end else "part"
            best = Decision(offer.end_token, spent_s, rest_s, recompute_s, reason)
    return best


@dataclass(frozen=True)
class Budget:
    """Until when a request may wait for its cache, given what it has of it.

    A request that has waited ``t`` and holds ``k`` tokens is done at ``t`` + the time of computing
    the rest. The budget holds that to the time of computing all that was not in memory, plus a
    small regret: so a load that stalls at once is left early, and one that stalls late has paid
    for its wait already.

    A store far away cannot answer within that. If it was measured, it is given what it mostly takes
    and a quarter more, as long as that is small beside computing.
    """

    total_tokens: int
    memory_tokens: int
    prefill: PrefillModel
    began: float
    deadline: float  # the caller's, absolute

    @property
    def recompute_s(self) -> float:
        """Time of computing all that was not in memory."""
        return self.prefill.predict_s(self.total_tokens, self.memory_tokens)

    def until(self, tokens: int, expected_s: float = 0.0, end_s: float = 0.0) -> float:
        """The moment at which a request that holds `tokens` of its prefix must stop waiting.

        `expected_s` and `end_s` are when, counted from the beginning of the request, something
        should come, and when everything should be there, by what was measured of the store; 0: it
        was not.
        """
        if not self.prefill.known:
            return self.deadline
        all_s = self.recompute_s
        allowed_s = (1 + _REGRET) * all_s - self.rest_s(tokens)
        patient_s = expected_s * _PATIENCE
        if patient_s <= _TRUST * all_s and end_s <= IN_SIGHT * all_s:
            allowed_s = max(allowed_s, patient_s)
        return min(self.deadline, self.began + allowed_s)

    def rest_s(self, tokens: int) -> float:
        """Time of computing what is behind `tokens`."""
        return self.prefill.predict_s(self.total_tokens, tokens)

    def gain_s(self, tokens: int, goal: int, remaining_s: float) -> float:
        """What waiting for `goal` tokens, still `remaining_s`, saves against stopping now."""
        if not self.prefill.known:
            return float("inf")
        return self.rest_s(tokens) - self.rest_s(goal) - remaining_s
