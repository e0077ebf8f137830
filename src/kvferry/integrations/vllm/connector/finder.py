"""How much of a prompt should be loaded: what a cache of this process has and what of it pays.

A cache waits for its stores as long as an answer can pay, and not at all for one that does not
answer (`kvferry.cache.store.tier`).

Threads: any.
"""

from __future__ import annotations

from contextlib import suppress

from kvferry.base.errors import KVFerryError
from kvferry.cache.interface import Cache
from kvferry.chunks.generation import shared_of
from kvferry.chunks.prompt import Prompt

__all__ = ["CacheFinder"]


class CacheFinder:
    """Asks one cache; see `Finder`.

    Args:
        cache: Closed by its owner.
    """

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    def find(self, prompt: Prompt) -> int:
        """See `Finder`."""
        return self._ask(prompt, None)

    def now(self, prompt: Prompt) -> int | None:
        """See `Finder`: what memory has, while there is nobody to ask who answers, and the prompt
        names no node."""
        return None if prompt.source or self._cache.asks_stores else self._ask(prompt, 0.0)

    @property
    def shared(self) -> bytes:
        """See `Finder`."""
        return shared_of(self._cache.generation)

    def renewed(self, ended: bytes, own: bytes) -> None:
        """See `Finder`."""
        with suppress(KVFerryError):  # it is being closed
            self._cache.renewed(ended, own)

    def close(self) -> None:
        """The cache stays open."""

    def _ask(self, prompt: Prompt, limit_s: float | None) -> int:
        try:
            found = self._cache.lookup(prompt, timeout_s=limit_s, lease=True)
        except KVFerryError:  # it is being closed
            return 0
        tokens = found.tokens if found.worth_tokens is None else found.worth_tokens
        return tokens // prompt.chunk_size
