"""What a worker counts, each once: its name, its series in vLLM, its word in vLLM's log.

Several threads add to the sums, and one takes away what is new to report it.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["COUNTS", "Counts", "WorkerCount"]


@dataclass(frozen=True)
class WorkerCount:
    """A sum of what a worker did.

    Attributes:
        text: What its series in vLLM's ``/metrics`` is; "": it has none.
        title: What the line in vLLM's log calls it; "": it is not in there.
    """

    name: str
    text: str = ""
    title: str = ""

    @property
    def series(self) -> str:
        """Name of its series, without ``_total``."""
        stem = self.name.removesuffix("_s")
        return f"vllm:kvferry_{stem}{'_seconds' if stem != self.name else ''}"


COUNTS = (
    WorkerCount("loads", "Loads of prompts from the cache that have ended."),
    WorkerCount("loaded_chunks", "Chunks that were put into blocks.", "kvferry loaded chunks"),
    WorkerCount("loaded_bytes", "Bytes that were put into blocks."),
    WorkerCount(
        "failed_chunks",
        "Chunks that were to be loaded and were gone, damaged, or out of reach; computed instead.",
        "failed",
    ),
    WorkerCount(
        "declined_chunks",
        "Chunks that were there and not loaded, because computing them is quicker.",
        "declined",
    ),
    WorkerCount(
        "late_chunks",
        "Chunks that did not come within the time of a load; computed instead.",
        "late",
    ),
    WorkerCount("load_s", "Seconds that loads took, added up."),
    WorkerCount("lost_leases"),
    WorkerCount("saved_chunks", "Chunks that the cache has taken into its memory.", "saved"),
    WorkerCount("saved_bytes", "Bytes that the cache has taken into its memory."),
    WorkerCount("known_chunks", "Chunks that the cache had already."),
    WorkerCount("shed_chunks", "Chunks that were not saved for want of room.", "shed"),
    WorkerCount("written_chunks", "Chunks that stores have acknowledged.", "written"),
    WorkerCount(
        "refused_chunks",
        "Chunks that stores did not take: they were full, away, too slow, or let nobody in.",
        "refused",
    ),
    WorkerCount("save_s", "Seconds that saving took behind the steps, added up."),
    WorkerCount("lost_chunks"),
)


class Counts:
    """Sums of `COUNTS`, from zero. Threads: any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, float] = {count.name: 0 for count in COUNTS}
        self._reported = dict(self._sums)
        self._grown = False  # since the last report

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        with self._lock:
            self._sums[name] += value
            self._grown = True

    def read(self) -> dict[str, float]:
        """All sums since the beginning."""
        with self._lock:
            return dict(self._sums)

    def take(self) -> dict[str, float]:
        """What was added since the last call; only names with something."""
        if not self._grown:  # as in most steps
            return {}
        with self._lock:
            self._grown = False
            fresh = {
                name: value - self._reported[name]
                for name, value in self._sums.items()
                if value != self._reported[name]
            }
            self._reported = dict(self._sums)
            return fresh
