"""The writing half of a cache: chunks into pages now, into stores behind; and the receipts.

`Storer` copies the caller's chunks into pages of memory, commits them, and offers them to the
writer of each store. A chunk that a store did not take, or has lost, is offered to that store again
while memory still has the chunk.

A `Receipt` says what became of one `store`: which store has acknowledged its chunks, and why others
have not. It is open until each store has acknowledged or refused what it was offered; then it is
told, once. One that is open for long is told before that as well, by whoever stores or retrieves
next.

Threads: any.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from kvferry.cache.memory import Memory, PagesGone, Reserved, wanted_chunks
from kvferry.cache.results import Stored
from kvferry.cache.store.store_tiers import StoreTier
from kvferry.cache.store.writer import Hold, WriteJob
from kvferry.chunks.prompt import Prompt
from kvferry.connectors.base import BufferLike
from kvferry.metrics import CacheMetrics

__all__ = ["Receipt", "Receipts", "Storer"]

_SHED = "pool_full"  # why chunks were left out
_TOLD_OPEN_S = 2.0  # a receipt that is open for longer is told before its end
_OPEN_MAX = 1000  # receipts that can be told before their end


class Storer:
    """See `TieredCache.store`.

    Args:
        memory, stores, metrics: Of the cache.
        receipts: Told what becomes of what is stored.
        copy_threads: Threads that copy from buffers into memory.
        keep: Whether chunks stay in memory when the stores have them.
    """

    def __init__(
        self,
        memory: Memory,
        stores: Sequence[StoreTier],
        metrics: CacheMetrics,
        receipts: Receipts,
        copy_threads: int,
        *,
        keep: bool,
    ) -> None:
        self._memory = memory
        self._receipts = receipts
        self._stores = stores
        self._metrics = metrics
        self._copy_threads = copy_threads
        self._keep = keep
        for store in stores:
            self.begin(store)

    def begin(self, store: StoreTier) -> None:
        """Write what this store loses again; to be called before it is one of the stores."""
        if self._keep and store.writes:
            store.writer.lease = partial(self._leased, store)

    @property
    def _written(self) -> list[StoreTier]:
        return [store for store in self._stores if store.writes]

    def store(self, prompt: Prompt, chunks: Sequence[BufferLike], first_chunk: int) -> Stored:
        """Keep the chunks from `first_chunk` on. Raises as `TieredCache.store`."""
        began, given = time.monotonic(), prompt.tokens - first_chunk * prompt.chunk_size
        wanted = wanted_chunks(prompt, chunks, first_chunk)
        self.offer_again(prompt)
        reserved = self._memory.reserve(prompt.hashes, first_chunk)
        known, shed = wanted - len(reserved.chunks) - reserved.shed, reserved.shed
        if shed:
            self._metrics.shed(_SHED, shed)
        if not reserved.chunks:
            receipt = Receipt(given, 0, 0, prompt.chunk_size, _SHED if shed else "", began)
            self._receipts.open(receipt, [])
            return Stored(chunks=0, known=known, shed=shed)
        try:
            buffers = [chunks[chunk - first_chunk] for chunk in reserved.chunks]
            self._memory.copy_in(reserved.handles, buffers, self._copy_threads)
        except PagesGone:  # somebody clears the cache at this moment
            self._memory.abort(reserved.id)
            return Stored(chunks=0, known=known, shed=shed)
        except BaseException:
            self._memory.abort(reserved.id)
            raise
        done, queued, dropped = self.written(prompt, reserved, given, began)
        return Stored(chunks=done, known=known, shed=shed, queued=queued, dropped=dropped)

    def written(
        self,
        prompt: Prompt,
        reserved: Reserved,
        given_tokens: int | None = None,
        began: float | None = None,
    ) -> tuple[int, dict[str, int], dict[str, int]]:
        """All reserved pages hold their chunks now: commit them, and offer them to the stores.

        Args:
            given_tokens: What the caller had; default: what is reserved.
            began: When the call began, on ``time.monotonic``; default: now.

        Returns:
            How many became chunks, and for each store how many it will get, and will not.
        """
        stores, count = self._written, len(reserved.chunks)
        receipt = Receipt(
            count * prompt.chunk_size if given_tokens is None else given_tokens,
            here=count if self._keep else 0,
            brought=count,
            chunk_tokens=prompt.chunk_size,
            reason=_SHED if reserved.shed else "",
            began=time.monotonic() if began is None else began,
        )
        if not stores and self._keep:
            receipt.here = receipt.brought = done = self._memory.commit(reserved.id)
            self._receipts.open(receipt, [])
            return done, {}, {}
        try:
            views = self._memory.views(reserved.handles)
        except PagesGone:
            self._memory.abort(reserved.id)
            return 0, {}, {}
        done, lease = self._memory.commit_held(reserved.id)
        if done < count:  # somebody cleared the cache, or this took minutes
            self._memory.cache.release(lease)
            return done, {}, {}
        hold = Hold(self._leaver(prompt, reserved.chunks, lease))
        queued: dict[str, int] = {}
        dropped: dict[str, int] = {}
        self._receipts.open(receipt, [store.tier.name for store in stores])
        for store in stores:
            settled = partial(self._receipts.settle, receipt, store.tier.name)
            accepted = store.writer.offer(
                WriteJob(prompt, reserved.chunks, views, hold.share(), settled)
            )
            (queued if accepted else dropped)[store.tier.name] = count
        hold.end()
        return done, queued, dropped

    def offer_again(self, prompt: Prompt) -> None:
        """What a store did not take the last time, and memory still has, may go there now."""
        for store in self._written:
            missed = store.writer.missed(prompt)
            if not missed or not store.tier.connector.available:
                continue
            lease, handles = self._memory.acquire(prompt.hashes)
            chunks = [chunk for chunk in missed if chunk < len(handles)]
            hold = Hold(partial(self._memory.cache.release, lease))
            with suppress(PagesGone):
                views = self._memory.views([handles[chunk] for chunk in chunks])
                if chunks:
                    store.writer.offer(WriteJob(prompt, chunks, views, hold.share()))
            hold.end()

    @property
    def looks(self) -> bool:
        """Whether `observe` would have an effect now."""
        return any(store.writer.looks for store in self._written)

    def observe(self, prompt: Prompt, held: int) -> None:
        """Somebody asks for a prompt whose first `held` chunks memory has.

        What the stores have lost of it, and then whatever they have lost, is written again, in the
        background.
        """
        for store in self._written if held else ():
            store.writer.observe(prompt, held)

    def _leased(self, store: StoreTier, prompt: Prompt, chunks: list[int]) -> WriteJob | None:
        """A job of those chunks that memory still has."""
        lease, handles = self._memory.acquire(prompt.first(chunks[-1] + 1))
        here = [chunk for chunk in chunks if chunk < len(handles)]
        store.tier.known.discard(prompt, chunks[len(here) :])
        release = partial(self._memory.cache.release, lease)
        if here:
            with suppress(PagesGone):
                views = self._memory.views([handles[chunk] for chunk in here])
                return WriteJob(prompt, here, views, release)
        release()
        return None

    def _leaver(self, prompt: Prompt, chunks: Sequence[int], lease: int) -> Callable[[], object]:
        if self._keep:
            return partial(self._memory.cache.release, lease)

        def leave() -> None:  # memory is a way through: nothing stays
            self._memory.cache.release(lease)
            self._memory.cache.remove(b"".join(prompt.digest(chunk) for chunk in chunks))

        return leave


@dataclass(eq=False)
class Receipt:
    """What became of one `store`; numbers are chunks.

    Attributes:
        given_tokens: What the caller gave, with those behind the last full chunk.
        here: What of it came into memory, and stays there.
        brought: What of it came into memory, perhaps to leave it for the stores.
        chunk_tokens: Tokens of a chunk.
        reason: Why not all of it came in.
        stored: What each store has acknowledged.
        waiting: What each store has still to get.
        refused: What each store did not take, and why.
        took_s: From the beginning of the call.
    """

    given_tokens: int
    here: int
    brought: int
    chunk_tokens: int
    reason: str
    began: float
    stored: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    took_s: float = 0.0
    told: bool = False  # while it was open

    @property
    def kept(self) -> int:
        """What is somewhere for certain."""
        return max(self.here, max(self.stored.values(), default=0))


class Receipts:
    """The receipts of one cache.

    Args:
        tell: Called with a receipt that is closed, or has been open for long.
    """

    def __init__(self, tell: Callable[[Receipt], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._open: deque[Receipt] = deque(maxlen=_OPEN_MAX)

    def open(self, receipt: Receipt, stores: list[str]) -> None:
        """These stores are about to be offered what was brought; none: it is told at once."""
        receipt.took_s = time.monotonic() - receipt.began
        receipt.waiting = dict.fromkeys(stores, receipt.brought)
        if not receipt.waiting:
            self._tell(receipt)
            return
        with self._lock:
            self._open.append(receipt)

    def settle(self, receipt: Receipt, store: str, count: int, why: str) -> None:
        """A store has acknowledged so many, and `why` not more."""
        with self._lock:
            rest = receipt.waiting.pop(store, 0) - count
            if count:
                receipt.stored[store] = count
            if rest > 0:
                receipt.refused[store] = (rest, why)
            receipt.took_s = time.monotonic() - receipt.began
            if receipt.waiting:
                return
            if receipt in self._open:
                self._open.remove(receipt)
        self._tell(receipt)

    def sweep(self) -> None:
        """Tell of those that have been open for long."""
        if not self._open:
            return
        before = time.monotonic() - _TOLD_OPEN_S
        with self._lock:
            late = [each for each in self._open if each.began < before and not each.told]
            for each in late:
                each.told = True
        for each in late:
            self._tell(each)
