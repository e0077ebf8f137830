"""A host pool of SGLang and where its pages are kept, behind one face.

Pages come and go in place where the pool names its memory, else through copies that the pool makes.
A pool without bytes of its own (an anchor whose pages are in other pools) has every page. A rank
whose bytes are also those of another rank, which stores them, stores nothing and says that it has.

May be used by any thread; faults of the server are pages that are not there, those of the pool
itself are raised.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvferry.client.buffers import BufferLike
from kvferry.integrations.sglang.host_pages import HostPages
from kvferry.integrations.sglang.pages import PageStore

__all__ = ["HostPool"]


class HostPool:
    """See the head of this module.

    Args:
        host_pages: Where the pages lie.
        store: Where they are kept; None: the pool has no bytes.
        writes: Whether this rank stores them.
    """

    def __init__(self, host_pages: HostPages, store: PageStore | None, *, writes: bool) -> None:
        self.host_pages = host_pages
        self.store = store
        self.writes = writes

    def leading(self, keys: Sequence[str]) -> int:
        """How many leading pages are there, asked as one batch."""
        return len(keys) if self.store is None or not keys else self.store.leading(keys)

    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Which pages are there."""
        return [True] * len(keys) if self.store is None else self.store.exists(keys)

    def get(self, keys: Sequence[str], indices: Any) -> list[bool]:
        """Read pages to where `indices` say; for each whether it is good."""
        if self.store is None or not keys:
            return [True] * len(keys)
        if self.host_pages.in_place:
            memory = self.host_pages.memory(indices, len(keys))
            return [False] * len(keys) if memory is None else self.store.get(keys, memory)
        starts = self._starts(indices, len(keys))
        if starts is None:
            return [False] * len(keys)
        pages = [self.host_pages.pool.get_dummy_flat_data_page() for _ in keys]
        good = self.store.get(keys, pages)
        for start, page, ok in zip(starts, pages, good, strict=True):
            if ok:
                self.host_pages.pool.set_from_flat_data_page(start, page)
        return good

    def set(self, keys: Sequence[str], indices: Any) -> list[bool]:
        """Keep the pages that lie where `indices` say; for each whether it is kept."""
        if self.store is None or not self.writes or not keys:
            return [True] * len(keys)
        if self.host_pages.in_place:
            memory = self.host_pages.memory(indices, len(keys))
            return [False] * len(keys) if memory is None else self.store.set(keys, memory)
        starts = self._starts(indices, len(keys))
        if starts is None:
            return [False] * len(keys)
        return self.store.set(keys, [self.host_pages.pool.get_data_page(start) for start in starts])

    def get_flat(self, keys: Sequence[str], targets: Sequence[Any] | None) -> list[Any]:
        """Read pages into flat tensors, by default new ones; None for each that is not good."""
        if self.store is None or not keys:
            return [None] * len(keys)
        if targets is None:
            targets = [self.host_pages.pool.get_dummy_flat_data_page() for _ in keys]
        parts = self._cut(targets, len(keys))
        if parts is None:
            return [None] * len(keys)
        good = self.store.get(keys, parts)
        return [page if ok else None for page, ok in zip(targets, good, strict=True)]

    def set_flat(self, keys: Sequence[str], pages: Sequence[Any]) -> bool:
        """Keep pages that are flat tensors; whether all are kept."""
        if self.store is None or not self.writes or not keys:
            return True
        parts = self._cut(pages, len(keys))
        return parts is not None and all(self.store.set(keys, parts))

    def close(self) -> None:
        """Withdraw what is in flight."""
        if self.store is not None:
            self.store.close()

    def _cut(self, pages: Sequence[Any], count: int) -> list[BufferLike] | None:
        cut = [self.host_pages.cut(page) for page in pages]
        if len(cut) != count or None in cut:
            return None
        return [part for page in cut for part in page or ()]

    def _starts(self, indices: Any, pages: int) -> list[int] | None:
        size = self.host_pages.page_size
        if indices is None or len(indices) != pages * size:
            return None
        return [int(indices[page * size]) for page in range(pages)]
