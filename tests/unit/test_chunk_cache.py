"""The chunk cache as Python sees it: arguments, answers, pages. Its logic has native tests."""

from __future__ import annotations

import gc
from hashlib import sha256

import pytest

from kvferry._native import ChunkCache, PagePool, PageView, copy_pages
from kvferry.base.errors import UsageError

POLICIES = ["LRU", "LFU", "FIFO", "S3-FIFO", "ARC", "W-TinyLFU"]
LONG_S = 1000.0
AT_ONCE_S = 1e-9  # over when the next call looks


def chunks(*numbers: int) -> bytes:
    return b"".join(sha256(number.to_bytes(8, "little")).digest()[:16] for number in numbers)


def run(first: int, count: int) -> bytes:
    return chunks(*range(first, first + count))


@pytest.mark.parametrize("policy", [*POLICIES, "s3fifo", "wtinylfu", "lru"])
def test_a_request_from_reservation_to_eviction(policy: str) -> None:
    pool = PagePool(64, 4)
    cache = ChunkCache(4, policy, pool=pool)
    reservation, indices, handles, shed = cache.reserve(run(0, 6), 0, LONG_S)
    assert (indices, shed, len(set(handles)), pool.free_count) == ([0, 1, 2, 3], 2, 4, 0)
    assert cache.lookup(run(0, 6)) == (0, 4)
    assert list(cache.states(run(0, 6))) == [2, 2, 2, 2, 0, 0]
    assert cache.commit(reservation) == 4
    assert cache.lookup(run(0, 6)) == (4, 0)
    lease, pages = cache.acquire(run(0, 2), LONG_S)
    assert pages == handles[:2]
    assert cache.pin(run(0, 3)) == 3
    assert list(cache.states(run(0, 6))) == [5, 5, 5, 3, 0, 0]
    assert cache.evict(4) == chunks(3)
    assert cache.unpin(run(0, 3)) == 3
    assert cache.evict(4) == chunks(2)
    assert list(cache.states(run(0, 4))) == [4, 4, 1, 1]
    assert cache.release(lease)
    assert not cache.release(lease)
    assert cache.evict(4) == chunks(1, 0)
    assert pool.free_count == 4
    stats = cache.stats()
    assert (stats["evictions"], stats["shed"], stats["resident"]) == (4, 2, 0)


def test_a_dropped_chunk_is_absent_and_its_page_free() -> None:
    pool = PagePool(64, 4)
    cache = ChunkCache(4, pool=pool)
    reservation, *_ = cache.reserve(run(0, 3), 0, LONG_S)
    assert cache.commit(reservation, b"\1\0\1") == 2
    assert list(cache.states(run(0, 3))) == [3, 0, 3]
    assert pool.free_count == 2
    assert cache.commit(reservation) == 0


def test_late_answers_are_values() -> None:
    pool = PagePool(64, 2)
    cache = ChunkCache(2, pool=pool)
    late, *_ = cache.reserve(run(0, 2), 0, AT_ONCE_S)
    assert cache.lookup(run(0, 2)) == (0, 0)
    assert cache.reserve(run(5, 1), 0, LONG_S)[3] == 1  # the late writer may still be writing
    assert cache.stats()["expired_held"] == 1
    assert not cache.extend(late, LONG_S)
    assert cache.commit(late) == 0
    assert not cache.abort(late)
    assert pool.free_count == 2
    again, *_ = cache.reserve(run(0, 2), 0, LONG_S)
    assert cache.extend(again, LONG_S)
    assert cache.commit(again) == 2
    lease, _ = cache.acquire(run(0, 2), AT_ONCE_S)
    assert cache.evict(2) == chunks(1, 0)
    assert pool.free_count == 0
    assert cache.revoke(lease)
    assert pool.free_count == 2
    assert not cache.release(lease)
    assert not cache.release(0)
    assert cache.acquire(run(0, 2), LONG_S) == (0, [])


def test_generations_tell_one_stay_from_the_next() -> None:
    cache = ChunkCache(4)
    assert cache.generations(run(0, 2)) == [0, 0]
    cache.insert(run(0, 2))
    first = cache.generations(run(0, 2))
    assert 0 not in first
    assert cache.remove(chunks(1)) == 1
    cache.insert(run(0, 2))
    second = cache.generations(run(0, 2))
    assert second[0] == first[0]
    assert second[1] not in (0, first[1])


def test_a_miss_after_an_eviction_is_counted() -> None:
    cache = ChunkCache(4)
    cache.insert(run(0, 3))
    cache.evict(1)
    cache.lookup(run(0, 5))
    cache.lookup(run(10, 5))
    assert cache.stats()["evicted_then_missed"] == 1


def test_clear_removes_what_is_leased_but_not_its_memory() -> None:
    pool = PagePool(64, 2)
    cache = ChunkCache(2, pool=pool)
    cache.commit(cache.reserve(run(0, 2), 0, LONG_S)[0])
    lease, handles = cache.acquire(run(0, 2), LONG_S)
    view = memoryview(PageView(pool, handles[0]))
    assert cache.clear() == 2
    assert cache.lookup(run(0, 2)) == (0, 0)
    assert pool.free_count == 0
    assert cache.release(lease)
    assert pool.free_count == 1
    view.release()
    assert pool.free_count == 2


def test_access_is_for_simulations() -> None:
    cache = ChunkCache(4)
    assert cache.access(run(0, 3)) == (0, 0)
    assert cache.access(chunks(0, 1, 9, 2)) == (2, 3)
    with pytest.raises(UsageError, match="without a pool"):
        ChunkCache(1, pool=PagePool(64, 1)).access(run(0, 1))
    with pytest.raises(UsageError, match="without a pool"):
        ChunkCache(1, pool=PagePool(64, 1)).insert(run(0, 1))


def test_leaf_first_keeps_prefixes_usable() -> None:
    usable = {}
    for leaf_first in (True, False):
        cache = ChunkCache(10, leaf_first=leaf_first)
        cache.access(run(0, 8))
        cache.access(run(100, 6))
        usable[leaf_first] = cache.lookup(run(0, 8))[0]
    assert usable == {True: 4, False: 0}


@pytest.mark.parametrize("hashes", [b"x", bytes(15), bytes(17)])
def test_hashes_are_16_bytes_each(hashes: bytes) -> None:
    cache = ChunkCache(4)
    for call in (cache.lookup, cache.touch, cache.pin, cache.unpin, cache.states, cache.access):
        with pytest.raises(UsageError, match="16 bytes"):
            call(hashes)
    with pytest.raises(UsageError, match="16 bytes"):
        cache.reserve(hashes, 0, 1.0)
    with pytest.raises(UsageError, match="16 bytes"):
        cache.acquire(hashes, 1.0)


def test_an_empty_request_is_answered() -> None:
    cache = ChunkCache(4)
    assert cache.lookup(b"") == (0, 0)
    assert cache.reserve(b"", 0, 1.0) == (0, [], [], 0)
    assert cache.reserve(run(0, 2), 7, 1.0) == (0, [], [], 0)
    assert cache.evict(0) == cache.evict(-1) == cache.evict(5) == b""
    assert cache.commit(0) == 0


def test_calls_that_cannot_be_right() -> None:
    with pytest.raises(UsageError, match=r"LRU, LFU, FIFO, S3-FIFO, ARC, W-TinyLFU"):
        ChunkCache(4, "SIEVE")
    with pytest.raises(UsageError, match="pages"):
        ChunkCache(4, pool=PagePool(64, 3))
    for capacity in (0, -1, 2**40):
        with pytest.raises(UsageError, match="capacity"):
            ChunkCache(capacity)
    cache = ChunkCache(4)
    for ttl_s in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="ttl_s"):
            cache.acquire(b"", ttl_s)
    with pytest.raises(UsageError, match="first"):
        cache.reserve(b"", -1, 1.0)
    reservation, *_ = cache.reserve(run(0, 2), 0, float("inf"))
    for ok in (b"", b"\1", b"\1\1\1"):
        with pytest.raises(UsageError, match="commit"):
            cache.commit(reservation, ok)
    assert cache.commit(reservation, b"\1\1") == 2


def test_a_page_view_keeps_its_page_from_being_reused() -> None:
    pool = PagePool(64, 1)
    handle = pool.allocate()
    assert handle is not None
    view = PageView(pool, handle)
    assert (view.handle, view.nbytes) == (handle, 64)
    memory = memoryview(view)
    memory[:4] = b"text"
    pool.free(handle)
    assert pool.allocate() is None
    assert bytes(memory[:4]) == b"text"
    with pytest.raises(BufferError, match="freed"):
        memoryview(view)
    memory.release()
    assert pool.allocate() is not None
    with pytest.raises(UsageError):
        PageView(pool, handle)
    with pytest.raises(UsageError):
        PageView(pool, 12345)


def test_a_cache_that_goes_gives_its_pages_back() -> None:
    pool = PagePool(64, 4)
    cache = ChunkCache(4, pool=pool)
    cache.commit(cache.reserve(run(0, 2), 0, LONG_S)[0])
    cache.acquire(run(0, 2), LONG_S)
    cache.reserve(run(0, 4), 0, LONG_S)
    del cache
    gc.collect()
    assert pool.free_count == 4


@pytest.mark.parametrize("threads", [1, 4])
def test_copies_between_pages_and_buffers(threads: int) -> None:
    size = 3 * 2**20 + 64
    pool = PagePool(size, 3)
    handles = pool.allocate_many(3)
    assert handles is not None
    sources = [bytes([number]) * (size - 1) + b"!" for number in range(3)]
    targets = [bytearray(size) for _ in range(3)]
    copy_pages(pool, handles, sources, True, threads)
    copy_pages(pool, handles, targets, False, threads)
    assert targets == sources
    with pytest.raises(UsageError, match="buffer 1"):
        copy_pages(pool, handles[:2], [sources[0], b"short"], True, threads)
    with pytest.raises(UsageError, match="2 pages and 1"):
        copy_pages(pool, handles[:2], sources[:1], True, threads)
    with pytest.raises(UsageError):  # read-only
        copy_pages(pool, handles[:1], sources[:1], False, threads)
    pool.free(handles[0])
    with pytest.raises(UsageError):
        copy_pages(pool, handles, sources, True, threads)
    for handle in handles[1:]:  # no lease was left behind
        pool.free(handle)
    assert pool.free_count == 3
