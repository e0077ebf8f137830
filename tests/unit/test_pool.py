"""The page pool: who may use a page, and until when."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from kvferry import _native
from kvferry.base.errors import ClosedError, UsageError
from kvferry.chunks.pool import Page, PagePool
from kvferry.client.dlpack import view_memory


def take(pool: PagePool) -> Page:
    page = pool.allocate()
    assert page is not None
    return page


def test_a_page_is_an_array_of_its_shape_and_dtype() -> None:
    pool = PagePool((2, 3, 4), "float32", 1)
    page = take(pool)
    assert page.array.shape == page.shape == (2, 3, 4)
    assert page.array.dtype == np.float32
    assert page.nbytes == page.array.nbytes == pool.page_nbytes == 96
    page.array[1, 2, 3] = 7.0
    assert memoryview(page).cast("f")[23] == 7.0


@pytest.mark.parametrize(
    ("dtype", "stored", "item_size_bytes"),
    [("bfloat16", "uint16", 2), ("fp8", "uint8", 1), ("float8_e4m3fn", "uint8", 1)],
)
def test_types_that_numpy_lacks_are_bit_patterns(
    dtype: str, stored: str, item_size_bytes: int
) -> None:
    page = take(PagePool((8,), dtype, 1))
    assert page.dtype == dtype
    assert page.array.dtype == stored
    assert page.nbytes == 8 * item_size_bytes


@pytest.mark.parametrize("dtype", ["float16", np.float16, np.dtype("float16"), "torch.float16"])
def test_a_dtype_may_be_a_name_or_a_numpy_type(dtype: object) -> None:
    assert PagePool((4,), dtype, 1).dtype == "float16"


def test_an_exhausted_pool_answers_none_and_never_waits() -> None:
    pool = PagePool((4,), "uint8", 2)
    first, second = take(pool), take(pool)
    assert pool.allocate() is None
    first.array[:] = 1
    second.array[:] = 2
    assert first.array.tolist() == [1, 1, 1, 1]
    second.free()
    assert pool.free_count == 1
    assert pool.used_count_max == 2


def test_allocate_many_is_all_or_nothing() -> None:
    pool = PagePool((4,), "uint8", 3)
    page = take(pool)
    assert pool.allocate_many(3) is None
    assert pool.allocate_many(2**70) is None
    assert pool.free_count == 2
    pages = pool.allocate_many(2)
    assert pages is not None
    assert len({p.address for p in [page, *pages]}) == 3
    assert pool.allocate_many(0) == []
    with pytest.raises(UsageError):
        pool.allocate_many(-1)


def test_freeing_twice_is_an_error_and_frees_nobody_elses_page() -> None:
    pool = PagePool((4,), "uint8", 1)
    stale = take(pool)
    stale.free()
    with pytest.raises(UsageError):
        stale.free()
    current = take(pool)  # the same memory under another handle
    with pytest.raises(UsageError):
        stale.free()
    del stale
    assert pool.free_count == 0
    assert not current.freed


def test_a_freed_page_gives_no_new_views() -> None:
    page = take(PagePool((4,), "uint8", 1))
    page.free()
    assert page.freed
    with pytest.raises(UsageError):
        _ = page.array
    with pytest.raises(BufferError):
        memoryview(page)


def test_a_page_freed_under_a_view_is_reused_only_after_the_view() -> None:
    pool = PagePool((4,), "uint8", 1)
    page = take(pool)
    first, second = memoryview(page), memoryview(page)
    page.free()
    first[0] = 9  # somebody else's write into the page must still be harmless
    assert pool.allocate() is None
    first.release()
    assert pool.free_count == 0
    second.release()
    assert pool.free_count == 1
    assert take(pool).handle != page.handle


def test_an_array_holds_the_page_even_when_everything_else_is_gone() -> None:
    pool = PagePool((4,), "uint8", 1)
    array = take(pool).array
    array[:] = 5
    assert pool.allocate() is None
    pool.close()
    del pool
    assert array.tolist() == [5, 5, 5, 5]


def test_a_dropped_page_returns_to_the_pool() -> None:
    pool = PagePool((4,), "uint8", 1)
    page = take(pool)
    array = page.array
    del page
    assert pool.free_count == 0  # the array views it
    del array
    assert pool.free_count == 1


def test_the_end_of_a_with_block_frees_the_page_once() -> None:
    pool = PagePool((4,), "uint8", 1)
    with take(pool):
        assert pool.free_count == 0
    assert pool.free_count == 1
    with take(pool) as page:
        page.free()
    assert pool.free_count == 1


def test_dlpack_shares_the_memory_and_leases_the_page() -> None:
    pool = PagePool((2, 2), "float32", 1)
    page = take(pool)
    shared = np.from_dlpack(page)
    page.array[...] = 3.0
    assert shared.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert page.__dlpack_device__() == page.array.__dlpack_device__()
    page.free()
    assert pool.free_count == 0
    del shared
    assert pool.free_count == 1


def test_a_closed_pool_hands_out_nothing_and_its_pages_stay_valid() -> None:
    with PagePool((4,), "uint8", 2) as pool:
        page = take(pool)
    pool.close()  # again: no harm
    for use in (pool.allocate, lambda: pool.allocate_many(1), lambda: pool.free_count):
        with pytest.raises(ClosedError):
            use()
    page.array[:] = 1
    assert bytes(page) == b"\x01\x01\x01\x01"
    page.free()
    assert page.freed


def test_pages_from_4_kib_start_on_page_boundaries() -> None:
    pool = PagePool((5000,), "uint8", 2)
    assert [take(pool).address % 4096 for _ in range(2)] == [0, 0]
    assert pool.nbytes == 2 * 8192
    assert PagePool((100,), "uint8", 2, prefault=False).nbytes == 4096
    assert PagePool((2**21,), "uint8", 1, hugetlb=True).huge_pages in (
        "none",
        "transparent",
        "hugetlb",
    )


@pytest.mark.parametrize(
    ("shape", "dtype", "pages"),
    [
        ((0,), "uint8", 1),
        ((-1, -1), "uint8", 1),
        ((4,), "uint8", 0),
        ((4,), "complex64", 1),
        ((4.0,), "uint8", 1),
        (4, "uint8", 1),
        ((4,), "uint8", 2**32),
        ((2**40, 2**40), "uint8", 1),
    ],
)
def test_what_cannot_be_is_a_usage_error(shape: object, dtype: str, pages: int) -> None:
    with pytest.raises(UsageError):
        PagePool(shape, dtype, pages)  # type: ignore[arg-type]


def test_memory_that_the_system_refuses_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        PagePool((2**61,), "uint8", 1)


def test_a_page_that_was_never_made_exports_nothing() -> None:
    with pytest.raises(BufferError):
        memoryview(Page.__new__(Page))


def test_raw_handles_have_an_address_until_they_are_freed() -> None:
    pool = _native.PagePool(64, 2, prefault=False)
    handles = pool.allocate_many(2)
    assert handles is not None
    assert abs(pool.address(handles[0]) - pool.address(handles[1])) == 64
    assert (pool.allocate(), pool.free_count) == (None, 0)
    pool.free(handles[0])
    for use in (pool.free, pool.address, lambda handle: _native.Page(pool, handle)):
        with pytest.raises(ValueError, match="freed before"):
            use(handles[0])
    assert _native.Page(pool, handles[1]).handle == handles[1]  # adopts, and then drops it
    assert pool.free_count == 2


def test_threads_never_share_a_page() -> None:
    pool = PagePool((64,), "uint8", 3)
    faults = []

    def work(stamp: int) -> None:
        for _ in range(500):
            page = pool.allocate()
            if page is None:
                continue
            with page, memoryview(page) as view:
                view[:] = bytes([stamp]) * 64
                if set(view) != {stamp}:
                    faults.append(stamp)

    threads = [threading.Thread(target=work, args=(stamp,)) for stamp in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert pool.free_count == 3


def test_the_memory_of_a_pool_has_all_its_pages() -> None:
    pool = PagePool((5000,), "uint8", 3)
    memory = view_memory(pool.start_address, pool.nbytes, owner=pool, read_only=True)
    pages = pool.allocate_many(3)
    assert pages is not None
    for stamp, page in enumerate(pages, 1):
        memoryview(page)[:] = bytes([stamp]) * 5000
    places = {bytes(memory).index(bytes([stamp]) * 5000) for stamp in (1, 2, 3)}
    assert places == {0, 8192, 16384}
