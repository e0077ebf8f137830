"""Chunks that a store had, and that were not what was asked for.

Threads: any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

__all__ = ["Refusals"]

_REMEMBERED = 4096


class Refusals:
    """Why chunks of one store were refused lately, by hash."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._why: OrderedDict[bytes, str] = OrderedDict()

    def add(self, digest: bytes, why: str) -> None:
        """It is refused; the oldest ones are forgotten."""
        with self._lock:
            self._why[digest] = why
            while len(self._why) > _REMEMBERED:
                self._why.popitem(last=False)

    def why(self, digest: bytes) -> str | None:
        """Why the chunk with this hash was refused lately."""
        with self._lock:
            return self._why.get(digest)

    def stored(self, digests: Sequence[bytes]) -> None:
        """These chunks were written anew: what was wrong with them is history."""
        with self._lock:
            if self._why:
                for digest in digests:
                    self._why.pop(digest, None)
