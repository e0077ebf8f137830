"""How much of a prompt should be loaded: what the caches of this process have and what of it pays.

A cache waits for its stores as long as an answer can pay, and not at all for one that does not
answer (`kvferry.cache.store.tier`).

Threads: any.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from kvferry.base.errors import KVFerryError
from kvferry.chunks.generation import shared_of
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.interfaces import Backend
from kvferry.metrics import MISS_REASONS, CacheMetrics

__all__ = ["BackendFinder", "count_rest", "reason_of_miss"]


class _Cache(Backend, Protocol):
    """A cache that knows its stores: `kvferry.TieredCache`."""

    @property
    def asks_stores(self) -> bool: ...


class BackendFinder:
    """Asks caches of this process, one for each rank; the smallest answer counts.

    Args:
        backends: Closed by whoever opened them.
    """

    def __init__(self, backends: Sequence[_Cache]) -> None:
        self._backends = list(backends)

    def find(self, prompt: Prompt) -> int:
        """See `Finder`."""
        return self._ask(prompt, None)

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`: what memory has, while no store is up or none answers, and the
        prompt names no node."""
        if prompt.source or any(backend.asks_stores for backend in self._backends):
            return None
        return self._ask(prompt, 0.0)

    @property
    def shared(self) -> bytes:
        """See `Finder`."""
        return shared_of(self._backends[0].generation)

    def renewed(self, ended: bytes, own: bytes) -> None:
        """See `Finder`."""
        for backend in self._backends:
            with suppress(KVFerryError):  # it is being closed
                backend.renewed(ended, own)

    def close(self) -> None:
        """The backends stay open."""

    def _ask(self, prompt: Prompt, limit_s: float | None) -> int:
        """The smallest answer."""
        fewest = prompt.chunks
        for backend in self._backends:
            try:
                found = backend.lookup(prompt, timeout_s=limit_s)
            except KVFerryError:  # it is being closed
                return 0
            tokens = found.tokens if found.worth_tokens is None else found.worth_tokens
            count_rest(backend.metrics, prompt, tokens // prompt.chunk_size, found.reason)
            fewest = min(fewest, tokens // prompt.chunk_size)
            if not fewest:
                break
        return fewest


def count_rest(metrics: CacheMetrics, prompt: Prompt, found: int, reason: str) -> None:
    """A look-up found so many chunks of a prompt; nobody asks for the rest any more.

    What the engine has itself was not wanted.
    """
    rest = prompt.chunks - max(found, prompt.computed_tokens // prompt.chunk_size)
    if rest > 0:
        metrics.requested(rest * prompt.chunk_size)
        metrics.missed(reason_of_miss(reason), rest)


def reason_of_miss(reason: str) -> str:
    """The label of a miss in `kvferry.metrics`, for the reason that a cache gives."""
    return reason if reason in MISS_REASONS else "error" if reason else "never_stored"
