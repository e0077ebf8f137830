"""What the tier remembers of a store: bounded, and never a step's time to keep so."""

from __future__ import annotations

import time

import pytest

from kvferry.integrations.vllm.offload.lookups import KNOWN_MAX, Known, chunk_name, chunk_names


def numbered(first: int, count: int) -> list[bytes]:
    return [number.to_bytes(32, "little") + bytes(4) for number in range(first, first + count)]


def test_the_oldest_known_chunks_are_forgotten_first() -> None:
    known = Known(keys_max=8)
    keys = numbered(0, 12)
    known.add(keys[:8])
    known.add(keys[8:])
    assert [key in known for key in keys] == [False] * 4 + [True] * 8


def test_a_chunk_that_is_gone_is_not_known_and_can_be_known_again() -> None:
    known = Known(keys_max=4)
    keys = numbered(0, 4)
    known.add(keys)
    known.discard(keys[1:3])
    assert [key in known for key in keys] == [True, False, False, True]
    known.add(keys)
    assert all(key in known for key in keys)
    for _ in range(50):  # what comes and goes takes no room for good
        known.discard(keys[:2])
        known.add(keys[:2])
    assert all(key in known for key in keys)
    known.add(numbered(100, 4))
    assert not any(key in known for key in keys)


def test_to_remember_costs_the_same_when_it_is_full() -> None:
    """Forgetting the oldest took 3 ms for 64 chunks, in a step of the scheduler."""
    known = Known()
    took = []
    for filled in range(0, 2 * KNOWN_MAX, 64):
        keys = numbered(filled, 64)
        began = time.thread_time()
        known.add(keys)
        took.append(time.thread_time() - began)
    half = len(took) // 2
    assert sum(took[half:]) < 10 * sum(took[:half])


@pytest.mark.parametrize("length", [20, 36, 68])
def test_names_are_those_of_each_key_alone(length: int) -> None:
    keys = [bytes([index]) * (length - 4) + bytes(4) for index in range(1, 9)]
    others = [b"\x07" * (length - 4) + b"\0\0\0\1", b"\x07" * 19, b"\x07" * 16 + bytes(4)]
    assert chunk_names(keys + others) == [chunk_name(key) for key in keys + others]
    assert chunk_names(keys) == [key[:16].hex() for key in keys]
    assert len(set(chunk_names(keys + others[:2]))) == len(keys) + 2
