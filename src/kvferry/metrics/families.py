"""The families of a cache's series: names, labels, help, and the values that are known before."""

from __future__ import annotations

from collections.abc import Iterable

from kvferry.metrics.series import RATIO_BOUNDS, SECONDS_BOUNDS, SHARE_BOUNDS, Family

__all__ = [
    "DECISIONS",
    "FROM_OTHERS",
    "MISS_REASONS",
    "ONE_SIDED",
    "PREDICTED",
    "SHED_REASONS",
    "WAYS",
    "cache_families",
]

MISS_REASONS = (
    "never_stored",  # nobody has stored it, as far as the stores know
    "evicted",  # it was there
    "identity",  # the bytes of another model, layout or format
    "checksum",  # damaged
    "key",  # the value of another key
    "size",  # of another length
    "version",  # of a format that is not read
    "deadline",  # it would have come too late
    "unavailable",  # the store cannot be asked
    "not_worth_loading",  # computing it is quicker
    "cut",  # a running load became slower than computing
    "pool_full",  # no page was free for it
    "error",  # the store answered with an error
    "cancelled",  # nobody wants it any more
)
SHED_REASONS = ("queue_full", "pool_full", "store_full", "unavailable", "error", "cancelled")
DECISIONS = ("load", "load_part", "recompute", "cut")
PREDICTED = ("load", "prefill")
WAYS = ("in", "out")  # into this host's memory, and out of it to the engine
ONE_SIDED = ("reads", "bytes", "expired", "fallbacks")
# What engines tell a cache server, which cannot know it.
FROM_OTHERS = (
    *("kvferry_tokens_requested", "kvferry_missed_chunks", "kvferry_ttft_share"),
    *("kvferry_memory_seconds", "kvferry_memory_bytes"),
)
_CAUSES = ("checksum", "identity", "key", "size", "version", "header", "generation")


def cache_families(stores: Iterable[str]) -> dict[str, Family]:
    """New families by their names without the prefix ``kvferry_``, all at zero."""
    made = {family.name.removeprefix("kvferry_"): family for family in _families()}
    stores = tuple(stores)
    known = {
        "": ("",),
        "tier": ("l1", *stores),
        "store": stores,
        "cause": _CAUSES,
        "decision": DECISIONS,
        "what": PREDICTED,
        "way": WAYS,
    }
    for family in made.values():
        if family.kind != "gauge" or not family.label:  # the state of a store must be told
            family.declare(known.get(family.label, ()))
    made["missed_chunks"].declare(MISS_REASONS)
    made["shed_chunks"].declare(SHED_REASONS)
    return made


def _families() -> list[Family]:
    def counter(name: str, text: str, label: str = "") -> Family:
        return Family(f"kvferry_{name}", "counter", text, label)

    def gauge(name: str, text: str, label: str = "") -> Family:
        return Family(f"kvferry_{name}", "gauge", text, label)

    def seconds(name: str, text: str, label: str = "") -> Family:
        return Family(f"kvferry_{name}_seconds", "histogram", text, label, SECONDS_BOUNDS)

    return [
        counter("tokens_requested", "Tokens that a prefix was wanted for."),
        counter("tokens_hit", "Tokens whose KV was used, by the tier it came from.", "tier"),
        counter("bytes_hit", "Bytes of KV that were used, by the tier they came from.", "tier"),
        counter("prefill_saved_seconds", "Predicted prefill of the tokens that were hit."),
        counter("missed_chunks", "Chunks that were wanted and not used, by reason.", "reason"),
        counter("corrupt_values", "Values of stores that were refused and deleted.", "cause"),
        seconds("lookup", "Time that a lookup took."),
        seconds("retrieve", "Time that a retrieve took, to its last byte."),
        seconds("load", "Time of one load from a store.", "store"),
        seconds("store", "Time of one write to a store.", "store"),
        counter("load_bytes", "Bytes read from a store.", "store"),
        counter("store_bytes", "Bytes written to a store.", "store"),
        counter("one_sided_reads", "Chunks that one-sided reads of a peer brought.", "peer"),
        counter("one_sided_bytes", "Bytes of those.", "peer"),
        counter("one_sided_expired", "Chunks whose lease was over when they came.", "peer"),
        counter("one_sided_fallbacks", "Contacts that failed: then a socket.", "peer"),
        seconds("memory", "Time of one copy between memory and an engine.", "way"),
        counter("memory_bytes", "Bytes copied between memory and an engine.", "way"),
        Family(
            "kvferry_ttft_share",
            "histogram",
            "Share of a request's time to its first token that it waited for the cache.",
            "",
            SHARE_BOUNDS,
        ),
        counter("evicted_chunks", "Chunks that made room for others.", "tier"),
        counter("evicted_then_missed_chunks", "Chunks wanted after they had left.", "tier"),
        counter("shed_chunks", "Chunks that were not written to a store, by reason.", "reason"),
        counter("single_flight_waits", "Chunks waited for while another request loaded them."),
        counter("decisions", "Retrieves by what was decided: load or compute.", "decision"),
        counter("predicted_seconds", "Sum of predicted times.", "what"),
        counter("actual_seconds", "Sum of the times that those took.", "what"),
        Family(
            "kvferry_prediction_ratio",
            "histogram",
            "Actual over predicted time.",
            "what",
            RATIO_BOUNDS,
        ),
        counter("thread_failures", "Faults in background threads of this process.", "thread"),
        gauge("pool_pages", "Pages of the pool."),
        gauge("pool_pages_used", "Pages of the pool that are in use."),
        gauge("write_queue_chunks", "Chunks that wait to be written to stores."),
        gauge("write_queue_bytes", "Bytes that wait to be written to stores."),
        gauge("store_available", "1 while a store can be asked, 0 while it cannot.", "store"),
        gauge("store_refuses", "1: it did not take what it was given last.", "store"),
        gauge("store_used_bytes", "Bytes that a store holds, others' included.", "store"),
        gauge("store_capacity_bytes", "Limit of what it may hold; 0 without one.", "store"),
    ]
