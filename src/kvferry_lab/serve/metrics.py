"""What the demo's server counts, beside what its cache does."""

from __future__ import annotations

from dataclasses import fields

from kvferry.cache import TieredCache
from kvferry.metrics.collector import exposition, text_of
from kvferry.metrics.series import Family, family_of
from kvferry_lab.serve.batcher import Batcher

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


def _families(batcher: Batcher, cache: TieredCache | None) -> list[Family]:
    """The families of one batcher, as they are now."""
    made = [
        family_of(
            f"kvferry_demo_{each.name.replace('late_s', 'late_seconds')}",
            "counter",
            _TEXTS[each.name],
            getattr(batcher.counts, each.name),
        )
        for each in fields(batcher.counts)
    ]
    for name, value in (("running", batcher.running), ("waiting", batcher.waiting)):
        made.append(
            family_of(f"kvferry_demo_{name}", "gauge", f"Sequences that are {name}.", value)
        )
    text = "Tokens of prompts that a tier can hold."
    made.append(family_of("kvferry_demo_capacity_tokens", "gauge", text, _capacity(cache), "tier"))
    return made


def _capacity(cache: TieredCache | None) -> dict[str, float]:
    """Tokens that each tier with a limit can hold."""
    if cache is None:
        return {}
    layout = cache.layout
    found: dict[str, float] = {}
    if cache.config.local_cpu:
        found["l1"] = cache.memory.pages * layout.chunk_size
    for store in cache.config.stores:
        if store.max_capacity_gb:
            chunks = int(store.max_capacity_gb * (1 << 30)) // layout.chunk_bytes
            found[store.name] = chunks * layout.chunk_size
    return found


def metrics_text(batcher: Batcher, cache: TieredCache | None) -> str:
    """All series, in Prometheus' text format."""
    engine = exposition([cache.metrics]) if cache is not None else ""
    return text_of(_families(batcher, cache)) + engine
