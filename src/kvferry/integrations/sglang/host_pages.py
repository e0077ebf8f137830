"""Where the pages of an SGLang host pool lie, and of which parts a stored page consists.

A pool names the memory of pages by ``get_page_buffer_meta(host_indices)``: as many addresses and
lengths for each page as the page has parts, part after part, page after page. How many that are
depends on the layout: keys and values are apart (``page_first``), or each layer is as well
(``layer_first``), or all is one (MLA). Each part is one value of the store, read and written in
place. A pool that names none has its pages copied, as one part each (``get_data_page``).

The generic calls of HiCache hand over a page as one flat tensor instead. It is cut into the same
parts, so both ways see each other's pages.

Nothing here is ours: the memory belongs to the pool, which outlives every call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvferry.base.errors import ConfigError
from kvferry.client.buffers import BufferLike, readable

__all__ = ["HostPages", "PagePart"]


@dataclass(frozen=True)
class PagePart:
    """One value of a stored page: what its key ends in, and its length."""

    suffix: str
    size_bytes: int


class HostPages:
    """The pages of one pool.

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
