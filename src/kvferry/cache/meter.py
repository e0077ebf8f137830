"""From what the cache does to what is counted: metrics, lines in the log, and `stats()`.

Threads: any.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kvferry.cache.cost.prefill import PrefillModel
from kvferry.cache.load.retriever import Gathered
from kvferry.cache.memory import Memory
from kvferry.cache.results import RequestLog
from kvferry.cache.store.store_tiers import MEMORY, StoreTier
from kvferry.cache.storer import Receipt, Receipts
from kvferry.chunks.prompt import Prompt
from kvferry.metrics import MISS_REASONS, CacheMetrics
from kvferry.metrics.cache import ONE_SIDED

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


class Meter:
    """Tells a cache's metrics what happened; gauges are read when somebody asks.

    Args:
        metrics, memory, tiers, prefill: Those of the cache; `tiers` may grow.
    """

    def __init__(
        self,
        metrics: CacheMetrics,
        memory: Memory,
        tiers: Sequence[StoreTier],
        prefill: PrefillModel,
    ) -> None:
        self._metrics = metrics
        self._memory = memory
        self._tiers = tiers
        self._prefill = prefill
        self._told: dict[str, int] = {}
        self._lines = RequestLog(_log)
        self.receipts = Receipts(self.stored)
        metrics.on_collect(self._gauges)

    def gathered(self, prompt: Prompt, gathered: Gathered, took_s: float) -> None:
        """A retrieve is over."""
        metrics, size, chunk_bytes = self._metrics, prompt.chunk_size, self._memory.chunk_bytes
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
        if self._prefill.known:
            saved_s = self._prefill.predict_s(sum(tokens.values()))
            metrics.count("prefill_saved_seconds", saved_s)
        for loaded in gathered.loads:
            for store, chunks in loaded.chunks.items():
                metrics.observe("load_seconds", loaded.took_s, store)
                metrics.count("load_bytes", chunks * chunk_bytes, store)
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
            count * self._memory.chunk_bytes,
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
            decision = "cut"
        elif not plan.wanted:
            decision = "recompute"
        else:
            whole = plan.decision.reason in ("all", "unknown_prefill")
            decision = "load" if whole else "load_part"
            if not gathered.reason:
                self._metrics.predicted("load", plan.decision.load_s, gathered.load_s)
        self._metrics.count("decisions", label=decision)

    def stats(self) -> dict[str, Any]:
        """Everything countable."""
        stores = {}
        for store in self._tiers:
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
        a, c, d, _ = self._prefill.coefficients
        return {
            "metrics": self._metrics.snapshot(),
            "memory": {"pages": self._memory.pages, **self._memory.cache.stats()},
            "stores": stores,
            "prefill": {
                "samples": self._prefill.samples,
                "a_s": a,
                "c_s_per_token": c,
                "d_s_per_token2": d,
            },
        }

    def _gauges(self, metrics: CacheMetrics) -> None:
        memory = self._memory.cache.stats()
        writers = [store.writer for store in self._tiers]
        metrics.gauge("pool_pages_used", memory["resident"])
        metrics.gauge("pool_pages", self._memory.pages)
        metrics.gauge("write_queue_chunks", sum(writer.queue_chunks for writer in writers))
        metrics.gauge("write_queue_bytes", sum(writer.queue_bytes for writer in writers))
        evicted = self._grown("evictions", memory["evictions"])
        metrics.count("evicted_chunks", evicted, MEMORY)
        again = self._grown("evicted_then_missed", memory["evicted_then_missed"])
        metrics.count("evicted_then_missed_chunks", again, MEMORY)
        for store in self._tiers:
            name, connector = store.tier.name, store.tier.connector
            metrics.gauge("store_available", int(connector.available), name)
            metrics.gauge("store_refuses", int(bool(store.writer.batches.problem)), name)
            if (limit_bytes := store.capacity.limit_bytes) is not None:
                metrics.gauge("store_used_bytes", store.capacity.used_bytes, name)
                metrics.gauge("store_capacity_bytes", limit_bytes, name)
            for counter, value in store.tier.counted().items():
                if not isinstance(counter, str) or not isinstance(value, int):
                    continue  # of a plug-in
                cause = _CAUSES.get(counter.removeprefix("refused_"))
                if counter.startswith("refused_") and cause is not None:
                    metrics.count("corrupt_values", self._grown(f"{name} {counter}", value), cause)
                elif counter in ONE_SIDED:
                    metrics.count(counter, self._grown(f"{name} {counter}", value), name)

    def _grown(self, name: str, value: int) -> int:
        """By how much a counter has grown whose owner may have begun anew."""
        told = self._told.get(name, 0)
        self._told[name] = value
        return value - told if value >= told else value
