"""What caches have done, from their metrics to what a controller is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvferry.metrics import CacheMetrics
from kvferry.sharing.membership.messages import HITS_MAX, Hits, WorkDone

__all__ = ["work_of"]

_COUNTERS = ("tokens_requested", "prefill_saved_seconds", "tokens_hit", "bytes_hit")


def work_of(every: Iterable[CacheMetrics]) -> WorkDone:
    """The sum of what each engine has counted."""
    requested, saved_s = 0.0, 0.0
    tokens: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for metrics in every:
        wanted, saved, hit_tokens, hit_bytes = metrics.counted(*_COUNTERS)
        requested += sum(wanted.values())
        saved_s += sum(saved.values())
        for tier, count in hit_tokens.items():
            tokens[tier] += int(count)
        for tier, count in hit_bytes.items():
            size[tier] += int(count)
    # In an order in which what does not fit once never comes back: it would be counted anew.
    named = sorted((tier for tier in tokens if tokens[tier]), key=lambda t: (t[:5] == "peer ", t))
    hits = tuple(Hits(tier, tokens[tier], size[tier]) for tier in named[:HITS_MAX])
    return WorkDone(int(requested), float(saved_s), hits)
