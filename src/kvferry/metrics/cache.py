"""What a cache counts; see the package for how it is read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kvferry.base.errors import UsageError
from kvferry.base.threads import failures
from kvferry.metrics.cells import Cells
from kvferry.metrics.families import (
    DECISIONS,
    MISS_REASONS,
    ONE_SIDED,
    PREDICTED,
    SHED_REASONS,
    WAYS,
    cache_families,
)
from kvferry.metrics.others import add_counted
from kvferry.metrics.series import Family, HistogramValue

if TYPE_CHECKING:
    from kvferry.metrics.collector import KVFerryCollector

__all__ = ["CacheMetrics"]

_log = logging.getLogger("kvferry.metrics")


class CacheMetrics:
    """The counters of one cache.

    Threads: any, at any time; counting waits for nobody. A call fails only for a reason that does
    not exist, which is a bug of the caller.

    Args:
        labels: Constant labels of all series, e.g. ``{"instance_rank": "0"}``, for processes with
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
        self._mine.cell.requested[""] += tokens

    def hit(self, tier: str, tokens: int, size_bytes: int) -> None:
        """KV of this many tokens was used, from "l1" or the store of this name."""
        cell = self._mine.cell
        try:
            cell.hit_tokens[tier] += tokens
            cell.hit_bytes[tier] += size_bytes
        except KeyError:
            cell.hit_tokens[tier], cell.hit_bytes[tier] = tokens, size_bytes

    def saved(self, seconds: float) -> None:
        """So much prefill was predicted for tokens whose KV was used."""
        self._add("prefill_saved_seconds", "", seconds)

    def missed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were wanted and not used; `reason` is one of `MISS_REASONS`."""
        try:
            self._mine.cell.missed[reason] += chunks
        except KeyError:
            raise _unknown(reason, "reason of a miss", MISS_REASONS) from None

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
        cell = self._mine.cell
        if store not in cell.load_bytes:
            self._declare("load", store)
        cell.load_seconds[store].observe(seconds)
        cell.load_bytes[store] += size_bytes

    def stored(self, store: str, size_bytes: int, seconds: float) -> None:
        """A write to a store took so much in so long."""
        cell = self._mine.cell
        if store not in cell.store_bytes:
            self._declare("store", store)
        cell.store_seconds[store].observe(seconds)
        cell.store_bytes[store] += size_bytes

    def copied(self, way: str, size_bytes: int, seconds: float) -> None:
        """So much went "in" to this host's memory, or "out" of it to the engine, in so long."""
        if way not in WAYS:
            raise _unknown(way, "way", WAYS)
        self._observe("memory_seconds", way, seconds)
        self._add("memory_bytes", way, size_bytes)

    def first_token(self, waited_s: float, ttft_s: float) -> None:
        """A request had its first token after `ttft_s`; it waited so long of that for the cache."""
        if ttft_s > 0:
            self._observe("ttft_share", "", min(1.0, waited_s / ttft_s))

    def one_sided(self, peer: str, what: str, count: int) -> None:
        """One-sided reads of a peer's memory; `what` is one of `ONE_SIDED`."""
        if what not in ONE_SIDED:
            raise _unknown(what, "count of one-sided reads", ONE_SIDED)
        self._add(f"one_sided_{what}", peer, count)

    def evicted(self, tier: str, chunks: int) -> None:
        """Chunks left "l1" or a store to make room."""
        self._add("evicted_chunks", tier, chunks)

    def evicted_then_missed(self, tier: str, chunks: int = 1) -> None:
        """Chunks were wanted that had left this tier."""
        self._add("evicted_then_missed_chunks", tier, chunks)

    def shed(self, reason: str, chunks: int = 1) -> None:
        """Chunks were not written to a store; `reason` is one of `SHED_REASONS`."""
        if reason not in SHED_REASONS:
            raise _unknown(reason, "reason to shed", SHED_REASONS)
        self._add("shed_chunks", reason, chunks)

    def waited_for_flight(self, chunks: int = 1) -> None:
        """A request waited for chunks that another one was loading."""
        self._add("single_flight_waits", "", chunks)

    def decided(self, decision: str) -> None:
        """A retrieve was decided; `decision` is one of `DECISIONS`."""
        if decision not in DECISIONS:
            raise _unknown(decision, "decision", DECISIONS)
        self._add("decisions", decision, 1)

    def predicted(self, what: str, predicted_s: float, actual_s: float) -> None:
        """A "load" or a "prefill" was predicted to take so long and took so long."""
        cell = self._mine.cell
        try:
            cell.predicted[what] += predicted_s
        except KeyError:
            raise _unknown(what, "prediction", PREDICTED) from None
        cell.actual[what] += actual_s
        if predicted_s > 0:
            cell.ratio[what].observe(actual_s / predicted_s)

    def pool(self, used: int, total: int) -> None:
        """Pages of the pool as they are now."""
        self._set("pool_pages_used", "", used)
        self._set("pool_pages", "", total)

    def write_queue(self, chunks: int, size_bytes: int) -> None:
        """What waits to be written, as it is now."""
        self._set("write_queue_chunks", "", chunks)
        self._set("write_queue_bytes", "", size_bytes)

    def store_state(
        self,
        store: str,
        *,
        available: bool | None = None,
        refuses: bool | None = None,
        used_bytes: int | None = None,
        capacity_bytes: int | None = None,
    ) -> None:
        """A store as it is now; None leaves a number as it was."""
        if available is not None:
            self._set("store_available", store, int(available))
        if refuses is not None:
            self._set("store_refuses", store, int(refuses))
        if used_bytes is not None:
            self._set("store_used_bytes", store, used_bytes)
        if capacity_bytes is not None:
            self._set("store_capacity_bytes", store, capacity_bytes)

    def add(
        self,
        sums: Mapping[str, Mapping[str, float]],
        histograms: Mapping[str, Mapping[str, tuple[float, Sequence[int]]]],
    ) -> None:
        """What an engine has counted that this one cannot know; see `kvferry.metrics.others`.

        Raises:
            UsageError: A series is none of these, or its numbers cannot be; nothing is added.
        """
        add_counted(self._mine.cell.families, sums, histograms)

    def _add(self, name: str, label: str, amount: float) -> None:
        self._mine.cell.families[name].add(label, amount)

    def _observe(self, name: str, label: str, value: float) -> None:
        self._mine.cell.families[name].of(label).observe(value)

    def _declare(self, verb: str, store: str) -> None:
        """Series of a store that nobody announced."""
        for name in (f"{verb}_seconds", f"{verb}_bytes"):
            self._mine.cell.families[name].declare((store,))

    def _set(self, name: str, label: str, value: float) -> None:
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


def _unknown(word: str, what: str, known: Iterable[str]) -> UsageError:
    return UsageError(f"{word!r} is no {what}; known are: {', '.join(known)}")


def _summary(value: HistogramValue) -> dict[str, float]:
    return {"count": value.count, "sum": value.sum}
