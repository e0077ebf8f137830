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
from kvferry.metrics.series import Family

__all__ = ["AVAILABLE", "SERIES", "STORE_AVAILABLE", "Observed", "labels_of"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_KINDS = ("lookup", "load", "store")
# What becomes of chunks in `kvferry.metrics`, by the counters of `TierCore`: a family, its label.
_BECAME = {
    "lookup_miss": ("missed_chunks", "never_stored"),
    "lookup_timeout": ("missed_chunks", "deadline"),
    "lookup_down": ("missed_chunks", "unavailable"),
    "lookup_declined": ("missed_chunks", "not_worth_loading"),
    "load_miss": ("missed_chunks", "evicted"),
    "load_size_mismatch": ("missed_chunks", "size"),
    "load_corrupt": ("missed_chunks", "checksum"),
    "load_timeout": ("missed_chunks", "deadline"),
    "load_unavailable": ("missed_chunks", "unavailable"),
    "load_server_error": ("missed_chunks", "error"),
    "load_cancelled": ("missed_chunks", "cancelled"),
    "load_down": ("missed_chunks", "unavailable"),
    "load_refused": ("missed_chunks", "error"),
    "store_shed": ("shed_chunks", "queue_full"),
    "store_timeout": ("shed_chunks", "unavailable"),
    "store_unavailable": ("shed_chunks", "unavailable"),
    "store_down": ("shed_chunks", "unavailable"),
    "store_server_error": ("shed_chunks", "error"),
    "store_size_mismatch": ("shed_chunks", "error"),
    "store_corrupt": ("shed_chunks", "error"),
    "store_refused": ("shed_chunks", "error"),
    "store_cancelled": ("shed_chunks", "cancelled"),
}
_ASKED = ("lookup_hit", "lookup_miss", "lookup_timeout", "lookup_down", "lookup_declined")

STORE_AVAILABLE = "kvferry_store_available"
_NAMES = (
    *("tokens_requested", "tokens_hit", "bytes_hit", "missed_chunks", "corrupt_values"),
    *("load_seconds", "store_seconds", "load_bytes", "store_bytes", "shed_chunks"),
    "store_available",
)
_PREFIX = "vllm:kvferry_tier_"
AVAILABLE = f"{_PREFIX}available"
_OF_TIERS = (
    ("lookup_chunks", "counter", "Chunks asked for, by answer.", "outcome"),
    ("load_chunks", "counter", "Chunks to be loaded, by outcome.", "outcome"),
    ("store_chunks", "counter", "Chunks to be stored, by outcome.", "outcome"),
    ("load_bytes", "counter", "Bytes loaded from the store."),
    ("store_bytes", "counter", "Bytes that the store has acknowledged."),
    ("gate_shut", "counter", "Times that the store was given up for a while."),
    ("load_seconds", "histogram", "Time of one load.", "", _SECONDS),
    ("store_seconds", "histogram", "Time of one store.", "", _SECONDS),
    ("available", "gauge", "1 while the store is asked, 0 while it is not."),
)
_every = cache_families(())
SERIES: Mapping[str, Family] = {
    family.name: family
    for family in (
        *(Family(f"{_PREFIX}{name}", *rest) for name, *rest in _OF_TIERS),
        *(_every[name] for name in _NAMES),
    )
}


def labels_of(family: Family) -> tuple[str, ...]:
    """Names of the labels of one of `SERIES`."""
    own = (family.label,) if family.label else ()
    return ("store", *own) if family.name.startswith(_PREFIX) else own


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
    if count in _BECAME:
        family, label = _BECAME[count]
        yield f"kvferry_{family}", label, grown
    if count == "load_corrupt":
        yield "kvferry_corrupt_values", "checksum", grown
    if count == "load_bytes":
        yield "kvferry_bytes_hit", store, grown
        yield "kvferry_load_bytes", store, grown
    if count == "store_bytes":
        yield "kvferry_store_bytes", store, grown
