"""Shared segments as Python sees them: two processes, one memory, and locks that tell who lives."""

from __future__ import annotations

import contextlib
import gc
import os
import secrets
import stat
import subprocess
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from kvferry._native import ChunkCache, PagePool, PageView, SharedPages, SharedSegment, copy_pages
from kvferry.base.errors import (
    BadBufferError,
    CapacityError,
    ClosedError,
    SystemResourceError,
    UsageError,
)

PAGE = 8192
COUNT = 8
LOCK = (1 << 61) + 3
WAIT_S = 60.0

# Attaches, stamps a page, says so, and holds the mapping until its input ends.
CLIENT = f"""
import sys
from kvferry._native import SharedPages
path, lock, index = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
pages = SharedPages(path, {PAGE * COUNT}, {PAGE}, {PAGE}, {COUNT}, lock)
seen = bytes(memoryview(pages.view(0)))[:4]
pages.copy([index], [bytearray(b"\\x5a" * {PAGE})], True, 2)
print("attached", seen.hex(), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path() -> Iterator[str]:
    name = Path("/dev/shm") / f"kvferry-test-{secrets.token_hex(8)}"
    yield str(name)
    name.unlink(missing_ok=True)


def make(path: str) -> tuple[SharedSegment, PagePool]:
    segment = SharedSegment.create(path, PAGE * COUNT)
    return segment, PagePool.over(segment, PAGE, COUNT)


def attach(path: str, lock: int = LOCK) -> SharedPages:
    return SharedPages(path, PAGE * COUNT, PAGE, PAGE, COUNT, lock)


def backed_bytes(path: str) -> int:
    return os.stat(path).st_blocks * 512


@contextlib.contextmanager
def client(path: str, index: int, lock: int = LOCK) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has the segment mapped, and the first bytes of page 0 as it sees them."""
    arguments = [sys.executable, "-c", CLIENT, path, str(lock), str(index)]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            word, seen = process.stdout.readline().split()
            assert word == "attached"
            yield process, seen
        finally:
            process.kill()
            process.wait(WAIT_S)


def test_another_process_reads_and_writes_the_same_pages(path: str) -> None:
    segment, pool = make(path)
    assert pool.grow(COUNT) == (COUNT, None)
    handles = [pool.allocate() for _ in range(COUNT)]
    views = {handle & 0xFFFFFFFF: PageView(pool, handle) for handle in handles if handle}
    memoryview(views[0])[:4] = b"\xde\xad\xbe\xef"
    with client(path, 3) as (_, seen):
        assert seen == "deadbeef"
        assert bytes(memoryview(views[3])) == b"\x5a" * PAGE
        assert bytes(memoryview(views[4])) == bytes(PAGE)
    segment.close()


def test_a_lock_is_held_exactly_as_long_as_its_process(path: str) -> None:
    segment, pool = make(path)
    pool.grow(COUNT)
    assert segment.locks_held([LOCK, LOCK + 1]) == [False, False]
    with client(path, 1) as (first, _), client(path, 2, LOCK + 1) as (second, _):
        assert segment.locks_held([LOCK - 1, LOCK, LOCK + 1]) == [False, True, True]
        with pytest.raises(CapacityError, match=str(LOCK)):
            attach(path)
        first.kill()
        first.wait(WAIT_S)
        assert segment.locks_held([LOCK, LOCK + 1]) == [False, True]
        assert second.stdin is not None
        second.stdin.close()
        assert second.wait(WAIT_S) == 0
    assert segment.lock_is_held(LOCK + 1) is False
    assert segment.locks_held([]) == []
    with pytest.raises(UsageError):
        segment.lock_is_held(2**63 - 1)


def test_the_last_view_ends_mapping_and_lock(path: str) -> None:
    segment, pool = make(path)
    pool.grow(COUNT)
    pages = attach(path)
    view = pages.view(2)
    array = np.frombuffer(memoryview(view), np.uint8)
    pages.close()
    pages.close()
    assert pages.closed
    del view
    gc.collect()
    array[:] = 7  # still mapped
    assert segment.lock_is_held(LOCK)
    for call in (lambda: pages.view(0), lambda: pages.copy([], [], True, 1), pages.populate):
        with pytest.raises(ClosedError):
            call()
    del array
    gc.collect()
    assert not segment.lock_is_held(LOCK)


def test_a_copy_goes_both_ways_and_checks_what_it_is_given(path: str) -> None:
    _, pool = make(path)
    pool.grow(COUNT)
    pages = attach(path)
    assert (pages.page_bytes, pages.pages_count) == (PAGE, COUNT)
    rng = np.random.default_rng(1)
    sources = [rng.integers(0, 256, PAGE, dtype=np.uint8) for _ in range(3)]
    pages.copy([5, 0, 7], sources, True, 4)
    targets = [bytearray(PAGE) for _ in range(3)]
    pages.copy([0, 7, 5], targets, False, 1)
    assert [bytes(t) for t in targets] == [s.tobytes() for s in sources[1:] + sources[:1]]
    with pytest.raises(UsageError):
        pages.copy([0, 1], sources[:1], True, 1)
    for index in (-1, COUNT, 2**62):
        with pytest.raises(UsageError):
            pages.copy([index], sources[:1], True, 1)
        with pytest.raises(UsageError):
            pages.view(index)
    for buffer in (bytearray(PAGE - 1), bytearray(PAGE + 1), bytearray()):
        with pytest.raises(BadBufferError):
            pages.copy([1], [buffer], True, 1)
    with pytest.raises(BadBufferError):
        pages.copy([1], [bytes(PAGE)], False, 1)  # read-only
    assert bytes(memoryview(pages.view(1))) == bytes(PAGE), "a refused copy copies nothing"


def test_a_copy_touches_its_pages_only(path: str) -> None:
    _, pool = make(path)
    pool.grow(2)
    pages = attach(path)
    pages.copy([0], [bytearray(PAGE)], False, 1)
    pages.copy([1], [bytes(PAGE)], True, 1)
    assert backed_bytes(path) == 2 * PAGE
    pages.populate()  # takes whatever is there, granted or not
    assert backed_bytes(path) in (2 * PAGE, COUNT * PAGE)


def test_a_file_that_was_cut_is_an_error_and_not_the_end(path: str) -> None:
    _, pool = make(path)
    pool.grow(COUNT)
    pages = attach(path)
    os.truncate(path, PAGE)
    pages.copy([0], [bytearray(PAGE)], False, 1)
    with pytest.raises(SystemResourceError):
        pages.copy([6], [bytearray(PAGE)], False, 1)


def test_clients_take_only_a_private_file_of_their_own(path: str, tmp_path: Path) -> None:
    segment, _ = make(path)
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    with pytest.raises(UsageError):
        SharedPages(path, PAGE * COUNT - 4096, PAGE, PAGE, COUNT - 1, LOCK)
    with pytest.raises(UsageError):
        SharedPages(path, PAGE * COUNT, PAGE, PAGE, COUNT + 1, LOCK)
    with pytest.raises(UsageError):
        SharedPages(path, PAGE * COUNT, PAGE, PAGE + 1, COUNT, LOCK)
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(OSError, match="link"):
        attach(str(link))
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(UsageError, match="regular"):
        attach(str(fifo))
    with pytest.raises(SystemResourceError):
        attach(str(tmp_path))
    os.chmod(path, 0o644)
    with pytest.raises(UsageError, match="others"):
        attach(path)
    segment.close()
    with pytest.raises(SystemResourceError):
        attach(path)


def test_a_pool_grows_and_shrinks_with_its_memory(path: str) -> None:
    segment, pool = make(path)
    assert (segment.size_bytes, segment.block_size_bytes) == (PAGE * COUNT, 4096)
    assert segment.huge_pages in ("none", "transparent")
    assert PagePool.stride_bytes(PAGE - 1) == pool.page_stride_bytes == PAGE
    assert (pool.pages_count, pool.free_count, pool.granted_count) == (COUNT, 0, 0)
    assert pool.allocate() is None
    assert pool.grow(3) == (3, None)
    first = pool.allocate()
    assert (pool.free_count, pool.granted_count, backed_bytes(path)) == (2, 3, 3 * PAGE)
    assert first is not None
    assert pool.shrink(9) == (2, None)
    assert (pool.free_count, pool.granted_count, backed_bytes(path)) == (0, 1, PAGE)
    assert pool.grow(99) == (COUNT - 1, None)
    with pytest.raises(UsageError):
        PagePool(64, 2).grow(1)
    with pytest.raises(UsageError):
        PagePool.over(segment, PAGE, COUNT + 1)
    assert PagePool.over(segment, PAGE, COUNT, prefault=True).grow(2) == (2, None)


def test_the_file_goes_with_its_owner_unless_it_is_kept(path: str) -> None:
    segment, pool = make(path)
    segment.keep = True
    segment.close()
    segment.close()
    assert os.path.exists(path)
    with pytest.raises(CapacityError):  # the pool has it mapped: the owner lives
        SharedSegment.open(path, PAGE * COUNT)
    with pytest.raises(ClosedError):
        segment.unlink()
    del pool
    gc.collect()
    second = SharedSegment.open(path, PAGE * COUNT)
    second.close()
    assert not os.path.exists(path)
    with pytest.raises(OSError, match="No such file"):
        SharedSegment.open(path, PAGE * COUNT)
    with pytest.raises(UsageError):
        SharedSegment.create(path, 0)
    assert not os.path.exists(path)


def test_chunks_survive_their_process(path: str) -> None:
    def chunks(*numbers: int) -> bytes:
        return b"".join(sha256(b"%d" % number).digest()[:16] for number in numbers)

    segment, pool = make(path)
    pool.grow(COUNT)
    cache = ChunkCache(COUNT, pool=pool)
    prompts = [chunks(1, 2, 3), chunks(1, 2, 4)]
    for prompt in prompts:
        reservation, indices, handles, _ = cache.reserve(prompt, 0, 1000.0)
        copy_pages(
            pool, handles, [prompt[16 * i : 16 * i + 16] * (PAGE // 16) for i in indices], True, 1
        )
        cache.commit(reservation)
    hashes, parents, handles = cache.entries()
    assert len(hashes) == 16 * len(parents) == 16 * len(handles) == 64
    assert sorted(parents) == [-1, 0, 1, 1]
    segment.keep = True
    del segment, cache, pool
    gc.collect()

    segment = SharedSegment.open(path, PAGE * COUNT)
    pool = PagePool.over(segment, PAGE, COUNT)
    claimed = [pool.claim(handle & 0xFFFFFFFF) for handle in handles]
    pool.trim()
    assert backed_bytes(path) == 4 * PAGE
    with pytest.raises(UsageError):
        pool.claim(claimed[0] & 0xFFFFFFFF)
    cache = ChunkCache(COUNT, pool=pool)
    with pytest.raises(UsageError):
        cache.adopt(hashes, parents[:-1], claimed)
    with pytest.raises(UsageError):
        cache.adopt(hashes, [0, *parents[1:]], claimed)
    assert cache.adopt(hashes, parents, claimed) == 4
    for prompt in prompts:
        lease, pages = cache.acquire(prompt, 1000.0)
        targets = [bytearray(PAGE) for _ in pages]
        copy_pages(pool, pages, targets, False, 1)
        assert [bytes(t[:16]) for t in targets] == [prompt[i : i + 16] for i in range(0, 48, 16)]
        assert cache.release(lease)
