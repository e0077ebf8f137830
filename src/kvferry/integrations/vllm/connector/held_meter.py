"""What an engine sees of a cache server, counted for its own ``/metrics`` and for the server's.

The server counts what is loaded and stored there. What it cannot know it is told now and then: what
a request wanted and was not even asked for, because a look-up said that it is not there; copies
between the shared memory and the engine; the times to first tokens.

Threads: any.
"""

from __future__ import annotations

import threading
from typing import Any

from kvferry.cache import Lookup, Retrieved, Stored
from kvferry.chunks.prompt import Prompt
from kvferry.metrics import MISS_REASONS, CacheMetrics
from kvferry.metrics.deltas import MetricDeltas, add_deltas

__all__ = ["SHOWN", "HeldMeter", "count_rest"]

_OF_ENGINE = ("kvferry_ttft_share", "kvferry_memory_seconds", "kvferry_memory_bytes")
_UNASKED = ("kvferry_tokens_requested", "kvferry_missed_chunks")
# The families that an engine can show; the server has the others.
SHOWN = (
    *("kvferry_tokens_requested", "kvferry_tokens_hit", "kvferry_bytes_hit"),
    *("kvferry_missed_chunks", "kvferry_lookup_seconds", "kvferry_retrieve_seconds"),
    *("kvferry_shed_chunks", *_OF_ENGINE),
)


def count_rest(metrics: CacheMetrics, prompt: Prompt, found: int, reason: str) -> None:
    """A look-up found so many chunks of a prompt; nobody asks for the rest any more.

    What the engine has itself was not wanted.
    """
    rest = prompt.chunks - max(found, prompt.computed_tokens // prompt.chunk_size)
    if rest > 0:
        metrics.requested(rest * prompt.chunk_size)
        metrics.missed(_known(reason), rest)


class HeldMeter:
    """See the module.

    Args:
        chunk_bytes: Length of a chunk.

    Attributes:
        metrics: What the engine shows.
    """

    def __init__(self, chunk_bytes: int) -> None:
        self.metrics = CacheMetrics()
        self._chunk_bytes = chunk_bytes
        self._unasked = CacheMetrics()
        self._lock = threading.Lock()
        self._deltas = (
            MetricDeltas(self.metrics, only=_OF_ENGINE),
            MetricDeltas(self._unasked, only=_UNASKED),
        )

    def looked_up(self, prompt: Prompt, found: Lookup, took_s: float) -> None:
        """A look-up is over."""
        self.metrics.looked_up(took_s)
        chunks = found.tokens // prompt.chunk_size
        if not found.arriving_tokens:  # else all of it is retrieved
            for metrics in (self.metrics, self._unasked):
                count_rest(metrics, prompt, chunks, found.reason)

    def retrieved(self, prompt: Prompt, hit: Retrieved, took_s: float) -> None:
        """A retrieve is over."""
        size, metrics = prompt.chunk_size, self.metrics
        metrics.retrieved(took_s)
        metrics.requested(prompt.chunks * size)
        for tier, tokens in hit.tiers.items():
            if tokens:
                metrics.hit(tier, tokens, tokens // size * self._chunk_bytes)
        missed = prompt.chunks - hit.tokens // size
        if missed > 0:
            metrics.missed(_known(hit.reason), missed)

    def stored(self, stored: Stored, took_s: float) -> None:
        """A store is over."""
        if stored.chunks:
            self.metrics.copied("in", stored.chunks * self._chunk_bytes, took_s)
        if stored.shed:
            self.metrics.shed("pool_full", stored.shed)

    def deltas(self) -> dict[str, Any]:
        """What the server does not know yet; empty where there is nothing."""
        told: dict[str, Any] = {}
        with self._lock:
            for deltas in self._deltas:
                add_deltas(told, deltas.take())
        return {
            kind: families
            for kind, said in told.items()
            if (families := {name: grown for name, of in said.items() if (grown := _grown(of))})
        }


def _grown(labels: dict[str, Any]) -> dict[str, Any]:
    """Without those that are told because they exist."""
    return {label: value for label, value in labels.items() if _any(value)}


def _any(value: Any) -> bool:
    return sum(value[1]) > 0 if isinstance(value, list) else value > 0


def _known(reason: str) -> str:
    return reason if reason in MISS_REASONS else "error" if reason else "never_stored"
