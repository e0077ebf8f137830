"""Takes chunks out of an engine's blocks, and hands them to the cache.

    begin      before a step: room for the chunks that it completes
    layer      a layer is computed: its part of them is taken out
    end        all are: what is missing is taken out, and the chunks are handed over
    protect    blocks are given to somebody: whoever still reads them is waited for

Two threads: one gathers, where a device does that behind the step, and one hands over. A store that
is slow holds up the second alone, so that blocks are free again as soon as the device has read
them. There are only so many buffers: what finds none is not saved, and counted.

Threads: the engine's one calls all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from kvferry.cache.prompt import Prompt
from kvferry.chunks.keys import DIGEST_BYTES
from kvferry.client.buffers import BufferLike
from kvferry.client.dlpack import view_memory
from kvferry.errors import KVFerryError
from kvferry.integrations.vllm.backend import Backend, Copier, SaveJob
from kvferry.integrations.vllm.block_access import BlockAccess
from kvferry.integrations.vllm.counts import Counts
from kvferry.pool import Page, PagePool

__all__ = ["Saver"]

_log = logging.getLogger("kvferry.integrations.vllm")

# Blocks that somebody else was given are waited for at least so long; then the save is dropped.
_FENCE_S = 10.0


class _Save:
    """Chunks on their way out of their blocks."""

    __slots__ = ("epoch", "job", "layers", "pages", "spoilt", "steps")

    def __init__(self, job: SaveJob, pages: list[Page], epoch: int) -> None:
        self.job = job
        self.pages = pages
        self.epoch = epoch  # of the access, when the blocks were as they should be
        self.layers: set[int] = set()  # those that were taken out, or are about to be
        self.steps: list[Future[None]] = []  # what still reads the blocks
        self.spoilt = False  # the blocks may hold something else by now


class Saver:
    """The way of one rank's chunks to the cache.

    Args:
        backend: The cache; closed by its owner.
        copier: Of the engine's tensors; closed by its owner.
        counts: Counts ``saved_``, ``known_``, ``shed_`` and ``lost_chunks``.
        access: To the blocks.
        chunk_size: Tokens of a chunk.
        chunk_blocks: Blocks of a chunk.
        bytes_max: Memory for what was gathered and not handed over yet; it is used as needed.
        thread_start: What every thread of this does first.
    """

    def __init__(
        self,
        backend: Backend,
        copier: Copier,
        counts: Counts,
        access: BlockAccess,
        *,
        chunk_size: int,
        chunk_blocks: int,
        bytes_max: int,
        thread_start: Callable[[], object] | None,
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._counts = counts
        self._access = access
        self._chunk_size = chunk_size
        self._chunk_blocks = chunk_blocks
        self._chunk_bytes = copier.block_bytes * chunk_blocks
        self._layers = range(len(copier.layer_names))
        pages = max(1, bytes_max // self._chunk_bytes)
        self._pool = PagePool((self._chunk_bytes,), "uint8", pages, prefault=False)
        self._gatherer = ThreadPoolExecutor(1, "kvferry-gather-kv", thread_start)
        self._saver = ThreadPoolExecutor(1, "kvferry-save-kv", thread_start)
        self._saves: list[_Save] = []  # of this step
        self.copied_s = 0.0  # in this step, by the thread that computes
        self._pending: list[_Save] = []  # of former steps, with blocks that are still read
        self._lock = threading.Lock()
        self._waiting = 0  # chunks that are not handed over

    @property
    def memory(self) -> memoryview:
        """Of all buffers."""
        pool = self._pool
        return view_memory(pool.start_address, pool.nbytes, owner=pool, read_only=True)

    # --- A step ---

    def begin(self, jobs: Sequence[SaveJob]) -> None:
        """Find room for the chunks that this step completes."""
        self._saves, self.copied_s = [], 0.0
        taken = self._backend.available  # else there is no need to copy anything
        for job in jobs:
            chunks = len(job.block_ids) // self._chunk_blocks
            pages = self._take_pages(chunks) if taken else []
            if len(pages) < chunks:
                self._counts.add("shed_chunks", chunks - len(pages))
            if pages:
                self._saves.append(_Save(job, pages, self._access.epoch))

    def layer(self, index: int) -> None:
        """This layer is computed, or will be behind what the device was told so far."""
        if not self._saves:
            return
        fence = self._copier.fence()
        for save in self._saves:
            save.layers.add(index)
            self._gather(save, index, fence)

    def end(self) -> None:
        """All layers are; what was not taken out is taken out now, and handed over."""
        saves, self._saves = self._saves, []
        if not saves:
            return
        fence = self._copier.fence()
        for save in saves:
            if not save.layers:
                self._gather(save, None, fence)
            for index in self._layers if save.layers else ():
                if index not in save.layers:
                    self._gather(save, index, fence)
            if save.steps:
                self._pending.append(save)
            with self._lock:
                self._waiting += len(save.pages)
            if _in_background(self._saver, self._hand_over, save) is None:  # closed
                self._counts.add("lost_chunks", len(save.pages))
        self._pending = [save for save in self._pending if not _all_done(save.steps)]

    def protect(self, given: Sequence[int]) -> None:
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

    # --- Out of the blocks ---

    def _take_pages(self, count: int) -> list[Page]:
        pages: list[Page] = []
        while len(pages) < count and (page := self._pool.allocate()) is not None:
            pages.append(page)
        return pages

    def _gather(self, save: _Save, layer: int | None, fence: Any) -> None:
        if fence is None:
            began = time.monotonic()
            self._gather_now(save, layer, None)
            self.copied_s += time.monotonic() - began
            return
        future = _in_background(self._gatherer, self._gather_now, save, layer, fence)
        if future is not None:
            save.steps.append(future)
        else:
            save.spoilt = True

    def _gather_now(self, save: _Save, layer: int | None, fence: Any) -> None:
        if save.spoilt:
            return
        ids = save.job.block_ids[: len(save.pages) * self._chunk_blocks]
        pages: Sequence[BufferLike] = save.pages
        with self._access.touching(save.epoch) as may:
            try:
                if may and layer is None:
                    self._copier.gather(ids, pages, after=fence)
                elif may and layer is not None:
                    self._copier.gather_layer(layer, ids, pages, after=fence)
            except Exception:  # ours: then it is not saved
                _log.exception("blocks could not be gathered")
                save.spoilt = True
        if save.epoch != self._access.epoch:  # they were taken away before, or meanwhile
            save.spoilt = True

    # --- To the cache ---

    def _hand_over(self, save: _Save) -> None:
        for step in save.steps:
            try:
                step.result()  # bounded by the device
            except Exception:  # cancelled
                save.spoilt = True
        began = time.monotonic()
        job, chunks = save.job, len(save.pages)
        try:
            if save.spoilt:
                self._counts.add("shed_chunks", chunks)
                return
            end = job.first_chunk + chunks
            hashes = job.hashes[: end * DIGEST_BYTES]
            prompt = Prompt(hashes, end * self._chunk_size, self._chunk_size, job.generation)
            stored = self._backend.store(prompt, save.pages, first_chunk=job.first_chunk)
            self._counts.add("saved_chunks", stored.chunks)
            self._counts.add("saved_bytes", stored.chunks * self._chunk_bytes)
            self._counts.add("known_chunks", stored.known)
            self._counts.add("shed_chunks", stored.shed + sum(stored.dropped.values()))
        except KVFerryError as error:
            self._counts.add("shed_chunks", chunks)
            _log.warning("%d chunks were not saved: %s", chunks, error)
        except Exception:  # ours
            self._counts.add("shed_chunks", chunks)
            _log.exception("%d chunks were not saved", chunks)
        finally:
            self._done(save)
            self._counts.add("save_s", time.monotonic() - began)

    def _done(self, save: _Save) -> None:
        with self._lock:
            self._waiting -= len(save.pages)
        for page in save.pages:
            page.free()

    # --- The end ---

    def close(self, until: float) -> int:
        """Hand over what was gathered; how many chunks were not.

        Args:
            until: How long that may take, on the clock of ``time.monotonic``.
        """
        for threads in (self._gatherer, self._saver):
            last = _in_background(threads, lambda: None)
            if last is not None:
                try:
                    last.result(max(0.0, until - time.monotonic()))
                except Exception:
                    break
        with self._lock:
            lost = self._waiting
        if lost:
            self._counts.add("lost_chunks", lost)
        self._gatherer.shutdown(wait=False, cancel_futures=True)
        self._saver.shutdown(wait=False, cancel_futures=True)
        return lost


def _in_background(
    threads: ThreadPoolExecutor, call: Callable[..., None], *args: Any
) -> Future[None] | None:
    try:
        return threads.submit(call, *args)
    except RuntimeError:  # closed
        return None


def _all_done(futures: Sequence[Future[None]]) -> bool:
    return all(future.done() for future in futures)
