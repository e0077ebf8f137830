"""What a benchmark checks its bytes with sees every kind of wrong byte."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from kvferry.base.errors import CorruptError, UsageError
from kvferry_lab.bench.data import Chunks

SIZE_BYTES = 10_001  # neither whole pages nor whole words


def written(count: int = 4, batch: int = 2) -> tuple[Chunks, dict[int, bytes]]:
    """Chunks after one write of every batch, and what a store would hold."""
    chunks = Chunks(SIZE_BYTES, count, batch)
    stored: dict[int, bytes] = {}
    for some in chunks.batches():
        chunks.next_write(some)
        stored.update((i, bytes(source)) for i, source in zip(some, chunks.sources, strict=False))
    return chunks, stored


def test_right_bytes_pass_in_any_order_of_batches() -> None:
    chunks, stored = written(count=5)
    for batch in reversed(chunks.batches()):
        assert chunks.verify(batch, [stored[i] for i in batch]) == len(batch) * SIZE_BYTES
    assert len(set(stored.values())) == 5


def test_the_last_batch_may_be_short() -> None:
    chunks, stored = written(count=5)
    assert chunks.batches() == [range(2), range(2, 4), range(4, 5)]
    assert chunks.verify_one(range(4, 5), 4, stored[4]) == SIZE_BYTES


@pytest.mark.parametrize("at", [0, 7, 4096, 8191, SIZE_BYTES - 1])
def test_one_wrong_byte_is_seen(at: int) -> None:
    chunks, stored = written()
    wrong = bytearray(stored[1])
    wrong[at] ^= 1
    with pytest.raises(CorruptError, match=f"wrong from byte {at} on"):
        chunks.verify(range(2), [stored[0], wrong])


def test_missing_short_swapped_stale_and_poisoned_values_are_seen() -> None:
    chunks, stored = written()
    batch = range(2)
    cases: dict[str, list[bytes | None]] = {
        "is missing": [stored[0], None],
        "instead of": [stored[0], stored[1][:-1]],
        "1 values": [stored[0]],
        "wrong from byte": [stored[1], stored[0]],
    }
    for words, values in cases.items():
        with pytest.raises(CorruptError, match=words):
            chunks.verify(batch, values)
    chunks.poison()
    with pytest.raises(CorruptError, match="wrong from byte 0"):
        chunks.verify(batch, chunks.targets)
    chunks.next_write(batch)
    with pytest.raises(CorruptError, match="wrong from byte"):
        chunks.verify(batch, [stored[0], stored[1]])


def test_buffers_are_page_aligned_and_incompressible() -> None:
    chunks, stored = written()
    assert all(np.frombuffer(view, np.uint8).ctypes.data % 4096 == 0 for view in chunks.targets)
    assert len(zlib.compress(stored[0], 9)) > 0.99 * SIZE_BYTES


def test_buffers_may_have_huge_pages_as_those_of_the_floor_have() -> None:
    """Hosts that give them to private memory need not give them to what could be shared."""
    chunks = Chunks(8 << 20, 1, 1)
    address = np.frombuffer(chunks.sources[0], np.uint8).__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        begin, end = (int(edge, 16) for edge in line.split()[0].split("-"))
        if begin <= address < end:
            assert line.split()[1] == "rw-p", line
            return
    raise AssertionError("the buffer lies nowhere")


def test_sizes_that_cannot_be_checked_are_refused() -> None:
    for size_bytes, count, batch in ((63, 1, 1), (100, 1, 2), (100, 0, 0)):
        with pytest.raises(UsageError):
            Chunks(size_bytes, count, batch)
