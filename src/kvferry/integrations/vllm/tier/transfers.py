"""Loads and stores between rows of a view and a store, each a native batch without a copy.

    transfers.load(job, keys, rows)     # returns at once
    channel.poll()
    transfers.take()                    # [FinishedTransfer(job, success=False, done=[...])]

A job is one batch: the socket reads into, and writes from, the rows themselves. It is finished when
no thread of ours touches its rows any more, and not before: a load that is given up is withdrawn,
and its end is awaited. Every job ends: it has a deadline that grows with its bytes, and loads that
get nothing for as long as that can pay, all of them together, are withdrawn at once.

Stores are shed (finished, without success) when the store is down, and when more than
`store_bytes_max` wait: rows that are being stored cannot be used for anything else. What the store
was heard to have is not stored again.

Ownership: the rows belong to the job until `take` has given it back. Threads: that of the
`StoreChannel`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvferry.cache.cost.load_or_compute import FirstByte
from kvferry.client.batch import BatchResult, Status
from kvferry.config.tuning import TierLimits
from kvferry.integrations.vllm.tier.store_channel import StoreChannel
from kvferry.integrations.vllm.tier.tier_cost import Patience

__all__ = ["FinishedTransfer", "Transfers"]

# Why nothing was begun, for people.
_WORDS = {
    "store_down": "it is away",
    "store_shed": "too much waits for it already",
    "store_refused": "its connector takes nothing",
}
_STATUS = tuple(status.name.lower() for status in Status)


@dataclass(slots=True)
class FinishedTransfer:
    """A job that is over.

    Attributes:
        job: As the caller named it.
        is_load: Or a store.
        success: Of every key.
        done: The keys that were loaded, or stored and acknowledged; without those that were there.
        took_s: From submission to the last byte.
        size_bytes: How much was moved.
        keys: All keys of the job.
        refused: How many the store did not take.
        why: Why not, or why they did not come.
    """

    job: int
    is_load: bool
    success: bool
    done: Sequence[bytes]
    took_s: float
    size_bytes: int
    keys: Sequence[bytes]
    refused: int = 0
    why: str = ""


@dataclass(slots=True)
class _Job:
    job: int
    is_load: bool
    keys: Sequence[bytes]  # all of them
    moved: Sequence[bytes]  # the keys that are in the batch
    batch: int = 0
    progress: int = 0
    withdrawn: bool = False
    began: float = 0.0
    dry_s: float = 0.0  # for how long surely nothing had come
    first_s: float = math.inf  # when something surely had


class Transfers:
    """See the head of this module.

    Args:
        channel: The store.
        view: The memory that rows lie in: contiguous, writable.
        row_bytes: Length of a row, and of every value.
        names_of: The names of chunks in the store.
        missing: The indices of the chunks that the store lacks, as far as is known.
        limits: See `TierLimits`.
        patience: Says how long loads may get nothing; told what they took.
        counts: Counts chunks by what they became: ``load_<status>``, ``store_<status>``, as in
            ``load_ok``; ``store_skipped``, ``store_shed``; and ``load_bytes``, ``store_bytes``.
    """

    def __init__(
        self,
        channel: StoreChannel,
        view: memoryview,
        row_bytes: int,
        names_of: Callable[[Sequence[bytes]], list[str]],
        missing: Callable[[Sequence[bytes]], list[int]],
        limits: TierLimits,
        counts: Counter[str],
        patience: Patience,
    ) -> None:
        self._channel = channel
        self._view: memoryview | None = view.cast("B") if view.ndim != 1 else view
        self._row_bytes = row_bytes
        self._names_of = names_of
        self._missing = missing
        self._limits = limits
        self._counts = counts
        self._patience = patience
        self._running: dict[int, _Job] = {}  # by batch
        self._finished: list[FinishedTransfer] = []
        self._store_bytes = 0
        self._moved_at = self._look_at = 0.0

    @property
    def running(self) -> int:
        """How many jobs are not finished."""
        return len(self._running)

    @property
    def untaken(self) -> int:
        """How many finished jobs `take` would return."""
        return len(self._finished)

    def load(self, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Begin to read chunks into rows."""
        entry = _Job(job, True, keys, keys)
        if self._channel.shut:
            self._refuse(entry, "load_down")
            return
        if not any(other.is_load for other in self._running.values()):
            self._moved_at = self._channel.clock()
        self._begin(entry, rows)

    def store(self, job: int, keys: Sequence[bytes], rows: Sequence[int]) -> None:
        """Begin to store chunks from rows."""
        wanted = self._missing(keys)
        moved = [keys[index] for index in wanted]
        self._counts["store_skipped"] += len(keys) - len(moved)
        entry = _Job(job, False, keys, moved)
        size_bytes = len(moved) * self._row_bytes
        if not moved:
            self._end(entry, True, (), 0.0, "")
        elif self._channel.shut:
            self._refuse(entry, "store_down")
        elif self._store_bytes and self._store_bytes + size_bytes > self._limits.store_bytes_max:
            self._refuse(entry, "store_shed")
        else:
            self._begin(entry, [rows[index] for index in wanted])

    def take(self) -> list[FinishedTransfer]:
        """Every job that finished since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def watch(self) -> None:
        """Withdraw loads when nothing arrives any more. Once a step."""
        now = self._channel.clock()
        if now < self._look_at:
            return
        loads = [(batch, job) for batch, job in self._running.items() if job.is_load]
        begun = False
        for batch, job in loads:
            progress = self._channel.progress(batch)
            if not progress:
                job.dry_s = now - job.began
            elif not job.progress:
                job.first_s = now - job.began
            if progress != job.progress:
                job.progress, self._moved_at = progress, now
            begun = begun or progress > 0
        chunks = sum(len(job.keys) for _, job in loads)
        stalled_s = self._patience.stalled_s(chunks, now, begun=begun)
        self._look_at = now + stalled_s / 10
        if loads and now - self._moved_at > stalled_s:
            for _, job in loads:
                if not job.progress:
                    self._patience.nothing_came(now - job.began, now)
            self._withdraw(loads)
            self._channel.pause()

    def withdraw(self, loads: bool, stores: bool) -> None:
        """Give up what runs; it ends soon, as soon as nothing uses its rows."""
        running = self._running.items()
        self._withdraw([(b, job) for b, job in running if (loads if job.is_load else stores)])

    def release(self) -> None:
        """Let go of the view. Nothing may run."""
        if self._view is not None and not self._running:
            self._view = None

    def _withdraw(self, jobs: Sequence[tuple[int, _Job]]) -> None:
        for batch, job in jobs:
            if not job.withdrawn:
                job.withdrawn = True
                self._channel.cancel(batch)

    def _begin(self, entry: _Job, rows: Sequence[int]) -> None:
        view, width = self._view, self._row_bytes
        if view is None:
            self._refuse(entry, "load_down" if entry.is_load else "store_down")
            return
        names = self._names_of(entry.moved)
        views = [view[row * width : (row + 1) * width] for row in rows]
        limits, size_bytes = self._limits, len(names) * width
        base_s = limits.load_timeout_s if entry.is_load else limits.store_timeout_s
        timeout_s = base_s + size_bytes / limits.floor_rate_bytes_s
        send = self._channel.get if entry.is_load else self._channel.set

        def answered(result: BatchResult) -> None:
            self._answered(entry, result)

        batch = send(names, views, timeout_s, answered)
        if batch is None:
            self._refuse(entry, "load_refused" if entry.is_load else "store_refused")
            return
        entry.batch, entry.began = batch, self._channel.clock()
        self._running[batch] = entry
        if not entry.is_load:
            self._store_bytes += size_bytes

    def _answered(self, entry: _Job, result: BatchResult) -> None:
        del self._running[entry.batch]
        self._moved_at = self._channel.clock()
        if not entry.is_load:
            self._store_bytes -= len(entry.moved) * self._row_bytes
        kind = "load" if entry.is_load else "store"
        for status in set(result.statuses):
            self._counts[f"{kind}_{_STATUS[status]}"] += result.statuses.count(status)
        done: Sequence[bytes] = entry.moved
        if not result.ok:
            pairs = zip(entry.moved, result.statuses, strict=True)
            done = [key for key, status in pairs if status == 0]
        self._counts[f"{kind}_bytes"] += len(done) * self._row_bytes
        if entry.is_load and result.ok:
            size_bytes = len(done) * self._row_bytes
            first = FirstByte(entry.dry_s, min(entry.first_s, result.elapsed_s))
            self._patience.loaded(size_bytes, result.elapsed_s, self._channel.clock(), first)
        self._end(entry, result.ok, done, result.elapsed_s, result.error or "")

    def _refuse(self, entry: _Job, why: str) -> None:
        self._counts[why] += len(entry.moved)
        self._end(entry, False, (), 0.0, _WORDS.get(why, ""))

    def _end(
        self, entry: _Job, success: bool, done: Sequence[bytes], took_s: float, why: str
    ) -> None:
        size_bytes, refused = len(done) * self._row_bytes, len(entry.moved) - len(done)
        ended = FinishedTransfer(
            *(entry.job, entry.is_load, success, done, took_s, size_bytes, entry.keys),
            refused=0 if success else refused,
            why=why,
        )
        self._finished.append(ended)
