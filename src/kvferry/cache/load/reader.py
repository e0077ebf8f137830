"""From what was gathered to what the caller gets: pages to read from, or his buffers filled."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from kvferry.cache.load.retriever import Gathered, Retriever
from kvferry.cache.memory import Memory, PagesGone, targets
from kvferry.cache.meter import Meter
from kvferry.cache.results import Retrieved
from kvferry.cache.steps import Steps, finish
from kvferry.cache.store.store_tiers import MEMORY
from kvferry.cache.storer import Storer
from kvferry.chunks.layout import ELEMENTS, KVLayout
from kvferry.chunks.prompt import Prompt
from kvferry.connectors.base import BufferLike

__all__ = ["Reader"]


class Reader:
    """The reading half of a cache.

    Args:
        memory, retriever, meter, storer: Of the cache.
        layout: Of its chunks.
        keep: Whether what was read stays in memory; else it leaves with its last reader.
    """

    def __init__(
        self,
        memory: Memory,
        retriever: Retriever,
        meter: Meter,
        layout: KVLayout,
        storer: Storer,
        *,
        keep: bool,
    ) -> None:
        self._memory = memory
        self._retriever = retriever
        self._meter = meter
        self._layout = layout
        self._storer = storer
        self._keep = keep

    def gather(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Gathered:
        """`gathering`, waiting on the spot."""
        return finish(self.gathering(prompt, deadline, into))

    def gathering(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None = None
    ) -> Steps[Gathered]:
        """`Retriever.gathering`, and what came of it is counted."""
        began = time.monotonic()
        gathered = yield from self._retriever.gathering(prompt, deadline, into)
        self._meter.gathered(prompt, gathered, time.monotonic() - began)
        self._storer.observe(prompt, gathered.memory_chunks)
        return gathered

    def from_memory(self, prompt: Prompt, chunks: int, took_s: float) -> None:
        """Count a retrieve that memory alone has answered, with so many leading chunks."""
        gathered = Gathered(chunks, bytearray(), reason="never_stored")
        self._retriever.credit(prompt, gathered)
        self._meter.gathered(prompt, gathered, took_s)
        self._storer.observe(prompt, chunks)

    def retrieve(
        self, prompt: Prompt, deadline: float, into: Sequence[BufferLike] | None
    ) -> Retrieved:
        """See `TieredCache.retrieve`."""
        if into is not None:
            into = targets(prompt, into, self._layout.chunk_bytes)
        gathered = self.gather(prompt, deadline, into)
        lease, handles = self._memory.acquire(prompt.hashes)
        chunks, pages = len(handles), []
        release = self._releaser(prompt, lease, chunks)
        try:
            if into is None:
                pages = [view.toreadonly() for view in self._memory.views(handles)]
            else:
                chunks = self._copy(gathered, handles, into)
        except PagesGone:  # somebody clears the cache at this moment
            chunks = 0
        finally:
            if release is not None and not pages:
                release()
                release = None
        return self._result(prompt, gathered, chunks, pages, release)

    def _copy(self, gathered: Gathered, handles: Sequence[int], into: Sequence[BufferLike]) -> int:
        """Copy what is in memory and not in the buffers yet; how many leading chunks they hold."""
        copied = gathered.copied
        missing = [chunk for chunk in range(len(handles)) if not copied[chunk]]
        if missing:
            self._memory.copy_out(
                [handles[chunk] for chunk in missing],
                [into[chunk] for chunk in missing],
                self._retriever.copy_threads,
            )
            for chunk in missing:
                copied[chunk] = 1
        end = copied.find(0)
        return len(copied) if end < 0 else end

    def _releaser(self, prompt: Prompt, lease: int, chunks: int) -> Callable[[], bool] | None:
        if not lease:
            return None
        if self._keep:
            return lambda: self._memory.cache.release(lease)

        def leave() -> bool:  # memory is a way through: nothing stays
            valid = self._memory.cache.release(lease)
            self._memory.cache.remove(prompt.first(chunks))
            return valid

        return leave

    def _result(
        self,
        prompt: Prompt,
        gathered: Gathered,
        chunks: int,
        pages: Sequence[memoryview],
        release: Callable[[], bool] | None,
    ) -> Retrieved:
        size = prompt.chunk_size
        loaded = {name: count * size for name, count in gathered.chunks.items()}
        here = max(0, chunks * size - sum(loaded.values()))
        reason = (gathered.reason or "evicted") if chunks < prompt.chunks else ""
        return Retrieved(
            tokens=chunks * size,
            tiers={MEMORY: here, **loaded},
            decision=gathered.plan.decision if gathered.plan else None,
            reason=reason,
            lookup_s=gathered.lookup_s,
            load_s=gathered.load_s,
            pages=pages,
            release=release,
            shape=self._layout.chunk_shape,
            dtype=ELEMENTS[self._layout.dtype][0],
        )
