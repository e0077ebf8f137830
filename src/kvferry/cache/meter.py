"""From what the cache does to what is counted: metrics, lines in the log, and `stats()`.

Threads: any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.retriever import Gathered
from kvferry.cache.memory import Memory
from kvferry.cache.results import RequestLog
from kvferry.cache.store.store_tiers import MEMORY, StoreTier
from kvferry.cache.storer import Receipt, Receipts
from kvferry.chunks.prompt import Prompt
from kvferry.metrics import MISS_REASONS, CacheMetrics

__all__ = ["Meter"]

_log = logging.getLogger("kvferry.cache")

# The cause of a connector's counter "refused_...", and the label "cause" of the metric.
_CAUSES = {
    "payload_checksum": "checksum",
    "header_checksum": "header",
    "identity": "identity",
    "key": "key",
    "stripe": "key",
    "size": "size",
    "shape": "size",
    "version": "version",
    "magic": "header",
    "codec": "version",
    "flags": "version",
    "generation": "generation",
}


class Metered(Protocol):
    """What a meter reads of the cache that it is a part of."""

    @property
    def metrics(self) -> CacheMetrics: ...
    @property
    def memory(self) -> Memory: ...
    @property
    def tiers(self) -> Sequence[StoreTier]: ...
    @property
    def prefill(self) -> PrefillModel: ...


class Meter:
    """Tells a cache's metrics what happened; gauges are read when somebody asks."""

    def __init__(self, cache: Metered) -> None:
        self._cache = cache
        self._told: dict[str, int] = {}
        self._lines = RequestLog(_log)
        self.receipts = Receipts(self.stored)
        cache.metrics.on_collect(self._gauges)

    def gathered(self, prompt: Prompt, gathered: Gathered, took_s: float) -> None:
        """A retrieve is over."""
        metrics, size, chunk_bytes = (
            self._metrics,
            prompt.chunk_size,
            self._cache.memory.chunk_bytes,
        )
        metrics.requested(prompt.chunks * size)
        metrics.retrieved(took_s)
        counts = {MEMORY: gathered.memory_chunks, **gathered.chunks}
        tokens = {tier: chunks * size for tier, chunks in counts.items()}
        chunks_bytes = sum(counts.values()) * chunk_bytes
        self.receipts.sweep()
        self._lines.retrieved(prompt.tokens, tokens, chunks_bytes, took_s, gathered.reason)
        for tier, chunks in counts.items():
            if chunks:
                metrics.hit(tier, chunks * size, chunks * chunk_bytes)
        prefill = self._cache.prefill
        if prefill.known:
            saved_s = prefill.predict_s(sum(tokens.values()))
            metrics.count("prefill_saved_seconds", saved_s)
        for loaded in gathered.loads:
            for store, chunks in loaded.chunks.items():
                metrics.loaded(store, chunks * chunk_bytes, loaded.took_s)
        if gathered.waited:
            metrics.count("single_flight_waits")
        missed = prompt.chunks - sum(counts.values())
        if missed > 0 and gathered.reason:
            reason = gathered.reason if gathered.reason in MISS_REASONS else "error"
            metrics.missed(reason, missed)
        plan = gathered.plan
        if plan is not None and plan.offers:
            self._decided(gathered)

    def stored(self, receipt: Receipt) -> None:
        """What became of a store; see `Receipts`."""
        size, count = receipt.chunk_tokens, receipt.kept
        self._lines.stored(
            receipt.given_tokens,
            count * size,
            {name: chunks * size for name, chunks in receipt.stored.items()},
            count * self._cache.memory.chunk_bytes,
            receipt.took_s,
            receipt.reason,
            memory=receipt.here * size,
            waiting={name: chunks * size for name, chunks in receipt.waiting.items()},
            refused={name: (chunks * size, why) for name, (chunks, why) in receipt.refused.items()},
        )

    def _decided(self, gathered: Gathered) -> None:
        plan = gathered.plan
        assert plan is not None
        if gathered.reason == "cut":
            self._metrics.decided("cut")
        elif not plan.wanted:
            self._metrics.decided("recompute")
        else:
            whole = plan.decision.reason in ("all", "unknown_prefill")
            self._metrics.decided("load" if whole else "load_part")
            if not gathered.reason:
                self._metrics.predicted("load", plan.decision.load_s, gathered.load_s)

    def stats(self) -> dict[str, Any]:
        """Everything countable."""
        cache = self._cache
        stores = {}
        for store in cache.tiers:
            presence = getattr(store.tier.connector, "presence", None)
            stores[store.tier.name] = {
                "available": store.tier.connector.available,
                "problem": store.writer.batches.problem,
                "queue_bytes": store.writer.queue_bytes,
                "written_again_chunks": store.writer.written_again,
                **store.tier.figures(),
                **{str(name): value for name, value in store.tier.counted().items()},
                **({} if presence is None else {"presence": presence}),
            }
        a, c, d, _ = cache.prefill.coefficients
        return {
            "metrics": self._metrics.snapshot(),
            "memory": {"pages": cache.memory.pages, **cache.memory.cache.stats()},
            "stores": stores,
            "prefill": {
                "samples": cache.prefill.samples,
                "a_s": a,
                "c_s_per_token": c,
                "d_s_per_token2": d,
            },
        }

    @property
    def _metrics(self) -> CacheMetrics:
        return self._cache.metrics

    def _gauges(self, metrics: CacheMetrics) -> None:
        cache = self._cache
        memory = cache.memory.cache.stats()
        metrics.pool(memory["resident"], cache.memory.pages)
        metrics.evicted(MEMORY, self._grown("evictions", memory["evictions"]))
        again = self._grown("evicted_then_missed", memory["evicted_then_missed"])
        metrics.count("evicted_then_missed_chunks", again, MEMORY)
        metrics.write_queue(
            sum(store.writer.queue_chunks for store in cache.tiers),
            sum(store.writer.queue_bytes for store in cache.tiers),
        )
        for store in cache.tiers:
            name, connector = store.tier.name, store.tier.connector
            refuses = bool(store.writer.batches.problem)
            metrics.store_state(name, available=connector.available, refuses=refuses)
            if (limit_bytes := store.capacity.limit_bytes) is not None:
                metrics.store_state(
                    name, used_bytes=store.capacity.used_bytes, capacity_bytes=limit_bytes
                )
            for counter, value in store.tier.counted().items():
                if not isinstance(counter, str) or not isinstance(value, int):
                    continue  # of a plug-in
                cause = _CAUSES.get(counter.removeprefix("refused_"))
                if counter.startswith("refused_") and cause is not None:
                    metrics.count("corrupt_values", self._grown(f"{name} {counter}", value), cause)
                elif counter.startswith("one_sided_"):
                    what = counter.removeprefix("one_sided_")
                    metrics.one_sided(name, what, self._grown(f"{name} {counter}", value))

    def _grown(self, name: str, value: int) -> int:
        """By how much a counter has grown whose owner may have begun anew."""
        told = self._told.get(name, 0)
        self._told[name] = value
        return value - told if value >= told else value
