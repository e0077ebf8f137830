"""The counters of a tier as series of Prometheus, for engines that ask for what is new.

    vllm:kvferry_tier_lookup_chunks{outcome="hit"}   hit, miss, timeout, down, declined
    vllm:kvferry_tier_load_chunks{outcome="ok"}      ok, miss, corrupt, size_mismatch, timeout,
                                                     unavailable, server_error, cancelled, down,
                                                     refused
    vllm:kvferry_tier_store_chunks{outcome="ok"}     the same, skipped (it was there), shed
    vllm:kvferry_tier_load_bytes, _store_bytes, _gate_shut
    vllm:kvferry_tier_load_seconds, _store_seconds   of one job
    vllm:kvferry_tier_available                      1 while the store is asked

Each has the label ``store``: its address, without secrets. Beside them are the series of
`kvferry.metrics` that every cache of ours has, with the store's name in their labels. Memory is
vLLM's own here, and so are decisions about it: what a store is asked for, gives, refuses and takes
is all that there is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvferry.metrics.cache import cache_families

__all__ = ["AVAILABLE", "SERIES", "STORE_AVAILABLE", "Observed", "Series"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_KINDS = ("lookup", "load", "store")
# The reasons of `kvferry.metrics` for what becomes of chunks, by the counters of `TierCore`.
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
_every = cache_families(())
_FAMILIES = {_every[name].name: _every[name] for name in _NAMES}


@dataclass(frozen=True)
class Series:
    """A family of series: "counter", "gauge" or "histogram", what it says, its labels."""

    kind: str
    text: str
    labels: tuple[str, ...] = ("store",)
    buckets: tuple[float, ...] = ()


_OUTCOME = ("store", "outcome")
_PREFIX = "vllm:kvferry_tier_"
AVAILABLE = f"{_PREFIX}available"
SERIES: Mapping[str, Series] = {
    f"{_PREFIX}lookup_chunks": Series("counter", "Chunks asked for, by answer.", _OUTCOME),
    f"{_PREFIX}load_chunks": Series("counter", "Chunks to be loaded, by outcome.", _OUTCOME),
    f"{_PREFIX}store_chunks": Series("counter", "Chunks to be stored, by outcome.", _OUTCOME),
    f"{_PREFIX}load_bytes": Series("counter", "Bytes loaded from the store."),
    f"{_PREFIX}store_bytes": Series("counter", "Bytes that the store has acknowledged."),
    f"{_PREFIX}gate_shut": Series("counter", "Times that the store was given up for a while."),
    f"{_PREFIX}load_seconds": Series("histogram", "Time of one load.", buckets=_SECONDS),
    f"{_PREFIX}store_seconds": Series("histogram", "Time of one store.", buckets=_SECONDS),
    AVAILABLE: Series("gauge", "1 while the store is asked, 0 while it is not."),
    **{
        name: Series(one.kind, one.help, (one.label,) if one.label else (), one.bounds)
        for name, one in _FAMILIES.items()
    },
}


@dataclass
class Observed:
    """What is new since the last look at some counters.

    Attributes:
        address: Of the store.
        store: Its name.
        chunk_tokens: Tokens of a chunk; 0: nobody knows.
        seconds: Times of jobs that finished, by "load" and "store"; emptied by `new_values`.
    """

    address: str
    store: str
    chunk_tokens: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"load": [], "store": []})
    _before: Counter[str] = field(default_factory=Counter)

    def new_values(self, counts: Counter[str]) -> Iterator[tuple[str, tuple[str, ...], float]]:
        """Yield name, labels and increase of each counter that grew, and each time that was
        observed."""
        if counts != self._before:
            for name, value in counts.items():
                if grown := value - self._before[name]:
                    series, outcome = _series_of(name)
                    if series in SERIES:
                        labels = (self.address, outcome) if outcome else (self.address,)
                        yield series, labels, grown
                    for ours, label, by in _increases(name, grown, self.store, self.chunk_tokens):
                        yield ours, (label,) if label else (), by
            self._before = counts.copy()
        for kind, times in self.seconds.items():
            for took_s in times:
                yield f"{_PREFIX}{kind}_seconds", (self.address,), took_s
                yield f"kvferry_{kind}_seconds", (self.store,), took_s
            times.clear()


def _series_of(count: str) -> tuple[str, str]:
    """The series of a counter of `TierCore`: "load_ok" is an outcome, "load_bytes" is none."""
    kind, _, outcome = count.partition("_")
    if kind in _KINDS and outcome != "bytes":
        return f"{_PREFIX}{kind}_chunks", outcome
    return f"{_PREFIX}{count}", ""


def _increases(
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
