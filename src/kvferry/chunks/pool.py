"""Equal pages of host memory that are allocated once and reused: one page holds one chunk.

    >>> from kvferry import PagePool
    >>> pool = PagePool(shape=(2, 16, 64), dtype="float16", pages=8)
    >>> with pool.allocate() as page:
    ...     page.array[...] = 1.0
    ...     page.nbytes, pool.free_count
    (4096, 7)
    >>> pool.free_count
    8

A page is a writable buffer, so `client.get("key", page)` fills it in place. It goes back to the
pool by `free()`, at the end of its `with` block, or when the last reference to it is dropped.

Until when: `free()` ends the caller's right to use the page and all views of it. While a view or
a running batch still holds the page's memory, the pool does not hand it out again; it waits for
the last of them. The memory of the whole pool is returned to the system when the pool is closed or
dropped and no page or view is left.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from kvferry import _native
from kvferry.base.errors import ClosedError, UsageError
from kvferry.chunks.layout import ELEMENTS, element_name

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Page", "PagePool"]


class _Layout(NamedTuple):
    shape: tuple[int, ...]
    dtype: str  # the caller's name
    numpy_dtype: str
    nbytes: int


def _layout(shape: Sequence[int], dtype: object) -> _Layout:
    try:
        sizes = tuple(operator.index(size) for size in shape)
    except TypeError:
        raise UsageError(f"shape must be a sequence of integers, got {shape!r}") from None
    if any(size < 1 for size in sizes):
        raise UsageError(f"every size of the shape must be at least 1, got {sizes}")
    name = element_name(dtype)
    numpy_dtype, item_size_bytes = ELEMENTS[name]
    return _Layout(sizes, name, numpy_dtype, math.prod(sizes) * item_size_bytes)


class Page(_native.Page):
    """A page of a `PagePool`; made by `PagePool.allocate`.

    It exports its memory by the buffer protocol (flat, writable bytes), by DLPack, and as `array`.
    Use as a context manager to free it at the end of a block.
    """

    __slots__ = ("_layout",)

    def __init__(self, pool: _native.PagePool, handle: int, layout: _Layout) -> None:
        super().__init__(pool, handle)
        self._layout = layout

    if TYPE_CHECKING:  # the extension has it as a C slot

        def __buffer__(self, flags: int, /) -> memoryview: ...

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of `array`."""
        return self._layout.shape

    @property
    def dtype(self) -> str:
        """The element type as it was named to the pool, e.g. ``"bfloat16"``."""
        return self._layout.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of content."""
        return self._layout.nbytes

    @property
    def array(self) -> np.ndarray[Any, Any]:
        """A writable NumPy view of the page; it must not be used after `free`.

        bfloat16 is seen as uint16 and every fp8 type as uint8: the bit patterns. With ml_dtypes,
        ``page.array.view(ml_dtypes.bfloat16)`` gives them their values.

        Raises:
            UsageError: The page was freed.
        """
        import numpy as np

        if self.freed:
            raise UsageError("the page was freed")
        # Made anew each time: an array kept here would hold the page, and the page the array.
        return np.frombuffer(memoryview(self), self._layout.numpy_dtype).reshape(self._layout.shape)

    def __dlpack__(self, **options: Any) -> Any:
        """A DLPack capsule of `array`; takes the keywords of ``numpy.ndarray.__dlpack__``."""
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The CPU."""
        return (1, 0)

    def free(self) -> None:
        """Give the page back; whatever still views it must not be used any more.

        Raises:
            UsageError: The page was freed before.
        """
        try:
            super().free()
        except ValueError as error:
            raise UsageError(str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if not self.freed:
            self.free()

    def __repr__(self) -> str:
        state = " freed" if self.freed else ""
        return f"<Page {self.dtype}{list(self.shape)} {self.nbytes} bytes{state}>"


class PagePool:
    """A fixed number of equal pages in one mapping. Allocation is O(1) and never blocks.

    Args:
        shape: Shape of the array that one page holds.
        dtype: Name of the element type, e.g. ``"float16"``, ``"bfloat16"``, ``"fp8"``; or a NumPy
            or torch dtype.
        pages: Number of pages.
        hugetlb: Use huge pages that the administrator reserved; falls back where there are too
            few. Without it the pool asks for transparent huge pages. `huge_pages` tells.
        prefault: Have all memory supplied now and not at each page's first use.

    Every method may be called from any thread.

    Raises:
        UsageError: A size, a count or the dtype cannot be.
        MemoryError: The system refused the memory.
    """

    def __init__(
        self,
        shape: Sequence[int],
        dtype: object,
        pages: int,
        *,
        hugetlb: bool = False,
        prefault: bool = True,
    ) -> None:
        self._layout = _layout(shape, dtype)
        if pages < 1:
            raise UsageError(f"pages must be at least 1, got {pages}")
        try:
            self._native: _native.PagePool | None = _native.PagePool(
                self._layout.nbytes, pages, hugetlb=hugetlb, prefault=prefault
            )
        except ValueError as error:
            raise UsageError(str(error)) from None
        except TypeError:  # beyond what 64 bits count
            raise UsageError("the pool is larger than the address space") from None

    @property
    def _open(self) -> _native.PagePool:
        if self._native is None:
            raise ClosedError("the pool is closed")
        return self._native

    def allocate(self) -> Page | None:
        """A page, its content whatever it was before; ``None`` when all are in use.

        Raises:
            ClosedError: The pool is closed.
        """
        pool = self._open
        handle = pool.allocate()
        return None if handle is None else Page(pool, handle, self._layout)

    def allocate_many(self, count: int) -> list[Page] | None:
        """`count` pages, or ``None`` (and no page is taken) when fewer are free.

        Raises:
            ClosedError: The pool is closed.
            UsageError: `count` is negative.
        """
        pool = self._open
        if count < 0:
            raise UsageError(f"count must not be negative, got {count}")
        handles = pool.allocate_many(count) if count <= self.pages_count else None
        return None if handles is None else [Page(pool, h, self._layout) for h in handles]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a page's array."""
        return self._layout.shape

    @property
    def dtype(self) -> str:
        """The element type of a page's array."""
        return self._layout.dtype

    @property
    def page_nbytes(self) -> int:
        """Bytes of content of one page."""
        return self._layout.nbytes

    @property
    def pages_count(self) -> int:
        """Pages in all."""
        return self._open.pages_count

    @property
    def free_count(self) -> int:
        """Pages that can be allocated now; a freed page that is still viewed is not among them."""
        return self._open.free_count

    @property
    def used_count_max(self) -> int:
        """The most pages that were in use at one time."""
        return self._open.used_count_max

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the pool holds, with the padding between pages."""
        return self._open.size_bytes

    @property
    def start_address(self) -> int:
        """Where the memory of the pool begins, for a device that pins all `nbytes` of it.

        It stays mapped as long as the pool is there.
        """
        return self._open.start_address

    @property
    def huge_pages(self) -> str:
        """What backs the pool: ``"none"``, ``"transparent"`` or ``"hugetlb"``."""
        return self._open.huge_pages

    def close(self) -> None:
        """Hand out no more pages. Pages in use stay valid; the memory goes with the last one."""
        self._native = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        layout = f"{self.dtype}{list(self.shape)}"
        if self._native is None:
            return f"<PagePool {layout} closed>"
        return f"<PagePool {layout} {self.free_count} of {self.pages_count} pages free>"
