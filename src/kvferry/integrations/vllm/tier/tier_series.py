"""The counters of a tier as series of Prometheus, for engines that ask for what is new.

    vllm:kvferry_tier_lookup_chunks{outcome="hit"}   hit, miss, timeout, down, declined
    vllm:kvferry_tier_load_chunks{outcome="ok"}      ok, miss, corrupt, size_mismatch, timeout,
                                                     unavailable, server_error, cancelled, down,
                                                     refused
    vllm:kvferry_tier_store_chunks{outcome="ok"}     the same, skipped (it was there), shed
    vllm:kvferry_tier_load_bytes, _store_bytes, _gate_shut
    vllm:kvferry_tier_load_seconds, _store_seconds   of one job
    vllm:kvferry_tier_available                      1 while the store is asked

Each has the label ``store``: its address, without secrets. Beside them are the series that all our
caches have (`families`), with the store's name in their labels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from kvferry.integrations.vllm.tier.tier_families import FAMILIES, increases

__all__ = ["AVAILABLE", "SERIES", "Observed", "Series"]

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_KINDS = ("lookup", "load", "store")


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
        for name, one in FAMILIES.items()
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
                    for ours, label, by in increases(name, grown, self.store, self.chunk_tokens):
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
