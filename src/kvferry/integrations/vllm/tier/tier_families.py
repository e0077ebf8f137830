"""The counters of a tier as series of `kvferry.metrics`, which every cache of ours has.

Memory is vLLM's own here, and so are decisions about it: what a store is asked for, gives, refuses
and takes is all that there is. Names of counters are those of `TierCore`.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvferry.metrics.cache import cache_families

__all__ = ["FAMILIES", "STORE_AVAILABLE", "increases"]

_MISSED = {
    "lookup_miss": "never_stored",
    "lookup_timeout": "deadline",
    "lookup_down": "unavailable",
    "lookup_declined": "not_worth_loading",
    "load_miss": "evicted",
    "load_size_mismatch": "size",
    "load_corrupt": "checksum",
    "load_timeout": "deadline",
    "load_unavailable": "unavailable",
    "load_server_error": "error",
    "load_cancelled": "cancelled",
    "load_down": "unavailable",
    "load_refused": "error",
}
_SHED = {
    "store_shed": "queue_full",
    "store_timeout": "unavailable",
    "store_unavailable": "unavailable",
    "store_down": "unavailable",
    "store_server_error": "error",
    "store_size_mismatch": "error",
    "store_corrupt": "error",
    "store_refused": "error",
    "store_cancelled": "cancelled",
}
_ASKED = ("lookup_hit", "lookup_miss", "lookup_timeout", "lookup_down", "lookup_declined")

STORE_AVAILABLE = "kvferry_store_available"
_NAMES = (
    *("tokens_requested", "tokens_hit", "bytes_hit", "missed_chunks", "corrupt_values"),
    *("load_seconds", "store_seconds", "load_bytes", "store_bytes", "shed_chunks"),
    "store_available",
)
_all = cache_families(())
FAMILIES = {_all[name].name: _all[name] for name in _NAMES}


def increases(
    count: str, grown: int, store: str, chunk_tokens: int
) -> Iterator[tuple[str, str, float]]:
    """What the growth of a counter is in our series: name, label and increase.

    Args:
        count: Name of the counter.
        grown: By how much it grew.
        store: Name of the store.
        chunk_tokens: Tokens of a chunk; 0: chunks have different ones, and tokens are not counted.
    """
    if count in _ASKED and chunk_tokens:
        yield "kvferry_tokens_requested", "", grown * chunk_tokens
    if count == "load_ok" and chunk_tokens:
        yield "kvferry_tokens_hit", store, grown * chunk_tokens
    if count in _MISSED:
        yield "kvferry_missed_chunks", _MISSED[count], grown
    if count == "load_corrupt":
        yield "kvferry_corrupt_values", "checksum", grown
    if count in _SHED:
        yield "kvferry_shed_chunks", _SHED[count], grown
    if count == "load_bytes":
        yield "kvferry_bytes_hit", store, grown
        yield "kvferry_load_bytes", store, grown
    if count == "store_bytes":
        yield "kvferry_store_bytes", store, grown
