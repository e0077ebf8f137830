"""Parts of loads that were cut and have not ended yet: their pages wait for that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from kvferry.cache.memory import Memory
from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Ticket

__all__ = ["PendingLoads"]


class PendingLoads:
    """What stores have not let go of. Swept by whoever uses the cache next. Threads: any."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._parts: list[tuple[Ticket, int | Callable[[BatchResult], object]]] = []

    def add(self, ticket: Ticket, ended: int | Callable[[BatchResult], object]) -> None:
        """Pages belong to the ticket until it ends: those of a reservation, or `ended` is called
        then."""
        with self._lock:
            self._parts.append((ticket, ended))

    def sweep(self, limit_s: float = 0.0) -> int:
        """Free the pages of whatever has ended; wait `limit_s` at most. How many have not."""
        until = time.monotonic() + limit_s
        with self._lock:
            parts, self._parts = self._parts, []
        kept = []
        for ticket, ended in parts:
            result = ticket.wait(max(0.0, until - time.monotonic()))
            if result is None:
                kept.append((ticket, ended))
            elif isinstance(ended, int):
                self._memory.abort(ended)
            else:
                ended(result)
        with self._lock:
            self._parts += kept
            return len(self._parts)
