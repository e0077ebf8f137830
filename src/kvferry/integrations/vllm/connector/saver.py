"""Takes chunks out of an engine's blocks, and hands them to the cache.

    begin      before a step: the chunks that it completes, and on a CPU room for them
    layer      a layer is computed: on a CPU its part of them is taken out
    end        all are: what is missing is taken out, and the chunks are handed over
    protect    blocks are given to a request: gathers that still read them are waited for

Two threads: one gathers, where a device does that behind the step, and one hands over. A store that
is slow holds up the second alone, so that blocks are free again as soon as the device has read
them. There are only so many buffers. On a CPU what finds none is not saved, and counted. Behind a
device, which may be told of many steps before the first is done, it waits for one; it is not saved
if somebody is given its blocks before that.

Threads: the engine's one calls all of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from kvferry.base.errors import KVFerryError
from kvferry.base.threads import Workers, noticed
from kvferry.cache.interface import Cache
from kvferry.chunks.pool import Page, PagePool
from kvferry.client.buffers import BufferLike
from kvferry.client.dlpack import view_memory
from kvferry.integrations.vllm.blocks.copier import BlockAccess, BlockCopier
from kvferry.integrations.vllm.connector.counts import Counts
from kvferry.integrations.vllm.connector.interfaces import SaveJob

__all__ = ["Saver"]

_log = logging.getLogger("kvferry.integrations.vllm")

# How long a step waits for blocks that are still read and were given to another request; then the
# save is dropped.
_FENCE_S = 10.0
# How often room is looked for: a page that was freed may be in use for a moment longer, and its end
# is not signalled.
_ROOM_S = 0.05


class _Save:
    """Chunks on their way out of their blocks."""

    __slots__ = ("begun", "chunks", "ended", "epoch", "job", "layers", "pages", "spoilt")

    def __init__(self, job: SaveJob, chunks: int, pages: list[Page], epoch: int) -> None:
        self.job = job
        self.chunks = chunks
        self.pages = pages
        self.begun = bool(pages)  # there is room
        self.epoch = epoch  # of the access, when the blocks were as they should be
        self.layers: set[int] = set()  # those that were taken out
        self.ended = False  # nothing reads the blocks any more
        self.spoilt = False  # the blocks may hold something else by now


class Saver:
    """The way of one rank's chunks to the cache.

    Args:
        backend: The cache; closed by its owner.
        copier: Of the engine's tensors; closed by its owner.
        counts: Counts ``saved_``, ``known_``, ``shed_`` and ``lost_chunks``.
        access: To the blocks.
        chunk_blocks: Blocks of a chunk.
        bytes_max: Memory for what was gathered and not handed over yet; it is used as needed.
        thread_start: What every thread of this does first.
    """

    def __init__(
        self,
        backend: Cache,
        copier: BlockCopier,
        counts: Counts,
        access: BlockAccess,
        *,
        chunk_blocks: int,
        bytes_max: int,
        thread_start: Callable[[], object] | None,
    ) -> None:
        self._backend = backend
        self._copier = copier
        self._counts = counts
        self._access = access
        self._chunk_blocks = chunk_blocks
        self._chunk_bytes = copier.block_bytes * chunk_blocks
        self._layers = range(len(copier.layer_names))
        self._pages = max(1, bytes_max // self._chunk_bytes)
        self._pool = PagePool((self._chunk_bytes,), "uint8", self._pages, prefault=False)
        self._behind = copier.fence() is not None  # a device gathers, behind the step
        self._gatherer = Workers(1, "gather-kv", thread_start)
        self._saver = Workers(1, "save-kv", thread_start)
        self._saves: list[_Save] = []  # of this step
        self.copied_s = 0.0  # in this step, by the thread that computes
        self._pending: list[_Save] = []  # of former steps, with blocks that are still read
        self._lock = threading.Condition()
        self._waiting = 0  # chunks that are not handed over
        self._full = False  # a save waits for room, and those behind it
        self._closed = False

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
            if taken and self._behind:
                self._saves += self._parts(job, chunks)
                continue
            pages = self._take_pages(chunks) if taken else []
            if len(pages) < chunks:
                self._counts.add("shed_chunks", chunks - len(pages))
            if pages:
                self._saves.append(_Save(job, len(pages), pages, self._access.epoch))

    def layer(self, index: int) -> None:
        """This layer is computed, or will be behind what the device was told so far."""
        if self._behind:  # one copy of all layers takes less of everything than one for each
            return
        for save in self._saves:
            save.layers.add(index)
            self._gather(save, index)

    def end(self) -> None:
        """All layers are; what was not taken out is taken out now, and handed over."""
        saves, self._saves = self._saves, []
        if not saves:
            return
        fence = self._copier.fence()
        for save in saves:
            with self._lock:
                self._waiting += save.chunks
            if self._behind:
                future = _in_background(self._gatherer, self._gather_behind, save, fence)
                self._pending.append(save)
            else:
                if not save.layers:
                    self._gather(save, None)
                for index in self._layers if save.layers else ():
                    if index not in save.layers:
                        self._gather(save, index)
                future = _in_background(self._saver, self._hand_over, save)
            if future is None:  # closed
                self._counts.add("lost_chunks", save.chunks)
        self._pending = [save for save in self._pending if not save.ended]

    def protect(self, given: Sequence[int]) -> None:
        """Blocks that somebody is given must not be read any more."""
        if not self._pending or not given:
            return
        taken = set(given)
        for save in self._pending:
            if not taken.isdisjoint(save.job.block_ids):
                self._await(save)
        self._pending = [save for save in self._pending if not save.ended]

    # --- Out of the blocks ---

    def _take_pages(self, count: int) -> list[Page]:
        pages: list[Page] = []
        while len(pages) < count and (page := self._pool.allocate()) is not None:
            pages.append(page)
        return pages

    def _await(self, save: _Save) -> None:
        """Until nothing reads its blocks; if it waits for room itself, it is not saved."""

        def decided() -> bool:
            return save.ended or self._closed or (self._full and not save.begun)

        with self._lock:
            self._lock.wait_for(decided, _FENCE_S)
            if not save.ended:  # what is there is not to be trusted
                save.spoilt = True
                self._lock.notify_all()

    def _parts(self, job: SaveJob, chunks: int) -> list[_Save]:
        """In parts of which there is room for two."""
        most, parts = max(1, self._pages // 2), []
        for first in range(0, chunks, most):
            count = min(most, chunks - first)
            ids = job.block_ids[first * self._chunk_blocks : (first + count) * self._chunk_blocks]
            part = replace(job, first_chunk=job.first_chunk + first, block_ids=ids)
            parts.append(_Save(part, count, [], self._access.epoch))
        return parts

    def _gather(self, save: _Save, layer: int | None) -> None:
        """Within the step."""
        began = time.monotonic()
        self._gather_now(save, layer, None)
        self.copied_s += time.monotonic() - began

    def _gather_behind(self, save: _Save, fence: Any) -> None:
        """In the gatherer's thread: when there is room."""
        try:
            self._await_room(save)
            self._gather_now(save, None, fence)
        except BaseException:
            save.spoilt = True
            raise
        finally:
            with self._lock:
                save.ended = True
                self._lock.notify_all()
            if _in_background(self._saver, self._hand_over, save) is None:  # closed
                self._done(save)

    def _await_room(self, save: _Save) -> None:
        with self._lock:
            while not (save.spoilt or self._closed or save.begun):
                save.pages += self._take_pages(save.chunks - len(save.pages))
                save.begun = len(save.pages) == save.chunks
                self._full = not save.begun
                if self._full:
                    self._lock.notify_all()
                    self._lock.wait(_ROOM_S)
            self._full = False
            save.spoilt |= not save.begun

    def _gather_now(self, save: _Save, layer: int | None, fence: Any) -> None:
        if save.spoilt:
            return
        ids = save.job.block_ids[: save.chunks * self._chunk_blocks]
        pages: Sequence[BufferLike] = save.pages
        with self._access.touching(save.epoch) as may:
            try:
                if may and layer is None:
                    self._copier.gather(ids, pages, after=fence)
                elif may and layer is not None:
                    self._copier.gather_layer(layer, ids, pages, after=fence)
            except Exception as error:  # ours: then it is not saved
                noticed("gather-kv", error)
                save.spoilt = True
        if save.epoch != self._access.epoch:  # they were taken away before, or meanwhile
            save.spoilt = True

    # --- To the cache ---

    def _hand_over(self, save: _Save) -> None:
        began = time.monotonic()
        job, chunks = save.job, save.chunks
        try:
            if save.spoilt:
                self._counts.add("shed_chunks", chunks)
                return
            end = job.first_chunk + chunks
            prompt = job.prompt.cut(end)
            stored = self._backend.store(prompt, save.pages, first_chunk=job.first_chunk)
            self._counts.add("saved_chunks", stored.chunks)
            self._counts.add("saved_bytes", stored.chunks * self._chunk_bytes)
            self._counts.add("known_chunks", stored.known)
            self._counts.add("shed_chunks", stored.shed + sum(stored.dropped.values()))
        except KVFerryError as error:
            self._counts.add("shed_chunks", chunks)
            _log.warning("%d chunks were not saved: %s", chunks, error)
        except Exception as error:  # ours
            self._counts.add("shed_chunks", chunks)
            noticed("save-kv", error)
        finally:
            self._done(save)
            self._counts.add("save_s", time.monotonic() - began)

    def _done(self, save: _Save) -> None:
        for page in save.pages:
            page.free()
        with self._lock:
            self._waiting -= save.chunks
            self._lock.notify_all()

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
            lost, self._closed = self._waiting, True
            self._lock.notify_all()
        if lost:
            self._counts.add("lost_chunks", lost)
        self._gatherer.shutdown(wait=False, cancel_futures=True)
        self._saver.shutdown(wait=False, cancel_futures=True)
        return lost


def _in_background(threads: Workers, call: Callable[..., None], *args: Any) -> Future[None] | None:
    try:
        return threads.submit(call, *args)
    except RuntimeError:  # closed
        return None
