"""The half of a connector in a worker: brings chunks into blocks, and takes them out.

    begin_step     before the engine computes: blocks that were saved lately may be overwritten now
    start_loads    loads begin, in threads; each is reported once by `finished`, within its limit
    save_layer     a layer is computed: its part of what is to be saved is taken out
    end_step       all are: what is missing of it is taken out too
    finished, failed_blocks   which loads have ended, and which blocks they did not fill

On a CPU blocks are gathered within the step. On a GPU that happens behind it, on a stream of its
own, and the next step waits only if blocks that are still being gathered were given to somebody.
Handing what was gathered to the cache happens in a thread in either case (`saver`). So a store that
is slow or dead costs the engine nothing, and no load outlasts its limit.

An engine that unmaps its blocks, to sleep or for other tensors, says so before (`release_blocks`):
from then on nothing reads or writes them.

Threads: the engine's one calls all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Workers, noticed
from kvferry.cache.interface import Cache
from kvferry.client.buffers import BufferLike
from kvferry.integrations.vllm.blocks.copier import BlockAccess, BlockCopier
from kvferry.integrations.vllm.connector.counts import Counts
from kvferry.integrations.vllm.connector.interfaces import LoadJob, Work
from kvferry.integrations.vllm.connector.saver import Saver
from kvferry.integrations.vllm.connector.step_times import HostSteps, Steps
from kvferry.metrics.deltas import MetricDeltas, add_deltas

__all__ = ["WorkerHalf"]

_log = logging.getLogger("kvferry.integrations.vllm")

# Why a store does not have what it was given.
_REFUSED = ("queue_full", "store_full", "unavailable", "error")
# Chunks that did not come although they are there: why, by the reasons of `kvferry.TieredCache`.
_WHY = {"not_worth_loading": "declined_chunks", "cut": "declined_chunks", "deadline": "late_chunks"}
# At the end: vLLM gives its workers 5 s, and 4 s more before it kills them.
_CLOSE_S = 4.0
# How long copies under way are waited for when blocks are revoked.
_RELEASE_BLOCKS_S = 10.0
# What a step without computing waits for loads: else the engine's loop would spin.
_IDLE_S = 0.0005
# How often what the cache has counted is handed over: a token waits for looking through all of it,
# which takes some tenths of a millisecond.
_DELTAS_EVERY_S = 1.0


class WorkerHalf:
    """Moves the KV of one rank.

    Args:
        backend: The cache; closed with this.
        copier: Of the engine's tensors; closed with this.
        chunk_blocks: Blocks of a chunk.
        load_timeout_s: The longest that a load may take, from when it begins.
        load_threads: How many loads run at a time.
        save_bytes_max: Memory for what was gathered and not handed over yet; it is used as needed.
        thread_start: What every thread of this does first.
        memory: Where chunks of the cache lie, to be pinned for a device.
        steps: Tells what steps take; default: on a CPU.
        rank: Of the engine's.
        shown: The families of metrics that `deltas` tells; default: all.
    """

    def __init__(
        self,
        backend: Cache,
        copier: BlockCopier,
        *,
        chunk_blocks: int,
        load_timeout_s: float,
        load_threads: int = 4,
        save_bytes_max: int = 256 << 20,
        thread_start: Callable[[], object] | None = None,
        memory: Sequence[BufferLike] = (),
        steps: Steps | None = None,
        rank: int = 0,
        shown: Collection[str] | None = None,
    ) -> None:
        self.backend = backend
        self._rank = rank
        self._deltas = MetricDeltas(backend.metrics, str(rank), shown)
        self._deltas_at = 0.0
        self.counts = Counts()
        self._copier = copier
        self._access = BlockAccess()
        self._chunk_blocks = chunk_blocks
        self._load_timeout_s = load_timeout_s
        self._chunk_bytes = copier.block_bytes * chunk_blocks
        self._saver = Saver(
            backend,
            copier,
            self.counts,
            self._access,
            chunk_blocks=chunk_blocks,
            bytes_max=save_bytes_max,
            thread_start=thread_start,
        )
        copier.pin([self._saver.memory, *memory])
        self._layer_index = {name: index for index, name in enumerate(copier.layer_names)}
        self._loaders = Workers(load_threads, "load-kv", thread_start)
        self._steps: Steps = steps or HostSteps()
        self._work: Work | None = None
        self._ended = threading.Condition()
        self._running: list[LoadJob] = []
        self._reports: list[tuple[LoadJob, list[int]]] = []  # and blocks that were not filled
        self._failed: set[int] = set()
        self._closing = False

    # --- A step ---

    def begin_step(self, work: Work) -> None:
        """Before anything is written in this step. Called again with the same work: nothing."""
        if work is self._work:
            return
        self._work = work
        for waited_s, ttft_s in work.first_tokens if self._rank == 0 else ():
            self.backend.metrics.first_token(waited_s, ttft_s)
        if work.computes:
            self._steps.begin()
        self._saver.protect(work.given)
        self._saver.begin(work.saves)

    def start_loads(self, work: Work) -> None:
        """Begin the loads of this step."""
        self.begin_step(work)
        if not work.loads:
            return
        fence = self._copier.fence()
        now = time.monotonic()
        for job in work.loads:
            with self._ended:
                self._running.append(job)
            try:
                self._loaders.submit(self._load, job, now, fence, self._access.epoch)
            except RuntimeError:  # closed
                self._report(job, 0, "")

    def save_layer(self, layer_name: str) -> None:
        """This layer is computed, or will be behind what the device was told so far."""
        index = self._layer_index.get(layer_name)
        if index is not None:
            self._saver.layer(index)

    def end_step(self) -> None:
        """All layers are; what was not taken out is taken out now, and handed over."""
        self._observe()
        self._saver.end()

    def release_blocks(self) -> bool:
        """The engine is about to unmap its blocks, or to write other KV: what was asked for until
        now is not loaded or taken out any more. Whether nothing touches them when this returns.

        Called in any thread. Copies under way are waited for, for some seconds at most.
        """
        return self._access.revoke(time.monotonic() + _RELEASE_BLOCKS_S)

    def _observe(self) -> None:
        """Tell the cache what steps have taken."""
        work = self._work
        if work is not None and work.computes:
            self._steps.end((work.new_tokens, work.pairs, work.decodes), self._saver.copied_s)
        for totals, took_s in self._steps.taken():
            self.backend.observe_step(*totals, took_s)

    # --- Loads ---

    def finished(self, computing: bool = True) -> set[str]:
        """The requests whose loads have ended since the last call.

        Args:
            computing: False: nothing else was done in this step, so a moment may be waited.
        """
        if not self._reports and (computing or not self._running):  # as in most steps
            return set()
        with self._ended:
            if not self._reports and self._running and not computing:
                self._ended.wait(_IDLE_S)
            reports, self._reports = self._reports, []
        for _, blocks in reports:
            self._failed.update(blocks)
        return {job.request_id for job, _ in reports}

    def failed_blocks(self) -> set[int]:
        """The blocks that were not filled by the loads that `finished` has reported."""
        if not self._failed:
            return set()
        failed, self._failed = self._failed, set()
        return failed

    def _load(self, job: LoadJob, given_at: float, fence: Any, epoch: int) -> None:
        began = time.monotonic()
        filled, why = 0, ""
        try:
            filled, why = self._bring(job, given_at, fence, epoch)
        except KVFerryError as error:
            _log.warning("a load ended early: %s", error)
        except Exception as error:  # ours: the engine computes instead
            noticed("load-kv", error)
        finally:
            self.counts.add("load_s", time.monotonic() - began)
            self._report(job, filled, why)

    def _bring(self, job: LoadJob, given_at: float, fence: Any, epoch: int) -> tuple[int, str]:
        """Fill the blocks; how many chunks are, and why it is not all of them."""
        prompt = replace(job.prompt, queued_at=given_at)
        if self._closing:
            return 0, ""
        hit = self.backend.retrieve(prompt, timeout_s=self._load_timeout_s)
        try:
            pages = hit.pages
            filled, why = len(pages), hit.reason
            if filled:
                ids = job.block_ids[: filled * self._chunk_blocks]
                with self._access.touching(epoch) as may:
                    if may:
                        began = time.monotonic()
                        self._copier.scatter(pages, ids, after=fence)
                        size_bytes, took_s = filled * self._chunk_bytes, time.monotonic() - began
                        self.backend.metrics.copied("out", size_bytes, took_s)
                if epoch != self._access.epoch:  # the blocks are not what they were
                    filled, why = 0, ""
        finally:
            del pages
            held = hit.release()
        if not held:  # the pages were perhaps somebody else's before the end
            self.counts.add("lost_leases", 1)
            return 0, ""
        return filled, why

    def _report(self, job: LoadJob, filled: int, why: str) -> None:
        missing = [block for block in job.block_ids[filled * self._chunk_blocks :] if block >= 0]
        self.counts.add("loads", 1)
        self.counts.add("loaded_chunks", filled)
        self.counts.add("loaded_bytes", filled * self._chunk_bytes)
        count = job.prompt.chunks - filled
        self.counts.add(_WHY.get(why, "failed_chunks"), count)
        with self._ended:
            if job not in self._running:  # given up; see `abandon`
                return
            self._running.remove(job)
            self._reports.append((job, missing))
            self._ended.notify_all()

    # --- What it tells ---

    def deltas(self) -> dict[str, Any]:
        """What was counted here since the last call, and now and then what the cache has counted,
        as `MetricDeltas` tells it."""
        now = time.monotonic()
        if now < self._deltas_at:
            return self.counts.take()
        self._deltas_at = now + _DELTAS_EVERY_S
        taken = self._deltas.take()
        counters = taken.get("counters", {})
        written = sum(counters.get("kvferry_store_bytes", {}).values()) // self._chunk_bytes
        shed = counters.get("kvferry_shed_chunks", {})
        refused = sum(shed.get(reason, 0) for reason in _REFUSED)
        for name, count in (("written_chunks", written), ("refused_chunks", refused)):
            if count:
                self.counts.add(name, count)
        add_deltas(taken, self.counts.take())
        return taken

    # --- The end ---

    def abandon(self) -> list[LoadJob]:
        """Close; the loads that nobody was told of. Their blocks are gone, whatever came."""
        self.release_blocks()
        with self._ended:
            left = [job for job, _ in self._reports] + self._running
            self._running, self._reports = [], []
        self.close()
        return left

    def inherit(self, jobs: Sequence[LoadJob]) -> None:
        """Report these as loads of which nothing came: see `abandon`."""
        for job in jobs:
            with self._ended:
                self._running.append(job)
            self._report(job, 0, "")

    def close(self) -> None:
        """Hand over what was gathered, write what waits for stores, for some seconds at most."""
        if self._closing:
            return
        self._closing = True
        until = time.monotonic() + _CLOSE_S
        self._loaders.shutdown(wait=False, cancel_futures=True)
        lost = self._saver.close(until)
        self.backend.close(max(0.0, until - time.monotonic()))
        lost += self._unwritten()
        if lost:
            _log.warning(
                "%d chunks were not saved before the end: they did not get to the cache within the "
                "%.0f s that a worker has",
                lost,
                _CLOSE_S,
            )
        self._copier.close()

    def _unwritten(self) -> int:
        """Chunks that were still to be written to stores when the cache was closed."""
        try:
            metrics = self.backend.stats().get("metrics", {})
        except KVFerryError:  # a server's client, which is closed: the server writes on
            return 0
        dropped = metrics.get("kvferry_shed_chunks_total", {}).get("cancelled", 0)
        count = int(dropped + metrics.get("kvferry_write_queue_chunks", 0))
        self.counts.add("lost_chunks", count)
        return count
