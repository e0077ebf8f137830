"""What a worker counts, each once: its name, its series in vLLM, its word in vLLM's log.

They are counted by `kvferry.metrics`, like all else, and told as what is new.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvferry.metrics.deltas import MetricDeltas
from kvferry.metrics.series import Cells, Family

__all__ = ["COUNTS", "Counts", "WorkerCount", "worker_families"]


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


def worker_families() -> dict[str, Family]:
    """New families of `COUNTS` by their names, all at zero."""
    made = {count.name: Family(count.series, "counter", count.text) for count in COUNTS}
    for family in made.values():
        family.declare()
    return made


class Counts:
    """Sums of `COUNTS`, from zero. Threads: any may add; one takes."""

    labels: Mapping[str, str] = {}

    def __init__(self) -> None:
        self._cells = Cells(worker_families)
        shown = [count.series for count in COUNTS if count.text]
        self._deltas = MetricDeltas(self, only=shown, begin=False)
        self._grown = False  # since the last report

    def add(self, name: str, value: float) -> None:
        """Add to a sum."""
        self._cells.mine.families[name].add("", value)
        self._grown = True

    def read(self) -> dict[str, float]:
        """All sums since the beginning."""
        return {name: family.values[""] for name, family in self._cells.total().items()}

    def families(self) -> list[Family]:
        """All sums, as families of metrics."""
        return list(self._cells.total().values())

    def take(self) -> dict[str, Any]:
        """What was added since the last call, as `MetricDeltas` tells it; {}: nothing."""
        if not self._grown:  # as in most steps
            return {}
        self._grown = False  # first: what comes meanwhile is told the next time
        return self._deltas.take()
