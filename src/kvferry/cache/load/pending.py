"""Jobs of loads that were cut, and that have not ended yet: their pages wait for the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

from kvferry.client.batch import BatchResult
from kvferry.connectors.base import Ticket

__all__ = ["PendingLoads"]

Ended: TypeAlias = Callable[[BatchResult], object]


class _Job(NamedTuple):
    ticket: Ticket
    ended: Ended


class PendingLoads:
    """What stores have not let go of. Swept by whoever uses the cache next. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: list[_Job] = []

    def add(self, ticket: Ticket, ended: Ended) -> None:
        """Pages belong to this job until it ends; `ended` is called then, and frees them."""
        with self._lock:
            self._jobs.append(_Job(ticket, ended))

    def sweep(self, limit_s: float = 0.0) -> int:
        """Free the pages of the jobs that have ended; how many have not.

        Args:
            limit_s: How long to wait for them, at most.
        """
        until = time.monotonic() + limit_s
        with self._lock:
            jobs, self._jobs = self._jobs, []
        kept = []
        for job in jobs:
            result = job.ticket.wait(max(0.0, until - time.monotonic()))
            if result is None:
                kept.append(job)
            else:
                job.ended(result)
        with self._lock:
            self._jobs += kept
            return len(self._jobs)
