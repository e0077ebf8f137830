"""What an engine counts; see the package for how it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kvferry.errors import UsageError
from kvferry.metrics.series import RATIO_BOUNDS, SECONDS_BOUNDS, Family, HistogramValue, SharedLock

if TYPE_CHECKING:
    from kvferry.metrics.collector import KVFerryCollector

__all__ = ["DECISIONS", "MISS_REASONS", "SHED_REASONS", "EngineMetrics"]

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
_CAUSES = ("checksum", "identity", "key", "size", "version", "header", "generation")
_WHAT = ("load", "prefill")


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
        counter("missed_chunks", "Chunks that were wanted and not used, by reason.", "reason"),
        counter("corrupt_values", "Values of stores that were refused and deleted.", "cause"),
        seconds("lookup", "Time that a lookup took."),
        seconds("retrieve", "Time that a retrieve took, to its last byte."),
        seconds("load", "Time of one load from a store.", "store"),
        seconds("store", "Time of one write to a store.", "store"),
        counter("load_bytes", "Bytes read from a store.", "store"),
        counter("store_bytes", "Bytes written to a store.", "store"),
        counter("evicted_chunks", "Chunks that made room for others.", "tier"),
        counter(
            "evicted_then_missed_chunks", "Chunks that were wanted after they had left.", "tier"
        ),
        counter("shed_chunks", "Chunks that were not written to a store, by reason.", "reason"),
        counter(
            "single_flight_waits", "Chunks that a request waited for while another loaded them."
        ),
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
        gauge("pool_pages", "Pages of the pool."),
        gauge("pool_pages_used", "Pages of the pool that are in use."),
        gauge("write_queue_chunks", "Chunks that wait to be written to stores."),
        gauge("write_queue_bytes", "Bytes that wait to be written to stores."),
        gauge(
            "store_available", "1 while a store can be asked, 0 while its breaker is open.", "store"
        ),
        gauge("store_used_bytes", "Bytes that a store holds, others' included.", "store"),
        gauge("store_capacity_bytes", "Limit of what it may hold; 0 without one.", "store"),
    ]


class EngineMetrics:
    """The counters of one engine.

    Threads: any, at any time. A call takes one lock for a few instructions and never fails, except
    for a reason that does not exist, which is a bug of the caller.

    Args:
        labels: Constant labels of all series, e.g. ``{"instance_rank": "0"}``, for processes with
            more than one engine.
        stores: Names of the stores, so that their series exist from the beginning.
    """

    def __init__(self, labels: Mapping[str, str] | None = None, stores: Iterable[str] = ()) -> None:
        self.labels = dict(labels or {})
        for name in self.labels:
            if not name.isidentifier() or name.startswith("__"):
                raise UsageError(f"{name!r} is no name of a label")
        self._shared = SharedLock()
        self._families = {family.name.removeprefix("kvferry_"): family for family in _families()}
        self._sources: list[Callable[[EngineMetrics], None]] = []
        of = self._families
        self._hit_tokens, self._hit_bytes = of["tokens_hit"].values, of["bytes_hit"].values
        self._missed, self._requested = of["missed_chunks"].values, of["tokens_requested"].values
        self._load_seconds, self._load_bytes = of["load_seconds"], of["load_bytes"].values
        self._store_seconds, self._store_bytes = of["store_seconds"], of["store_bytes"].values
        self._predicted, self._actual = of["predicted_seconds"].values, of["actual_seconds"].values
        self._ratio = of["prediction_ratio"].histograms
        stores = tuple(stores)
        declared = {
            "tier": ("l1", *stores),
            "store": stores,
            "reason": (),
            "cause": _CAUSES,
            "decision": DECISIONS,
            "what": _WHAT,
            "": ("",),
        }
        for family in of.values():
            if family.kind != "gauge" or not family.label:  # the state of stores must be told
                family.declare(declared[family.label])
        of["missed_chunks"].declare(MISS_REASONS)
        of["shed_chunks"].declare(SHED_REASONS)

    def requested(self, tokens: int) -> None:
        """A request wants the KV of this many tokens."""
        with self._shared.lock:
            self._requested[""] += tokens

    def hit(self, tier: str, tokens: int, size_bytes: int) -> None:
        """KV of this many tokens was used, from "l1" or the store of this name."""
        with self._shared.lock:
            self._hit_tokens[tier] = self._hit_tokens.get(tier, 0) + tokens
            self._hit_bytes[tier] = self._hit_bytes.get(tier, 0) + size_bytes

    def missed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were wanted and not used; `reason` is one of `MISS_REASONS`."""
        with self._shared.lock:
            if reason in self._missed:
                self._missed[reason] += chunks
                return
        raise UsageError(f"{reason!r} is no reason of a miss; known are: {', '.join(MISS_REASONS)}")

    def corrupt(self, cause: str, values: int = 1) -> None:
        """Values of a store were refused; `cause` is what was wrong with them, in a word."""
        self._add("corrupt_values", cause, values)

    def looked_up(self, seconds: float) -> None:
        """A lookup took so long."""
        self._observe("lookup_seconds", "", seconds)

    def retrieved(self, seconds: float) -> None:
        """A retrieve took so long."""
        self._observe("retrieve_seconds", "", seconds)

    def loaded(self, store: str, size_bytes: int, seconds: float) -> None:
        """A load from a store brought so much in so long."""
        with self._shared.lock:
            self._load_seconds.of(store).observe(seconds)
            self._load_bytes[store] = self._load_bytes.get(store, 0) + size_bytes

    def stored(self, store: str, size_bytes: int, seconds: float) -> None:
        """A write to a store took so much in so long."""
        with self._shared.lock:
            self._store_seconds.of(store).observe(seconds)
            self._store_bytes[store] = self._store_bytes.get(store, 0) + size_bytes

    def evicted(self, tier: str, chunks: int) -> None:
        """Chunks left "l1" or a store to make room."""
        self._add("evicted_chunks", tier, chunks)

    def evicted_then_missed(self, tier: str, chunks: int = 1) -> None:
        """Chunks were wanted that had left this tier."""
        self._add("evicted_then_missed_chunks", tier, chunks)

    def shed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were not written to a store; `reason` is one of `SHED_REASONS`."""
        if reason not in SHED_REASONS:
            raise UsageError(f"{reason!r} is no reason to shed; known: {', '.join(SHED_REASONS)}")
        self._add("shed_chunks", reason, chunks)

    def waited_for_flight(self, chunks: int = 1) -> None:
        """A request waited for chunks that another one was loading."""
        self._add("single_flight_waits", "", chunks)

    def decided(self, decision: str) -> None:
        """A retrieve was decided; `decision` is one of `DECISIONS`."""
        if decision not in DECISIONS:
            raise UsageError(f"{decision!r} is no decision; known are: {', '.join(DECISIONS)}")
        self._add("decisions", decision, 1)

    def predicted(self, what: str, predicted_s: float, actual_s: float) -> None:
        """A "load" or a "prefill" was predicted to take so long and took so long."""
        if what not in _WHAT:
            raise UsageError(f"{what!r} is not predicted; known are: {', '.join(_WHAT)}")
        with self._shared.lock:
            self._predicted[what] += predicted_s
            self._actual[what] += actual_s
            if predicted_s > 0:
                self._ratio[what].observe(actual_s / predicted_s)

    def pool(self, used: int, total: int) -> None:
        """Pages of the pool as they are now."""
        with self._shared.lock:
            self._families["pool_pages_used"].values[""] = used
            self._families["pool_pages"].values[""] = total

    def write_queue(self, chunks: int, size_bytes: int) -> None:
        """What waits to be written, as it is now."""
        with self._shared.lock:
            self._families["write_queue_chunks"].values[""] = chunks
            self._families["write_queue_bytes"].values[""] = size_bytes

    def store_state(
        self,
        store: str,
        *,
        available: bool | None = None,
        used_bytes: int | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """A store as it is now; None leaves a number as it was."""
        numbers = {
            "store_available": available,
            "store_used_bytes": used_bytes,
            "store_capacity_bytes": capacity_bytes,
        }
        with self._shared.lock:
            for name, number in numbers.items():
                if number is not None:
                    self._families[name].values[store] = int(number)

    def _add(self, name: str, label: str, amount: float) -> None:
        with self._shared.lock:
            self._families[name].add(label, amount)

    def _observe(self, name: str, label: str, value: float) -> None:
        with self._shared.lock:
            self._families[name].of(label).observe(value)

    # --- Reading ---

    def on_collect(self, source: Callable[[EngineMetrics], None]) -> Callable[[], None]:
        """Have a function called before every reading, to set gauges; returns how to end that.

        It must be quick. What it raises is logged, and its gauges stay as they were.
        """
        self._sources.append(source)

        def remove() -> None:
            if source in self._sources:
                self._sources.remove(source)

        return remove

    def families(self) -> list[Family]:
        """Copies of all families, as of one moment."""
        for source in tuple(self._sources):
            try:
                source(self)
            except Exception:
                _log.exception("gauges could not be read")
        with self._shared.lock:
            return [
                Family(
                    family.name,
                    family.kind,
                    family.help,
                    family.label,
                    family.bounds,
                    dict(family.values),
                    {name: value.copy() for name, value in family.histograms.items()},
                )
                for family in self._families.values()
            ]

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
        from kvferry.metrics.exposition import exposition

        return exposition([self], openmetrics=openmetrics)

    def collector(self) -> KVFerryCollector:
        """For a registry of prometheus-client; see `KVFerryCollector`.

        Raises:
            UsageError: prometheus-client is not installed.
        """
        from kvferry.metrics.collector import KVFerryCollector

        return KVFerryCollector([self])


def _summary(value: HistogramValue) -> dict[str, float]:
    return {"count": value.count, "sum": value.sum}
