"""L1: pages of memory and the index of what lies in them.

A thin layer over the native cache: it owns the pool, makes pages buffers, and wakes those who wait
for a chunk that somebody else is bringing. Nothing here waits without a limit.

Threads: any.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple, Self

from kvferry import _native
from kvferry.base.errors import BadBufferError, ConfigError, UsageError
from kvferry.base.host import available_memory_bytes
from kvferry.cache.steps import Steps, Wait
from kvferry.chunks.prompt import Prompt
from kvferry.client.buffers import check_targets, writable
from kvferry.client.dlpack import view_memory
from kvferry.config.setting import GB
from kvferry.connectors.base import BufferLike

__all__ = [
    "HERE",
    "STATES",
    "ChunkView",
    "Memory",
    "PagesGone",
    "Reserved",
    "check_lengths",
    "targets",
    "wanted_chunks",
]

LEASE_S = 120.0  # of pages; a lease that was not released by then was forgotten
_FREE_PART = 0.9  # of the free memory of a host, that an error advises: others need some, too
_LOOK_S = 0.05  # that who waits looks without having been told
# States of a chunk, by the byte of `states`; see ChunkCache.
STATES = ("absent", "evicted", "writing", "ready", "leased", "pinned")
HERE = ("ready", "leased", "pinned")


class PagesGone(Exception):
    """The chunks of these pages were removed by a clear of the cache. A miss, for the caller."""


class ChunkView(_native.PageView):
    """The bytes of a chunk in memory, as a buffer. The lease that it came with owns them."""

    __slots__ = ()

    if TYPE_CHECKING:  # the extension has it as a C slot

        def __buffer__(self, flags: int, /) -> memoryview: ...


class Reserved(NamedTuple):
    """Pages that are reserved for chunks which the caller is going to write.

    Attributes:
        id: For `Memory.commit`.
        chunks: Indexes of the chunks, ascending.
        handles: Their pages.
        shed: How many further chunks got no page.
    """

    id: int
    chunks: list[int]
    handles: list[int]
    shed: int


class Memory:
    """Pages of one length, and which chunk lies in which.

    Args:
        pool: The pages; other caches may have chunks in the pool too.
        cache: The index of this cache's chunks.
        chunk_bytes: Length of a page.

    Attributes:
        on_copy: Told of each copy between pages and buffers: "in" or "out", bytes, seconds.
    """

    def __init__(self, pool: _native.PagePool, cache: _native.ChunkCache, chunk_bytes: int) -> None:
        self._pool = pool
        self.cache = cache
        self.chunk_bytes = chunk_bytes
        self.pages = cache.capacity
        self.on_copy: Callable[[str, int, float], object] | None = None
        self._changed = threading.Condition()
        self._told: weakref.WeakSet[_Change] = weakref.WeakSet()

    @classmethod
    def private(
        cls, chunk_bytes: int, size_bytes: int, policy: str, *, hugetlb: bool, prefault: bool
    ) -> Self:
        """Memory of this process alone.

        Args:
            chunk_bytes: Length of a page.
            size_bytes: Of all pages together; at least one is made.
            policy: Name of the eviction policy.
            hugetlb, prefault: See `kvferry.PagePool`.

        Raises:
            UsageError: The size or the policy cannot be.
            ConfigError: The host does not have that memory.
        """
        pages = size_bytes // _native.PagePool.stride_bytes(chunk_bytes)
        if pages < 1:
            raise UsageError(
                f"{size_bytes / 1e9:g} GB of memory hold no chunk of {chunk_bytes} bytes; "
                "raise max_local_cpu_size or lower chunk_size"
            )
        free = available_memory_bytes()
        if hugetlb or size_bytes <= free:
            with suppress(MemoryError):
                pool = _native.PagePool(chunk_bytes, pages, hugetlb=hugetlb, prefault=prefault)
                return cls(pool, _native.ChunkCache(pages, policy, pool=pool), chunk_bytes)
        raise ConfigError(
            f"max_local_cpu_size is {size_bytes / GB:g} GB and this host has {free / GB:.1f} free: "
            f"use at most {_FREE_PART * free / GB:.1f}; kvferry.max_local_cpu_size in "
            "kv_connector_extra_config, or max_local_cpu_size of the call, wins over the file"
        )

    @property
    def whole(self) -> memoryview:
        """All pages as one piece of memory, for a device to pin; it keeps them mapped."""
        return view_memory(
            self._pool.start_address, self._pool.size_bytes, owner=self._pool, read_only=True
        )

    @property
    def start_address(self) -> int:
        """Where `whole` begins."""
        return self._pool.start_address

    # --- Reading ---

    def ready(self, prompt: Prompt) -> tuple[int, int]:
        """How many leading chunks are here, and how many right behind them are in flight."""
        return self.cache.lookup(prompt.hashes)

    def acquire(self, hashes: bytes) -> tuple[int, list[int]]:
        """Lease the leading chunks that are here: the lease, and their pages."""
        return self.cache.acquire(hashes, LEASE_S)

    def views(self, handles: Sequence[int]) -> list[memoryview]:
        """Pages as buffers. The caller holds them, by a lease or a reservation, and from now on by
        these views: a clear of the cache does not change what they show.

        Raises:
            PagesGone: The chunks were removed before.
        """
        try:
            return [memoryview(ChunkView(self._pool, handle)) for handle in handles]
        except (UsageError, BufferError):
            raise PagesGone from None

    def copy_out(self, handles: Sequence[int], buffers: Sequence[object], threads: int) -> None:
        """Copy pages that the caller holds into buffers of their length.

        Raises:
            PagesGone: The chunks were removed meanwhile; what the buffers hold is not known.
        """
        self._copy(handles, buffers, False, threads)

    # --- Writing ---

    def reserve(self, hashes: bytes, first: int) -> Reserved:
        """Reserve pages for the chunks from `first` on that are neither here nor in flight."""
        return Reserved(*self.cache.reserve(hashes, first, LEASE_S))

    def on_demand(self, hashes: bytes, first: int) -> _native.OnDemandPages:
        """Pages for the chunks from `first` on, each taken when the value comes from a store."""
        return _native.OnDemandPages(self.cache, hashes, first, LEASE_S)

    def copy_in(self, handles: Sequence[int], buffers: Sequence[object], threads: int) -> None:
        """Copy buffers of the length of a page into pages that the caller has reserved.

        Raises:
            PagesGone: The reservation was cleared meanwhile.
        """
        self._copy(handles, buffers, True, threads)

    def _copy(
        self, handles: Sequence[int], buffers: Sequence[object], into_pages: bool, threads: int
    ) -> None:
        began = time.monotonic()
        try:
            _native.copy_pages(self._pool, handles, buffers, into_pages, threads)
        except BadBufferError:
            raise
        except UsageError:
            raise PagesGone from None
        if self.on_copy is not None:
            size_bytes, took_s = len(handles) * self.chunk_bytes, time.monotonic() - began
            self.on_copy("in" if into_pages else "out", size_bytes, took_s)

    def commit(self, reservation: int, ok: bytes | None = None) -> int:
        """The reserved pages are written, or those that `ok` names; how many became chunks."""
        done = self.cache.commit(reservation, ok)
        self.announce()
        return done

    def commit_held(self, reservation: int) -> tuple[int, int]:
        """Like `commit`, with a lease that keeps the chunks here: how many, and the lease."""
        done, lease = self.cache.commit_leased(reservation, LEASE_S)
        self.announce()
        return done, lease

    def abort(self, reservation: int) -> None:
        """The reserved pages will not be written."""
        self.cache.abort(reservation)
        self.announce()

    # --- Waiting for others ---

    def await_more(
        self, prompt: Prompt, ready: int, until: float, meanwhile: Callable[[], object]
    ) -> Steps[bool]:
        """Wait until more than `ready` leading chunks are here; False: they do not come in time.

        `until` is a moment of ``time.monotonic``. `meanwhile` is called now and then: chunks may
        be marked as in flight that nobody brings any more.
        """
        while True:
            meanwhile()
            here, coming = self.ready(prompt)
            if here > ready:
                return True
            remaining_s = until - time.monotonic()
            if not coming or remaining_s <= 0:
                return False
            more = _Change(self, lambda: self._is_more(prompt, ready))
            yield Wait(more, min(remaining_s, _LOOK_S))

    def _is_more(self, prompt: Prompt, ready: int) -> bool:
        """More than so many leading chunks are here, or none come."""
        here, coming = self.ready(prompt)
        return here > ready or not coming

    def await_change(self, done: Callable[[], bool], until: float) -> Steps[bool]:
        """Wait until `done`, which is announced when it becomes true; False: the time is over."""
        while not done():
            remaining_s = until - time.monotonic()
            if remaining_s <= 0:
                return False
            yield Wait(_Change(self, done), min(remaining_s, _LOOK_S))
        return True

    def announce(self) -> None:
        """Chunks came, or will not come: whoever waits looks again."""
        with self._changed:
            self._changed.notify_all()
            told = list(self._told)
            self._told.clear()
        for each in told:
            each.call()

    def await_announce(self, unless: Callable[[], bool], timeout_s: float) -> None:
        """Wait for the next `announce`, unless `unless` says that there was one that counts."""
        with self._changed:
            if not unless():
                self._changed.wait(timeout_s)

    def tell(self, change: _Change) -> None:
        """Call this change at the next `announce`, if anybody still has it."""
        with self._changed:
            self._told.add(change)


class _Change:
    """A condition that is announced when it becomes true; an `Awaited`."""

    def __init__(self, memory: Memory, done: Callable[[], bool]) -> None:
        self._memory = memory
        self._done = done
        self.call: Callable[[], object] = bool

    def wait(self, timeout_s: float) -> None:
        if timeout_s > 0:
            self._memory.await_announce(self._done, timeout_s)

    def tell(self, call: Callable[[], object]) -> None:
        self.call = call
        self._memory.tell(self)

    @property
    def done(self) -> bool:
        return self._done()


def wanted_chunks(prompt: Prompt, chunks: Sequence[BufferLike], first_chunk: int) -> int:
    """How many chunks are to be stored from `first_chunk` on: one for each buffer.

    Raises:
        UsageError: The number of buffers is another one.
    """
    if not first_chunk >= 0:
        raise UsageError(f"first_chunk must not be negative, got {first_chunk}")
    wanted = max(0, prompt.chunks - first_chunk)
    if len(chunks) != wanted:
        raise UsageError(
            f"{len(chunks)} buffers for {wanted} full chunks of {prompt.chunk_size} tokens"
        )
    return wanted


def targets(prompt: Prompt, into: Sequence[BufferLike], chunk_bytes: int) -> list[memoryview]:
    """A writable buffer for each chunk of a prompt.

    Raises:
        UsageError: There are too few.
        BadBufferError: One is read-only, not contiguous, or of another length, or two overlap.
    """
    if len(into) < prompt.chunks:
        raise UsageError(
            f"into has {len(into)} buffers; the prompt has {prompt.chunks} full chunks"
        )
    views = check_lengths([writable(buffer) for buffer in into[: prompt.chunks]], chunk_bytes)
    check_targets(views)
    return views


def check_lengths(views: list[memoryview], chunk_bytes: int) -> list[memoryview]:
    """The same buffers, each as long as a chunk.

    Raises:
        BadBufferError: One is not.
    """
    for index, view in enumerate(views):
        if view.nbytes != chunk_bytes:
            raise BadBufferError(
                f"buffer {index} has {view.nbytes} bytes; a chunk has {chunk_bytes}"
            )
    return views
