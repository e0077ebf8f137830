"""What instances have done while the controller was there: hits by tier, and who read from whom.

Instances say with every heartbeat what their process has done since it began; the growth is added
up here. So a controller that begins anew counts from nothing, and a process that begins anew takes
nothing away. Of the last half hour there is a sample for every two seconds.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import pairwise
from operator import itemgetter
from typing import TypedDict

from kvferry.sharing.membership.messages import WorkDone

__all__ = ["HELD_S", "MEMORY", "PEER", "DoneTransfer", "Traffic", "TransferRow"]

MEMORY, PEER = "memory", "peers"
HELD_S = 1800.0
_EVERY_S = 2.0
_TIERS_MAX = 32  # names of stores
_PAIRS_EVERY_S, _PAIRS_S = 5.0, 60.0
_PEER_TIER = "peer "


@dataclass
class DoneTransfer:
    """Sums over all instances; times of prefill are those of rank 0, for all ranks share them.

    Attributes:
        at: When the sums were taken, on the clock of `Traffic`.
        tokens, bytes: Of hits, by tier: "memory", "peers", and stores by name.
    """

    at: float
    requested_tokens: int = 0
    saved_s: float = 0.0
    tokens: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def since(self, before: DoneTransfer) -> DoneTransfer:
        """What came behind `before`; `at` is how many seconds that took."""
        return DoneTransfer(
            self.at - before.at,
            self.requested_tokens - before.requested_tokens,
            self.saved_s - before.saved_s,
            self.tokens - before.tokens,
            self.bytes - before.bytes,
        )


# What one instance has read from another; `window_bytes` of it in the last `window_s`.
TransferRow = TypedDict(
    "TransferRow",
    {
        "from": str,
        "to": str,
        "tokens": int,
        "bytes": int,
        "window_s": float,
        "window_bytes": int,
        "bytes_s": int,
    },
)


class Traffic:
    """The hits of all instances, and what each has read from another one.

    Args:
        clock: Seconds that never jump.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        now = clock()
        self._total = DoneTransfer(now)
        self._samples: deque[DoneTransfer] = deque([DoneTransfer(now)], round(HELD_S / _EVERY_S))
        self._tokens: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._bytes: defaultdict[tuple[str, str], int] = defaultdict(int)
        self._pairs: deque[tuple[float, dict[tuple[str, str], int]]] = deque(
            [(now, {})], round(_PAIRS_S / _PAIRS_EVERY_S)
        )

    def add(self, instance: str, rank: int, before: WorkDone, after: WorkDone) -> None:
        """A process has done more than at its last heartbeat."""
        old = {one.tier: one for one in before.hits}
        grown = [one for one in after.hits if one != old.get(one.tier)]
        with self._lock:
            total = self._total
            total.requested_tokens += max(0, after.requested_tokens - before.requested_tokens)
            if rank == 0:
                total.saved_s += max(0.0, after.saved_s - before.saved_s)
            for hit in grown:
                was = old.get(hit.tier)
                tokens = max(0, hit.tokens - (was.tokens if was else 0))
                size = max(0, hit.bytes - (was.bytes if was else 0))
                if not tokens:
                    continue
                tier = self._tier(hit.tier)
                total.tokens[tier] += tokens
                total.bytes[tier] += size
                if tier is PEER:
                    pair = (hit.tier.removeprefix(_PEER_TIER), _name(instance, rank))
                    self._tokens[pair] += tokens
                    self._bytes[pair] += size

    def _tier(self, name: str) -> str:
        if name == "l1":
            return MEMORY
        if name.startswith(_PEER_TIER):
            return PEER
        known = self._total.tokens
        return name if name in known or len(known) < _TIERS_MAX else "other stores"

    def tick(self) -> None:
        """Time has passed."""
        now = self._clock()
        with self._lock:
            if now - self._samples[-1].at >= _EVERY_S:
                self._samples.append(self._now(now))
            if now - self._pairs[-1][0] >= _PAIRS_EVERY_S:
                self._pairs.append((now, dict(self._bytes)))

    def window(self, seconds: float) -> DoneTransfer:
        """What was done in about the last so many seconds; `at` says in how many."""
        with self._lock:
            now = self._now(self._clock())
            begin = next((one for one in self._samples if one.at >= now.at - seconds), now)
            return now.since(begin)

    def series(self, seconds: float, points: int) -> list[DoneTransfer]:
        """The last so many seconds in at most so many pieces, each as `window` gives it."""
        with self._lock:
            now = self._clock()
            samples = [one for one in self._samples if one.at >= now - seconds]
        step = max(1, -(-len(samples) // points))
        taken = samples[(len(samples) - 1) % step :: step]
        return [late.since(early) for early, late in pairwise(taken)]

    def moved(self, limit: int) -> list[TransferRow]:
        """Who has read from whom, the most first."""
        with self._lock:
            began, before = self._pairs[0]
            recent_s = self._clock() - began
            most = nlargest(limit, self._bytes.items(), key=itemgetter(1))
            return [self._row(pair, size - before.get(pair, 0), recent_s) for pair, size in most]

    def _row(self, pair: tuple[str, str], recent_bytes: int, recent_s: float) -> TransferRow:
        return {
            "from": pair[0],
            "to": pair[1],
            "tokens": self._tokens[pair],
            "bytes": self._bytes[pair],
            "window_s": round(recent_s, 3),
            "window_bytes": recent_bytes,
            "bytes_s": round(recent_bytes / recent_s) if recent_s > 0 else 0,
        }

    def _now(self, now: float) -> DoneTransfer:
        total = self._total
        return DoneTransfer(
            *(now, total.requested_tokens, total.saved_s),
            *(Counter(total.tokens), Counter(total.bytes)),
        )


def _name(instance: str, rank: int) -> str:
    return f"{instance}/{rank}" if rank else instance
