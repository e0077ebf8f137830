"""The half of a connector in a worker: brings chunks into blocks, and takes them out.

    begin_step     before the engine computes: blocks that were saved lately may be overwritten now
    start_loads    loads begin, in threads; each is reported once by `finished`, within its limit
    save_layer     a layer is computed: its part of what is to be saved is taken out
    end_step       all are: what is missing of it is taken out too
    finished, failed_blocks   which loads have ended, and which blocks they did not fill

On a CPU blocks are gathered within the step. On a GPU that happens behind it, on a stream of its
own, and the next step waits only if blocks that are still being gathered were given to somebody.
Handing what was gathered to the cache happens in a thread in either case. There are only so many
buffers for it: what finds none is not saved, and counted. So a store that is slow or dead costs the
engine nothing, and no load outlasts its limit.

Threads: the engine's one calls all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kvferry.client.buffers import BufferLike
from kvferry.engine.prompt import Prompt
from kvferry.errors import KVFerryError
from kvferry.integrations.vllm.backend import Backend, Copier, LoadJob, SaveJob, Work
from kvferry.integrations.vllm.counts import Counts
from kvferry.keys import DIGEST_BYTES
from kvferry.pool import Page, PagePool

__all__ = ["WorkerHalf"]

_log = logging.getLogger("kvferry.integrations.vllm")

_COUNTED = (
    *("loads", "loaded_chunks", "loaded_bytes", "failed_chunks", "lost_leases", "load_s"),
    *("saved_chunks", "saved_bytes", "known_chunks", "shed_chunks", "save_s"),
)
_CLOSE_S = 5.0
# What a step without computing waits for loads: else the engine turns in a circle at full speed.
_IDLE_S = 0.0005
# Blocks that somebody else was given are waited for at least so long; then the save is dropped.
_FENCE_S = 10.0


class _Save:
    """Chunks on their way out of their blocks."""

    __slots__ = ("job", "layers", "pages", "spoilt", "steps")

    def __init__(self, job: SaveJob, pages: list[Page]) -> None:
        self.job = job
        self.pages = pages
        self.layers: set[int] = set()  # those that were taken out, or are about to be
        self.steps: list[Future[None]] = []  # what still reads the blocks
        self.spoilt = False  # the blocks may hold something else by now


class WorkerHalf:
    """Moves the KV of one rank.

    Args:
        backend: The cache; closed with this.
        copier: Of the engine's tensors; closed with this.
        chunk_size: Tokens of a chunk.
        chunk_blocks: Blocks of a chunk.
        load_timeout_s: The longest that a load may take.
        load_threads: How many loads run at a time.
        save_bytes_max: Memory for what was gathered and not handed over yet; it is used as needed.
        thread_start: What every thread of this does first.
    """

    def __init__(
        self,
        backend: Backend,
        copier: Copier,
        *,
        chunk_size: int,
        chunk_blocks: int,
        load_timeout_s: float,
        load_threads: int = 4,
        save_bytes_max: int = 256 << 20,
        thread_start: Callable[[], object] | None = None,
    ) -> None:
        self.backend = backend
        self.counts = Counts(_COUNTED)
        self._copier = copier
        self._chunk_size = chunk_size
        self._chunk_blocks = chunk_blocks
        self._load_timeout_s = load_timeout_s
        self._chunk_bytes = copier.block_bytes * chunk_blocks
        pages = max(1, save_bytes_max // self._chunk_bytes)
        self._pool = PagePool((self._chunk_bytes,), "uint8", pages, prefault=False)
        self._layer_index = {name: index for index, name in enumerate(copier.layer_names)}
        self._loaders = ThreadPoolExecutor(load_threads, "kvferry-load-kv", thread_start)
        self._saver = ThreadPoolExecutor(1, "kvferry-save-kv", thread_start)
        self._work: Work | None = None
        self._saves: list[_Save] = []  # of this step
        self._pending: list[_Save] = []  # of former steps, with blocks that are still read
        self._ended = threading.Condition()
        self._running = 0
        self._reports: list[tuple[str, list[int]]] = []  # requests, and blocks that were not filled
        self._failed: set[int] = set()
        self._closing = False

    # --- A step ---

    def begin_step(self, work: Work) -> None:
        """Before anything is written in this step. Called again with the same work: nothing."""
        if work is self._work:
            return
        self._work = work
        self._protect(work.given)
        self._saves = []
        taken = self.backend.available  # else there is no need to copy anything
        for job in work.saves:
            chunks = len(job.block_ids) // self._chunk_blocks
            pages = self._take_pages(chunks) if taken else []
            if len(pages) < chunks:
                self.counts.add("shed_chunks", chunks - len(pages))
            if pages:
                self._saves.append(_Save(job, pages))

    def start_loads(self, work: Work) -> None:
        """Begin the loads of this step."""
        self.begin_step(work)
        if not work.loads:
            return
        fence = self._copier.fence()
        until = time.monotonic() + self._load_timeout_s
        for job in work.loads:
            with self._ended:
                self._running += 1
            try:
                self._loaders.submit(self._load, job, until, fence)
            except RuntimeError:  # closed
                self._report(job, 0)

    def save_layer(self, layer_name: str) -> None:
        """This layer is computed, or will be behind what the device was told so far."""
        index = self._layer_index.get(layer_name)
        if not self._saves or index is None:
            return
        fence = self._copier.fence()
        for save in self._saves:
            save.layers.add(index)
            self._gather(save, index, fence)

    def end_step(self) -> None:
        """All layers are; what was not taken out is taken out now, and handed over."""
        saves, self._saves = self._saves, []
        if not saves:
            return
        fence = self._copier.fence()
        for save in saves:
            missing = len(self._layer_index) - len(save.layers)
            if missing == len(self._layer_index):
                self._gather(save, None, fence)
            elif missing:
                for index in self._layer_index.values():
                    if index not in save.layers:
                        self._gather(save, index, fence)
            if save.steps:
                self._pending.append(save)
            self._in_background(self._store, save)
        self._pending = [save for save in self._pending if not _all_done(save.steps)]

    # --- Loads ---

    def finished(self, computing: bool = True) -> set[str]:
        """The requests whose loads have ended since the last call.

        Args:
            computing: False: nothing else was done in this step, so a moment may be waited.
        """
        with self._ended:
            if not self._reports and self._running and not computing:
                self._ended.wait(_IDLE_S)
            reports, self._reports = self._reports, []
        for _, blocks in reports:
            self._failed.update(blocks)
        return {request_id for request_id, _ in reports}

    def failed_blocks(self) -> set[int]:
        """The blocks that were not filled by the loads that `finished` has reported."""
        failed, self._failed = self._failed, set()
        return failed

    def _load(self, job: LoadJob, until: float, fence: Any) -> None:
        began = time.monotonic()
        filled = 0
        try:
            filled = self._bring(job, until, fence)
        except KVFerryError as error:
            _log.warning("a load ended early: %s", error)
        except Exception:  # ours: the engine computes instead
            _log.exception("a load failed")
        finally:
            self.counts.add("load_s", time.monotonic() - began)
            self._report(job, filled)

    def _bring(self, job: LoadJob, until: float, fence: Any) -> int:
        """Fill the blocks; how many chunks are."""
        chunks = len(job.hashes) // DIGEST_BYTES
        prompt = Prompt(job.hashes, chunks * self._chunk_size, self._chunk_size)
        left_s = until - time.monotonic()
        if left_s <= 0 or self._closing:
            return 0
        hit = self.backend.retrieve(prompt, timeout_s=left_s)
        try:
            pages = hit.pages
            filled = len(pages)
            if filled:
                ids = job.block_ids[: filled * self._chunk_blocks]
                self._copier.scatter(pages, ids, after=fence)
        finally:
            del pages
            held = hit.release()
        if not held:  # the pages were perhaps somebody else's before the end
            self.counts.add("lost_leases", 1)
            return 0
        return filled

    def _report(self, job: LoadJob, filled: int) -> None:
        missing = [block for block in job.block_ids[filled * self._chunk_blocks :] if block >= 0]
        self.counts.add("loads", 1)
        self.counts.add("loaded_chunks", filled)
        self.counts.add("loaded_bytes", filled * self._chunk_bytes)
        self.counts.add("failed_chunks", len(job.hashes) // DIGEST_BYTES - filled)
        with self._ended:
            self._running -= 1
            self._reports.append((job.request_id, missing))
            self._ended.notify_all()

    # --- Saves ---

    def _take_pages(self, count: int) -> list[Page]:
        pages: list[Page] = []
        while len(pages) < count and (page := self._pool.allocate()) is not None:
            pages.append(page)
        return pages

    def _gather(self, save: _Save, layer: int | None, fence: Any) -> None:
        """Take a layer out, or all: now where that waits for nobody, else behind the step."""
        if fence is None:
            self._gather_now(save, layer, None)
        else:
            future = self._in_background(self._gather_now, save, layer, fence)
            if future is not None:
                save.steps.append(future)

    def _gather_now(self, save: _Save, layer: int | None, fence: Any) -> None:
        if save.spoilt:
            return
        ids = save.job.block_ids[: len(save.pages) * self._chunk_blocks]
        pages: Sequence[BufferLike] = save.pages
        try:
            if layer is None:
                self._copier.gather(ids, pages, after=fence)
            else:
                self._copier.gather_layer(layer, ids, pages, after=fence)
        except Exception:  # ours: then it is not saved
            _log.exception("blocks could not be gathered")
            save.spoilt = True

    def _protect(self, given: Sequence[int]) -> None:
        """Blocks that somebody is given must not be read any more."""
        if not self._pending or not given:
            return
        taken = set(given)
        for save in self._pending:
            if taken.isdisjoint(save.job.block_ids):
                continue
            until = time.monotonic() + _FENCE_S
            for future in save.steps:
                try:
                    future.result(max(0.0, until - time.monotonic()))
                except Exception:  # too late, or cancelled: what is there is not to be trusted
                    save.spoilt = True
        self._pending = [save for save in self._pending if not _all_done(save.steps)]

    def _store(self, save: _Save) -> None:
        began = time.monotonic()
        job, chunks = save.job, len(save.pages)
        try:
            if save.spoilt:
                self.counts.add("shed_chunks", chunks)
                return
            end = job.first_chunk + chunks
            hashes = job.hashes[: end * DIGEST_BYTES]
            prompt = Prompt(hashes, end * self._chunk_size, self._chunk_size)
            stored = self.backend.store(prompt, save.pages, first_chunk=job.first_chunk)
            self.counts.add("saved_chunks", stored.chunks)
            self.counts.add("saved_bytes", stored.chunks * self._chunk_bytes)
            self.counts.add("known_chunks", stored.known)
            self.counts.add("shed_chunks", stored.shed + sum(stored.dropped.values()))
        except KVFerryError as error:
            self.counts.add("shed_chunks", chunks)
            _log.warning("%d chunks were not saved: %s", chunks, error)
        except Exception:  # ours
            self.counts.add("shed_chunks", chunks)
            _log.exception("%d chunks were not saved", chunks)
        finally:
            for page in save.pages:
                page.free()
            self.counts.add("save_s", time.monotonic() - began)

    def _in_background(self, call: Callable[..., None], *args: Any) -> Future[None] | None:
        try:
            return self._saver.submit(call, *args)
        except RuntimeError:  # closed: what was gathered is lost
            return None

    # --- The end ---

    def stats(self) -> dict[str, Any]:
        """What this half counted, and under "cache" what the cache did."""
        return {**self.counts.read(), "cache": self.backend.stats()}

    def close(self) -> None:
        """Hand over what was gathered, write what waits for stores, for some seconds at most."""
        if self._closing:
            return
        self._closing = True
        self._loaders.shutdown(wait=False, cancel_futures=True)
        last = self._in_background(lambda: None)
        if last is not None:
            try:
                last.result(_CLOSE_S)
            except Exception:
                _log.warning("chunks were not saved before the end")
        self._saver.shutdown(wait=False, cancel_futures=True)
        self.backend.close()
        self._copier.close()


def _all_done(futures: Sequence[Future[None]]) -> bool:
    return all(future.done() for future in futures)
