"""What engines have done, from their metrics to what a controller is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from kvferry.membership.messages import HITS_MAX, Hits, Work

__all__ = ["work_of"]


def work_of(snapshots: Iterable[Mapping[str, Any]]) -> Work:
    """The sum of what `EngineMetrics.snapshot` says of each engine."""
    requested, saved_s = 0, 0.0
    tokens: Counter[str] = Counter()
    size: Counter[str] = Counter()
    for one in snapshots:
        requested += int(one["kvferry_tokens_requested_total"])
        saved_s += one["kvferry_prefill_saved_seconds_total"]
        tokens.update(one["kvferry_tokens_hit_total"])
        size.update(one["kvferry_bytes_hit_total"])
    # In an order in which what does not fit once never comes back: it would be counted anew.
    named = sorted((tier for tier in tokens if tokens[tier]), key=lambda t: (t[:5] == "peer ", t))
    hits = tuple(Hits(tier, int(tokens[tier]), int(size[tier])) for tier in named[:HITS_MAX])
    return Work(requested, float(saved_s), hits)
