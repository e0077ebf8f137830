"""A host pool of SGLang: where its pages lie, and how they come and go (`HostPool`).

A pool names the memory of pages by ``get_page_buffer_meta(host_indices)``: as many addresses and
lengths for each page as the page has parts, part after part, page after page. How many parts that
is depends on the layout: keys and values are apart (``page_first``), or each layer is as well
(``layer_first``), or all is one (MLA). Each part is one value of the store, read and written in
place. A pool that names none has its pages copied, as one part each (``get_data_page``).

The generic calls of HiCache hand over a page as one flat tensor instead. It is cut into the same
parts, so both ways see each other's pages.

A pool without bytes of its own (an anchor whose pages are in other pools) has every page. A rank
whose bytes are also those of another rank, which stores them, stores nothing and says that it has.

Ownership: the memory belongs to the pool, which outlives every call. Threads: any. Failure: faults
of the server are pages that are not there, those of the pool itself are raised.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.client.buffers import BufferLike, readable
from kvferry.integrations.sglang.page_store import PagePart, PageStore

__all__ = ["HostPages", "HostPool"]


class HostPool:
    """A pool and where its pages are kept, behind one face.

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


class HostPages:
    """Where the pages of one pool lie.

    Args:
        pool: SGLang's.
        first_page: Indices of the first page, as the pool takes them: `page_size` zeros.
        split: Into how many groups of heads a page is divided, each a value of its own, so that
            other sizes of tensor parallelism find theirs (``page_head`` only).
        first_group: Which of all groups is the first one here.

    Attributes:
        parts: Of one page, in the order of the pool. Empty: the pool holds no bytes at all, which
            is so of an anchor whose pages are in other pools.
        in_place: Whether the pool names its memory.

    Raises:
        ConfigError: The pool neither names its memory nor gives out pages.
    """

    def __init__(self, pool: Any, first_page: Any, split: int = 0, first_group: int = 0) -> None:
        self.pool = pool
        self.page_size = int(getattr(pool, "page_size", 1) or 1)
        self._split = split
        self._array: dict[int, type[ctypes.Array[ctypes.c_ubyte]]] = {}
        self.in_place = True
        self.parts: list[PagePart] = []
        if hasattr(pool, "kv_buffer") and pool.kv_buffer is None:
            return
        try:
            _, sizes = self._meta(first_page)
        except Exception as error:
            self.in_place = False
            self.parts = [PagePart("", _flat_bytes(pool, error))]
            return
        self.parts = [
            PagePart(suffix, int(size))
            for suffix, size in zip(_suffixes(len(sizes), split, first_group), sizes, strict=True)
        ]
        self._flat_order = _flat_order(pool, len(self.parts), split)

    @property
    def page_bytes(self) -> int:
        """Bytes of all parts of a page."""
        return sum(part.size_bytes for part in self.parts)

    def memory(self, host_indices: Any, pages: int) -> list[BufferLike] | None:
        """The parts of some pages, page after page; None: these are not so many whole pages.

        Args:
            host_indices: Of every token of every page, as the pool takes them.
            pages: How many there must be.
        """
        if host_indices is None or len(host_indices) != pages * self.page_size:
            return None
        addresses, sizes = self._meta(host_indices)
        if list(sizes) != [part.size_bytes for part in self.parts] * pages:
            return None
        return [self._at(*place) for place in zip(addresses, sizes, strict=True)]

    def cut(self, flat: BufferLike) -> list[BufferLike] | None:
        """The parts of a page that is one flat tensor; None: it has another length."""
        view = readable(flat)
        if len(view) != self.page_bytes:
            return None
        if not self.in_place:
            return [view]
        parts: list[BufferLike] = [view] * len(self.parts)
        start = 0
        for index in self._flat_order:
            size = self.parts[index].size_bytes
            parts[index] = view[start : start + size]
            start += size
        return parts

    def _meta(self, indices: Any) -> tuple[Sequence[int], Sequence[int]]:
        if self._split:
            told = self.pool.get_split_heads_page_buffer_meta(indices, self._split)
        else:
            told = self.pool.get_page_buffer_meta(indices)
        return told  # type: ignore[no-any-return]

    def _at(self, address: int, size: int) -> BufferLike:
        kind = self._array.get(size)
        if kind is None:
            kind = self._array[size] = ctypes.c_ubyte * size
        return kind.from_address(address)


def _suffixes(count: int, split: int, first_group: int) -> list[str]:
    """What the keys of the parts of a page end in."""
    if split:
        each = count // split
        return [f".h{first_group + i // each}.{i % each}" for i in range(count)]
    return [""] if count == 1 else [f".{index}" for index in range(count)]


def _flat_order(pool: Any, count: int, split: int) -> list[int]:
    """Which part comes where in a flat page, which has all keys first.

    With ``layer_first`` the pool names the key and the value of a layer one after the other, and
    so it does of a group of heads.
    """
    layers = int(getattr(pool, "layer_num", 0) or 0)
    by_layer = getattr(pool, "layout", "") == "layer_first" and layers and count == 2 * layers
    if split or by_layer:
        return [2 * pair + kv for kv in range(2) for pair in range(count // 2)]
    return list(range(count))


def _flat_bytes(pool: Any, why: Exception) -> int:
    try:
        page = pool.get_dummy_flat_data_page()
        return int(page.numel() * page.element_size())
    except Exception:
        raise ConfigError(
            f"pages of {type(pool).__name__} cannot be kept: it neither names their memory nor "
            f"gives them out ({why})"
        ) from None
