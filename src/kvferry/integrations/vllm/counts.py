"""Numbers that several threads add to, and one takes away to report them."""

from __future__ import annotations

import threading
from collections.abc import Iterable

__all__ = ["Counts"]


class Counts:
    """Sums by name, from zero. Threads: any."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = dict.fromkeys(names, 0)
        self._reported: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        with self._lock:
            self._sums[name] = self._sums.get(name, 0) + value

    def read(self) -> dict[str, float]:
        """All sums since the beginning."""
        with self._lock:
            return dict(self._sums)

    def take(self) -> dict[str, float]:
        """What was added since the last call; only names with something."""
        with self._lock:
            fresh = {
                name: value - self._reported.get(name, 0)
                for name, value in self._sums.items()
                if value != self._reported.get(name, 0)
            }
            self._reported = dict(self._sums)
            return fresh
