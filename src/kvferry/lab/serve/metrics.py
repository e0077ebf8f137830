"""What the demo's server counts, beside what its cache does."""

from __future__ import annotations

from dataclasses import fields

from kvferry.cache import TieredCache
from kvferry.lab.serve.batcher import Batcher
from kvferry.metrics.exposition import exposition
from kvferry.metrics.series import Family

__all__ = ["metrics_text"]

_TEXTS = {
    "requests": "Prompts that were looked up.",
    "cancelled": "Prompts whose client has gone.",
    "prompt_tokens": "Tokens of prompts.",
    "cached_tokens": "Those of them that were loaded.",
    "computed_tokens": "Those of them that were computed.",
    "output_tokens": "Tokens of answers.",
    "wrong_chunks": "Loaded chunks that were not what they must be.",
    "steps": "Steps of the engine.",
    "late_s": "Seconds by which steps took longer than their pace says.",
}


class _Counted:
    """The families of one batcher, as they are now."""

    def __init__(self, batcher: Batcher, cache: TieredCache | None) -> None:
        self.labels: dict[str, str] = {}
        self._batcher = batcher
        self._cache = cache

    def families(self) -> list[Family]:
        """See `Source`."""
        made = []
        for each in fields(self._batcher.counts):
            name = each.name.replace("late_s", "late_seconds")
            family = Family(f"kvferry_demo_{name}", "counter", _TEXTS[each.name], "")
            family.values[""] = getattr(self._batcher.counts, each.name)
            made.append(family)
        for name, value in (("running", self._batcher.running), ("waiting", self._batcher.waiting)):
            family = Family(f"kvferry_demo_{name}", "gauge", f"Sequences that are {name}.", "")
            family.values[""] = value
            made.append(family)
        made.append(self._capacity())
        return made

    def _capacity(self) -> Family:
        """Tokens that each tier with a limit can hold."""
        text = "Tokens of prompts that a tier can hold."
        family = Family("kvferry_demo_capacity_tokens", "gauge", text, "tier")
        cache = self._cache
        if cache is not None:
            layout = cache.layout
            if cache.config.local_cpu:
                family.values["l1"] = cache.memory.pages * layout.chunk_size
            for store in cache.config.stores:
                if store.max_capacity_gb:
                    chunks = int(store.max_capacity_gb * (1 << 30)) // layout.chunk_bytes
                    family.values[store.name] = chunks * layout.chunk_size
        return family


def metrics_text(batcher: Batcher, cache: TieredCache | None) -> str:
    """All series, in Prometheus' text format."""
    engine = exposition([cache.metrics]) if cache is not None else ""
    return exposition([_Counted(batcher, cache)]) + engine
