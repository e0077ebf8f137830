"""What a load will take, what computing will take, and what waiting for it may cost.

Loading ``b`` bytes from a store takes ``f + (q + b) / B``: a fixed part (round trips, scheduling),
and its bandwidth, which it shares with the ``q`` bytes that others are loading already. Computing
``n`` tokens behind ``m`` that are cached takes ``a + c * n + d * ((m + n)**2 - m**2)`` (a prefill
is linear in its matrix products and quadratic in its attention).

Time to first token after loading the first ``p`` tokens is the sum of both. As a function of ``p``
within one store it is concave: the load is linear, and what is saved grows with ``p``. So its
minimum lies at an end: load nothing from a store, or all that it has of the prefix. `decide`
compares just these two.

All of it is learnt online, from the loads and steps that happen. A store that was found too slow
to be used would never be measured again; so its estimate recovers with time, and the store gets
another try, whose cost `kvferry.cache.load.wait_budget` bounds.

A request that waits and gets nothing is later than without a cache: that is its loss. One request
may pay for a question that is likely to be worth it; all of them together pay little. So there is
an `Account`: over any hundred requests in a row, losses stay below 7 % of what the requests would
have taken without a cache (``test_misses_cost_little_all_in_all``). Each may lose a share of its
own, and what others before it have left over, which is at most what two requests take.

`Odds` are how much of a prefix a store mostly has. With them, waiting for an answer pays while
P times what it saves is above (1 - P) times the wait.

Requests that wait at the same time share the store, so each load takes longer; but where none of
them got its KV they would queue for the engine. `Together` knows how long that queue would be.

Units: seconds, bytes, tokens. Threads: `Account`, `Together` and `Odds` any; each other object is
guarded by its owner.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvferry.cache.cost.prefill import PrefillModel

__all__ = [
    "OWN_LOSS_SHARE",
    "UNSEEN",
    "WINS_MAX",
    "Account",
    "Allowance",
    "Decision",
    "FirstByte",
    "LoadModel",
    "Odds",
    "Offer",
    "Place",
    "Together",
    "decide",
]

# The weight of a sample of ordinary size. The larger a sample is, the more it counts: by as much
# again for each of so many bytes, up to the most.
_SAMPLE_WEIGHT, _SAMPLE_BYTES, _SAMPLE_WEIGHT_MAX = 0.3, 64 << 20, 0.8
# A smaller load says more about the fixed part than about the bandwidth.
_BANDWIDTH_SAMPLE_BYTES_MIN = 256 << 10
# The fixed part takes no more than this share of a load, and so can become less than it was.
_FIXED_SHARE_MAX = 0.9
# A store of which nothing is known is taken to be good: requests lose little by a first load.
_ASSUMED_FIXED_S = 0.5e-3
_ASSUMED_BANDWIDTH_BYTES_S = 4e9
# A store that is not used doubles its estimated bandwidth, and halves its fixed part, in this time.
_RECOVERY_S = 30.0


class FirstByte(NamedTuple):
    """The least and the most that the first byte of a load has taken, as far as anybody looked.

    Attributes:
        least_s: When nothing had come yet.
        most_s: When something had; infinite: nothing ever came.
    """

    least_s: float
    most_s: float


UNSEEN = FirstByte(0.0, math.inf)  # nobody looked


class LoadModel:
    """How long a store takes, from what it took."""

    def __init__(
        self,
        fixed_s: float = _ASSUMED_FIXED_S,
        bandwidth_bytes_s: float = _ASSUMED_BANDWIDTH_BYTES_S,
    ) -> None:
        self._assumed_fixed_s = self._fixed_s = fixed_s
        self._assumed_bandwidth = self._bandwidth = bandwidth_bytes_s
        self._measured_at: float | None = None
        self._loaded_at: float | None = None  # questions say nothing about the bandwidth
        self._cut = False  # the last load
        self.samples = 0

    def fixed_s(self, now: float) -> float:
        """The part of a load that does not depend on its size."""
        recovery = self._recovery(self._measured_at, now)
        return max(self._fixed_s / recovery, min(self._assumed_fixed_s, self._fixed_s))

    def bandwidth_bytes_s(self, now: float) -> float:
        """Bytes per second once it flows."""
        recovered = self._bandwidth * self._recovery(self._loaded_at, now)
        return min(recovered, max(self._assumed_bandwidth, self._bandwidth))

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
        first_byte: FirstByte = UNSEEN,
        *,
        whole: bool = True,
    ) -> None:
        """Learn from a load that brought `size_bytes` in `took_s`, or from a question (0 bytes).

        Args:
            now: The moment at which it ended.
            first_byte: When bytes began to come.
            whole: The load came to its end; False: it was cut.
        """
        took_s = max(took_s, 1e-6)
        fixed, bandwidth = self.fixed_s(now), self.bandwidth_bytes_s(now)
        fixed = max(first_byte.least_s, min(fixed, first_byte.most_s))
        is_first = self._measured_at is None
        self._measured_at = now
        self.samples += 1
        if first_byte.most_s == math.inf and first_byte.least_s:  # nothing has come at all
            self._fixed_s = max(fixed, took_s)
            return
        if size_bytes < _BANDWIDTH_SAMPLE_BYTES_MIN:
            sample_s = max(took_s - size_bytes / bandwidth, 1e-6)
            self._fixed_s = sample_s if is_first else fixed + _SAMPLE_WEIGHT * (sample_s - fixed)
            return
        fixed = max(first_byte.least_s, min(fixed, _FIXED_SHARE_MAX * took_s))
        flowing_s = took_s - fixed
        # A load that was mostly waiting says little about the bandwidth.
        flowing_share = min(1.0, 2 * flowing_s / took_s)
        weight = min(_SAMPLE_WEIGHT_MAX, _SAMPLE_WEIGHT * (1 + size_bytes / _SAMPLE_BYTES))
        if self._cut and whole:  # a cut load saw its beginning alone, which is its slowest part
            weight = _SAMPLE_WEIGHT_MAX
        self._cut = not whole
        weight = flowing_share * (1.0 if self._loaded_at is None else weight)
        # Times add up, so it is the time per byte that is averaged.
        per_byte = (1 - weight) / bandwidth + weight * flowing_s / size_bytes
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
        offers: What stores hold behind these tokens, each beginning where the one before it ends.
        prefill: The engine's speed.
        queued_s: Time of what the engine computes before this prompt: a load that takes no longer
            costs nothing.
        waited_s: As much of that time as has passed.
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


# How much a request may lose by its own right, as a share of its time without a cache.
OWN_LOSS_SHARE = 0.05
# How much others may leave over, in requests of mean length; with the share above, 7 of a hundred.
_SAVED_REQUESTS_MAX = 2.0
# How much is left over before the first request, in requests of its length.
_ADVANCE_REQUESTS = 1.0
# The weight of a request in the mean length of requests.
_MEAN_WEIGHT = 0.05
# How many seconds may be waited for each that is saved, at most: nothing is surer.
WINS_MAX = 49.0
# How quickly a store's answers are forgotten: with each one, this share.
_FADING = 0.02


class Allowance(NamedTuple):
    """What a request may lose.

    Attributes:
        loss_s: All in all.
        lent_s: Of what others left over: nobody else's until `Account.close` is told of it.
    """

    loss_s: float
    lent_s: float


class Account:
    """What requests may still lose by waiting."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self._saved_s = 0.0
        self._lent_s = 0.0

    def open(self, base_s: float) -> Allowance:
        """What a request may lose that would take `base_s` without a cache."""
        with self._lock:
            if not self._mean_s:
                self._mean_s, self._saved_s = base_s, _ADVANCE_REQUESTS * base_s
            lent_s = min(base_s, max(0.0, self._saved_s - self._lent_s))
            self._lent_s += lent_s
            loss_s = OWN_LOSS_SHARE * base_s + lent_s + min(0.0, self._saved_s)
            return Allowance(max(0.0, loss_s), lent_s)

    def close(self, base_s: float, loss_s: float, lent_s: float) -> None:
        """A request is over and has lost `loss_s`, or (0, 0) there was none; what it was lent
        comes back."""
        with self._lock:
            self._lent_s = max(0.0, self._lent_s - lent_s)
            if base_s <= 0 and loss_s <= 0:
                return
            self._mean_s += _MEAN_WEIGHT * (base_s - self._mean_s)
            saved_s = self._saved_s + OWN_LOSS_SHARE * base_s - max(0.0, loss_s)
            self._saved_s = min(saved_s, _SAVED_REQUESTS_MAX * self._mean_s)


class Odds:
    """How likely a store has what it is asked for."""

    def __init__(self) -> None:
        self._has, self._asked = 1.0, 2.0  # nothing is known: one of two

    def answered(self, share: float) -> None:
        """The store had this share of what it was asked for."""
        keep = 1 - _FADING
        self._has, self._asked = keep * self._has + share, keep * self._asked + 1

    @property
    def wins(self) -> float:
        """P / (1 - P): how many seconds may be waited for each that an answer can save."""
        has, lacks = self._has, self._asked - self._has
        return min(WINS_MAX, max(1 / WINS_MAX, has / max(lacks, 1e-9)))


class Together:
    """The requests of one engine that wait for their KV, by what computing each would take."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all_s = 0.0

    def join(self, compute_s: float) -> Place:
        """One more request waits."""
        with self._lock:
            self._all_s += compute_s
        return Place(self, compute_s)

    def leave(self, compute_s: float) -> None:
        """One of them does not wait any more."""
        with self._lock:
            self._all_s -= compute_s

    @property
    def all_s(self) -> float:
        """What computing all of them would take."""
        return self._all_s


class Place:
    """A request among those that wait.

    Attributes:
        kept: A lookup has begun a load for it: the place is left when that load is over, or when
            somebody has come for it, and not when the lookup is answered.
    """

    def __init__(self, together: Together, compute_s: float) -> None:
        self._together, self._compute_s = together, compute_s
        self._most_s = 0.0
        self._waits = True
        self.kept = False

    @property
    def ahead_s(self) -> float:
        """What would be computed before this request if no other got its KV: half of the others, on
        average."""
        ahead_s = max(0.0, self._together.all_s - self._compute_s) / 2
        self._most_s = max(self._most_s, ahead_s)
        return ahead_s

    @property
    def most_s(self) -> float:
        """The most that `ahead_s` was while this request waited, as far as anybody looked."""
        return max(self._most_s, self.ahead_s)

    def leave(self) -> None:
        """The request waits no more. Idempotent."""
        waits, self._waits = self._waits, False
        if waits:
            _ = self.ahead_s  # for `most_s`, which is asked for behind this
            self._together.leave(self._compute_s)
