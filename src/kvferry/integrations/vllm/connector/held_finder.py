"""What a scheduler is told of a cache server: that which is held there until it is loaded."""

from __future__ import annotations

from contextlib import suppress

from kvferry.base.errors import KVFerryError
from kvferry.chunks.generation import shared_of
from kvferry.chunks.prompt import Prompt
from kvferry.integrations.vllm.connector.held import HeldCache

__all__ = ["HeldFinder"]


class HeldFinder:
    """A `Finder` for one rank: what it finds is held.

    Args:
        cache: Closed by its owner.
    """

    def __init__(self, cache: HeldCache) -> None:
        self._cache = cache

    def find(self, prompt: Prompt) -> int:
        """See `HeldCache.find`."""
        return self._cache.find(prompt)

    def now(self, prompt: Prompt) -> int | None:
        """Nothing, while there is no server."""
        return None if self._cache.available else 0

    @property
    def shared(self) -> bytes:
        """See `Finder`."""
        return shared_of(self._cache.generation)

    def renewed(self, ended: bytes, own: bytes) -> None:
        """See `Finder`; called in a thread that may wait."""
        with suppress(KVFerryError):  # it is being closed
            self._cache.renewed(ended, own)

    def close(self) -> None:
        """The cache is closed by its owner."""
