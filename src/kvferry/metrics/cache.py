"""What a cache counts: each series declared, and what moves it. The package says how it is read.

A new metric is its declaration in `cache_families` and a call of `CacheMetrics.count`, `observe` or
`gauge` where it happens. Values of labels that are known beforehand are constants here, so that
their series exist from the beginning.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.base.errors import UsageError
from kvferry.base.threads import failures
from kvferry.metrics.series import (
    RATIO_BOUNDS,
    SECONDS_BOUNDS,
    SHARE_BOUNDS,
    Cells,
    Family,
    HistogramValue,
)

if TYPE_CHECKING:
    from kvferry.metrics.collector import KVFerryCollector

__all__ = [
    "DECISIONS",
    "FROM_OTHERS",
    "MISS_REASONS",
    "ONE_SIDED",
    "PREDICTED",
    "SHED_REASONS",
    "WAYS",
    "CacheMetrics",
    "cache_families",
]

_log = logging.getLogger("kvferry.metrics")

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
ONE_SIDED = ("one_sided_reads", "one_sided_bytes", "one_sided_expired", "one_sided_fallbacks")
# What engines tell a cache server, which cannot know it.
FROM_OTHERS = ("kvferry_ttft_share", "kvferry_memory_seconds", "kvferry_memory_bytes")
_CAUSES = ("checksum", "identity", "key", "size", "version", "header", "generation")
_OF_DEPLOYMENTS = ("tier", "store", "peer", "thread")  # labels with values that come later
_GROWTH_MAX = 1 << 60  # by which an engine may say that a series has grown


def cache_families(stores: Iterable[str]) -> dict[str, Family]:
    """New families by their names without the prefix ``kvferry_``, all at zero.

    A label is given by its name, with the values that are known beforehand.
    """
    made: dict[str, Family] = {}
    stores = tuple(stores)
    tiers = ("l1", *stores)

    def declare(
        kind: str, name: str, text: str, label: dict[str, Iterable[str]], *bounds: float
    ) -> None:
        label_name, known = next(iter(label.items()), ("", ("",)))
        closed = label_name not in _OF_DEPLOYMENTS
        made[name] = Family(f"kvferry_{name}", kind, text, label_name, bounds, closed=closed)
        made[name].declare(known)

    def counter(name: str, text: str, **label: Iterable[str]) -> None:
        declare("counter", name, text, label)

    def gauge(name: str, text: str, **label: Iterable[str]) -> None:
        declare("gauge", name, text, label)

    def seconds(name: str, text: str, **label: Iterable[str]) -> None:
        declare("histogram", f"{name}_seconds", text, label, *SECONDS_BOUNDS)

    counter("tokens_requested", "Tokens that a prefix was wanted for.")
    counter("tokens_hit", "Tokens whose KV was used, by the tier it came from.", tier=tiers)
    counter("bytes_hit", "Bytes of KV that were used, by the tier they came from.", tier=tiers)
    counter("prefill_saved_seconds", "Predicted prefill of the tokens that were hit.")
    counter(
        "missed_chunks", "Chunks that were wanted and not used, by reason.", reason=MISS_REASONS
    )
    counter("corrupt_values", "Values of stores that were refused and deleted.", cause=_CAUSES)
    seconds("lookup", "Time that a lookup took.")
    seconds("retrieve", "Time that a retrieve took, to its last byte.")
    seconds("load", "Time of one load from a store.", store=stores)
    seconds("store", "Time of one write to a store.", store=stores)
    counter("load_bytes", "Bytes read from a store.", store=stores)
    counter("store_bytes", "Bytes written to a store.", store=stores)
    counter("one_sided_reads", "Chunks that one-sided reads of a peer brought.", peer=())
    counter("one_sided_bytes", "Bytes of those.", peer=())
    counter("one_sided_expired", "Chunks whose lease was over when they came.", peer=())
    counter("one_sided_fallbacks", "Contacts that failed: then a socket.", peer=())
    seconds("memory", "Time of one copy between memory and an engine.", way=WAYS)
    counter("memory_bytes", "Bytes copied between memory and an engine.", way=WAYS)
    share = "Share of a request's time to its first token that it waited for the cache."
    declare("histogram", "ttft_share", share, {}, *SHARE_BOUNDS)
    counter("evicted_chunks", "Chunks that made room for others.", tier=tiers)
    counter("evicted_then_missed_chunks", "Chunks wanted after they had left.", tier=tiers)
    counter(
        "shed_chunks", "Chunks that were not written to a store, by reason.", reason=SHED_REASONS
    )
    counter("single_flight_waits", "Chunks waited for while another request loaded them.")
    counter("decisions", "Retrieves by what was decided: load or compute.", decision=DECISIONS)
    counter("predicted_seconds", "Sum of predicted times.", what=PREDICTED)
    counter("actual_seconds", "Sum of the times that those took.", what=PREDICTED)
    ratio = "Actual over predicted time."
    declare("histogram", "prediction_ratio", ratio, {"what": PREDICTED}, *RATIO_BOUNDS)
    counter("thread_failures", "Faults in background threads of this process.", thread=())
    gauge("pool_pages", "Pages of the pool.")
    gauge("pool_pages_used", "Pages of the pool that are in use.")
    gauge("write_queue_chunks", "Chunks that wait to be written to stores.")
    gauge("write_queue_bytes", "Bytes that wait to be written to stores.")
    # What a store is now must be told before there is such a series.
    gauge("store_available", "1 while a store can be asked, 0 while it cannot.", store=())
    gauge("store_refuses", "1: it did not take what it was given last.", store=())
    gauge("store_used_bytes", "Bytes that a store holds, others' included.", store=())
    gauge("store_capacity_bytes", "Limit of what it may hold; 0 without one.", store=())
    return made


class CacheMetrics:
    """The counters of one cache.

    Threads: any, at any time; counting waits for nobody. A call raises UsageError only for a series
    that does not exist, which is a bug of the caller.

    Args:
        labels: Constant labels of all series, e.g. ``{"engine": "0"}``, for processes with
            more than one cache.
        stores: Names of the stores, so that their series exist from the beginning.
    """

    def __init__(self, labels: Mapping[str, str] | None = None, stores: Iterable[str] = ()) -> None:
        self.labels: Mapping[str, str] = dict(labels or {})
        for name in self.labels:
            if not name.isidentifier() or name.startswith("__"):
                raise UsageError(f"{name!r} is no name of a label")
        stores = tuple(stores)
        self._cells = Cells(lambda: cache_families(stores))
        self._mine = self._cells.mine
        self._gauges: dict[str, dict[str, float]] = {}
        self._sources: list[Callable[[CacheMetrics], None]] = []

    def requested(self, tokens: int) -> None:
        """A request wants the KV of this many tokens."""
        self.count("tokens_requested", tokens)

    def hit(self, tier: str, tokens: int, size_bytes: int) -> None:
        """KV of this many tokens was used, from "l1" or the store of this name."""
        self.count("tokens_hit", tokens, tier)
        self.count("bytes_hit", size_bytes, tier)

    def missed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were wanted and not used; `reason` is one of `MISS_REASONS`."""
        self.count("missed_chunks", chunks, reason)

    def looked_up(self, seconds: float) -> None:
        """A lookup took so long."""
        self.observe("lookup_seconds", seconds)

    def retrieved(self, seconds: float) -> None:
        """A retrieve took so long."""
        self.observe("retrieve_seconds", seconds)

    def copied(self, way: str, size_bytes: int, seconds: float) -> None:
        """So much went "in" to this host's memory, or "out" of it to the engine, in so long."""
        self.observe("memory_seconds", seconds, way)
        self.count("memory_bytes", size_bytes, way)

    def first_token(self, waited_s: float, ttft_s: float) -> None:
        """A request had its first token after `ttft_s`; it waited so long of that for the cache."""
        if ttft_s > 0:
            self.observe("ttft_share", min(1.0, waited_s / ttft_s))

    def shed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were not written to a store; `reason` is one of `SHED_REASONS`."""
        self.count("shed_chunks", chunks, reason)

    def predicted(self, what: str, predicted_s: float, actual_s: float) -> None:
        """A "load" or a "prefill" was predicted to take so long and took so long."""
        self.count("predicted_seconds", predicted_s, what)
        self.count("actual_seconds", actual_s, what)
        if predicted_s > 0:
            self.observe("prediction_ratio", actual_s / predicted_s, what)

    def add(
        self,
        sums: Mapping[str, Mapping[str, float]],
        histograms: Mapping[str, Mapping[str, tuple[float, Sequence[int]]]],
    ) -> None:
        """What engines have counted that the cache of a server, which they use, cannot know.

        Args:
            sums: Counters of `FROM_OTHERS`, by name and label.
            histograms: Those of `FROM_OTHERS`: a sum, and how often something was observed below
                each bound.

        Raises:
            UsageError: A series is none of these, or its numbers cannot be; nothing is added.
        """
        agreed: list[tuple[Family, str, Any]] = []
        for name, values in sums.items():
            family = self._told(name, "counter")
            for label, value in values.items():
                if label not in family.values or not 0 <= value < _GROWTH_MAX:
                    raise UsageError(f"{name} of {label!r} cannot grow by {value}")
                agreed.append((family, label, value))
        for name, observed in histograms.items():
            family = self._told(name, "histogram")
            for label, (total, counts) in observed.items():
                possible = len(counts) == len(family.bounds) + 1 and min(counts) >= 0
                if label not in family.histograms or not possible or not 0 <= total < _GROWTH_MAX:
                    raise UsageError(f"{name} of {label!r} cannot have {len(counts)} such bounds")
                agreed.append((family, label, HistogramValue(family.bounds, [*counts], total)))
        for family, label, grown in agreed:
            if isinstance(grown, HistogramValue):
                family.of(label).add(grown)
            else:
                family.add(label, grown)

    def _told(self, name: str, kind: str) -> Family:
        family = self._mine.families.get(name.removeprefix("kvferry_"))
        if name not in FROM_OTHERS or family is None or family.kind != kind:
            raise UsageError(f"{name!r} is no {kind} that engines tell")
        return family

    def count(self, name: str, amount: float = 1, label: str = "") -> None:
        """Add to a counter of `cache_families`, named without "kvferry_"."""
        self._mine.families[name].add(label, amount)

    def observe(self, name: str, value: float, label: str = "") -> None:
        """One more value of a histogram, named likewise."""
        self._mine.families[name].of(label).observe(value)

    def gauge(self, name: str, value: float, label: str = "") -> None:
        """A gauge as it is now, named likewise."""
        self._gauges.setdefault(name, {})[label] = value

    # --- Reading ---

    def on_collect(self, source: Callable[[CacheMetrics], None]) -> Callable[[], None]:
        """Have a function called before every reading, to set gauges; returns how to end that.

        It must be quick. What it raises is logged, and its gauges stay as they were.
        """
        self._sources.append(source)

        def remove() -> None:
            if source in self._sources:
                self._sources.remove(source)

        return remove

    def families(self) -> list[Family]:
        """All families as they are now, as copies; in those that are counted meanwhile, one count
        may be seen in one number and not yet in another."""
        for source in tuple(self._sources):
            try:
                source(self)
            except Exception:
                _log.exception("gauges could not be read")
        total = self._cells.total()
        for name, values in self._gauges.copy().items():
            total[name].values.update(values)
        total["thread_failures"].values.update(failures())
        return list(total.values())

    def counted(self, *names: str) -> list[dict[str, float]]:
        """Counters by label, named without "kvferry_"; nobody is asked for what he counts."""
        total = self._cells.total()
        return [total[name].values for name in names]

    def snapshot(self) -> dict[str, Any]:
        """All numbers: by name, and below that by label where there is one.

        A histogram is ``{"count": ..., "sum": ...}``. Names are those of the series, a counter's
        with ``_total``.
        """
        taken: dict[str, Any] = {}
        for family in self.families():
            name = family.name + ("_total" if family.kind == "counter" else "")
            values: dict[str, Any] = {
                **family.values,
                **{label: _summary(value) for label, value in family.histograms.items()},
            }
            taken[name] = values if family.label else values.get("")
        return taken

    def text(self, *, openmetrics: bool = False) -> str:
        """All series in the text format of Prometheus, or in that of OpenMetrics."""
        from kvferry.metrics.collector import exposition

        return exposition([self], openmetrics=openmetrics)

    def collector(self) -> KVFerryCollector:
        """For a registry of prometheus-client; see `KVFerryCollector`."""
        from kvferry.metrics.collector import KVFerryCollector

        return KVFerryCollector([self])


def _summary(value: HistogramValue) -> dict[str, float]:
    return {"count": value.count, "sum": value.sum}
